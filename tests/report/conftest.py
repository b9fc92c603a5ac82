"""Run folders for the report's tests."""

from __future__ import annotations

import pytest
from run_folders import FED3R, FEDAVG, FINETUNE, FakePhase, write_run


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    """The demonstration: from scratch, in one round, and one after the other."""
    root = tmp_path_factory.mktemp("three")
    return [
        write_run(root / "a", "FedAvg from scratch", (FEDAVG,)),
        write_run(root / "b", "Fed3R in one round", (FED3R,), features=True),
        write_run(root / "c", "Fed3R then FedAvg", (FED3R, FINETUNE), features=True),
    ]


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """A thousand clients, many rounds."""
    phase = FakePhase("fedavg", "fedavg", 150, 0.1, 0.8, clients=100)
    return write_run(tmp_path_factory.mktemp("many") / "run", "many clients", (phase,), clients=1000)


@pytest.fixture(scope="session")
def killed(tmp_path_factory):
    """A run that ended without a summary, without local tests, in the middle of a line, with 62 classes."""
    folder = write_run(
        tmp_path_factory.mktemp("killed") / "run", "killed", (FED3R, FINETUNE), 60, 62, local_tests=False, status=None
    )
    (folder / "ledger.parquet").unlink()
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"phase": 1, "phase_name": "fine-tuning", "rou')
    return folder
