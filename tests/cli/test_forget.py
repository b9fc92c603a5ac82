"""`hansa forget` on real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hansa import api
from hansa.data.federation import Federation
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan

HANSA = [sys.executable, "-c", "from hansa.cli import main; main()"]
PLAN = """
[data]
source = "digits"
partition = { name = "dirichlet", clients = 10, alpha = 0.3 }
[[phases]]
algorithm = { name = "fed3r", wire = "float64", products = "float64" }
remember = "uploads"
"""


def hansa(*words: object, cwd: Path, code: int = 0) -> str:
    done = subprocess.run([*HANSA, *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "plan.toml").write_text(PLAN)
    api.run(tmp_path / "plan.toml", out=tmp_path / "run")
    return tmp_path / "run"


def without(folder: Path, client: str) -> Path:
    """A run of the same plan in which the client never was."""
    plan = read_plan(folder.parent / "plan.toml")
    federation = assemble(plan).experiment.federation
    others = {name: held for name, held in federation.clients.items() if name != client}
    rest = Federation(others, federation.target, federation.test)
    return api.run(plan, out=folder.parent / f"without-{client}", data=rest).path


def same_model(left: Path, right: Path) -> float:
    a, b = (load_file(path / "model.safetensors")["head.weight"] for path in (left, right))
    return float((a - b).norm() / b.norm())


def test_the_model_is_the_one_trained_without_the_client(run: Path) -> None:
    original = load_file(run / "model.safetensors")["head.weight"]
    record = json.loads(hansa("forget", "run", "--client", "client-003", cwd=run.parent))
    assert record["client"] == "client-003" and record["source"] == "kept by the server"
    assert record["difference_to_training_without"] < 1e-9
    assert same_model(run, without(run, "client-003")) < 1e-6
    assert float((load_file(run / "model.safetensors")["head.weight"] - original).norm()) > 1e-4
    assert [json.loads(line) for line in (run / "audit.jsonl").read_text().splitlines()] == [record]
    assert "forgotten already" in hansa("forget", "run", "--client", "client-003", cwd=run.parent, code=2)
    assert "kept no upload" in hansa("forget", "run", "--client", "nobody", cwd=run.parent, code=2)
    hansa("forget", "run", "--client", "client-005", cwd=run.parent)
    assert len((run / "audit.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("remember", ["fingerprints", "nothing"])
def test_a_client_the_server_knows_only_by_its_sum(tmp_path: Path, remember: str) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace('"uploads"', f'"{remember}"'))
    run = api.run(tmp_path / "plan.toml", out=tmp_path / "run").path
    assert "give the file it sends again" in hansa("forget", "run", "--client", "client-003", cwd=tmp_path, code=2)
    hansa("upload", "run", "--client", "client-003", "--out", "again.safetensors", cwd=tmp_path)
    hansa("upload", "run", "--client", "client-004", "--out", "other.safetensors", cwd=tmp_path)
    if remember == "fingerprints":
        words = ("forget", "run", "--client", "client-003", "--upload", "other.safetensors")
        assert "not what client 'client-003' uploaded" in hansa(*words, cwd=tmp_path, code=2)
    words = ("forget", "run", "--client", "client-003", "--upload", "again.safetensors")
    record = json.loads(hansa(*words, cwd=tmp_path))
    assert ("verified" in record["source"]) and (("not verified" in record["source"]) == (remember == "nothing"))
    assert same_model(run, without(run, "client-003")) < 1e-6


def test_gradient_training_cannot_forget(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace('"fed3r", wire = "float64", products = "float64"', '"fedavg"'))
    api.run(tmp_path / "plan.toml", out=tmp_path / "run")
    assert "cannot be taken out exactly" in hansa("forget", "run", "--client", "client-003", cwd=tmp_path, code=2)


def test_what_was_forgotten_is_no_longer_in_the_file(run: Path) -> None:
    from hansa.io.store import DiskStore

    store = DiskStore(run / "checkpoint" / "state.sqlite")
    upload = store.get("0/upload", "client-003")
    store.close()
    assert upload is not None
    needle = upload["moment"].numpy().tobytes()[:64]
    files = list((run / "checkpoint").iterdir())
    assert any(needle in path.read_bytes() for path in files)
    hansa("forget", "run", "--client", "client-003", cwd=run.parent)
    assert not any(needle in path.read_bytes() for path in (run / "checkpoint").iterdir())
