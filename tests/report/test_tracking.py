"""Trackers write what was logged, where it was asked for, and reach out to no network."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hansa.errors import HansaError
from hansa.io.registry import CATALOGUE, find
from hansa.results.tracking import MLflow, TensorBoard, WeightsAndBiases, flatten

CONFIG = {"name": "demo", "seed": 7, "phases": [{"rounds": 3, "algorithm": {"name": "fedavg"}}]}
SCRIPT = """
import sys
from pathlib import Path
from hansa.io.registry import find
tracker = find("tracker", sys.argv[1])().open(Path(sys.argv[2]), "demo", {config!r})
for step, accuracy in enumerate([0.25, 0.5, 0.75]):
    tracker.log(step, {{"test_accuracy": accuracy}})
tracker.close()
"""


@pytest.fixture
def proxy():
    """A listener in the place of the outside world: whoever wants out calls here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def _track(name: str, folder: Path, proxy: socket.socket) -> None:
    """Log three values in a process of its own whose only way out is the proxy, and where no test is to be seen."""
    address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
    hidden = ("PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS", "NO_PROXY", "no_proxy", "DO_NOT_TRACK")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), address)
    command = [sys.executable, "-c", SCRIPT.format(config=CONFIG), name, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def _nobody_called(proxy: socket.socket) -> bool:
    try:
        proxy.accept()[0].close()
    except BlockingIOError:
        return True
    return False


def test_tensorboard_events_read_back(tmp_path, proxy):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    _track("tensorboard", tmp_path, proxy)
    (file,) = (tmp_path / "tensorboard").iterdir()
    events = [event for event in loader.EventFileLoader(str(file)).Load() if event.HasField("summary")]
    scalars = [(e.step, v.tensor.float_val[0]) for e in events for v in e.summary.value if v.tag == "test_accuracy"]
    assert scalars == [(0, 0.25), (1, 0.5), (2, 0.75)]
    assert b"phases.0.algorithm.name = fedavg" in file.read_bytes()
    assert _nobody_called(proxy)


def test_weights_and_biases_stays_offline_and_in_the_run_folder(tmp_path, proxy):
    pytest.importorskip("wandb")
    _track("wandb", tmp_path, proxy)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert content.count(b"test_accuracy") >= 3
    assert b"0.75" in content
    assert b"fedavg" in content
    assert _nobody_called(proxy)


def test_mlflow_files_read_back(tmp_path, proxy):
    pytest.importorskip("mlflow")
    _track("mlflow", tmp_path, proxy)
    (file,) = tmp_path.glob("mlruns/*/*/metrics/test_accuracy")
    logged = [line.split()[1:3] for line in file.read_text().splitlines()]
    assert logged == [["0.25", "0"], ["0.5", "1"], ["0.75", "2"]]
    assert (file.parents[1] / "params" / "phases.0.rounds").read_text() == "3"
    assert "demo" in (file.parents[1] / "tags" / "mlflow.runName").read_text()
    assert _nobody_called(proxy)


def test_the_proxy_would_notice_a_call(proxy):
    socket.create_connection(proxy.getsockname()).close()
    assert not _nobody_called(proxy)


@pytest.mark.parametrize("name", CATALOGUE["tracker"])
def test_a_missing_package_names_the_extra(name, tmp_path, monkeypatch):
    package = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}[name]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HansaError, match=rf"package '{package}': pip install 'hansa\[tracking\]'"):
        find("tracker", name)().open(tmp_path, "demo", CONFIG)
    assert not list(tmp_path.iterdir())


def test_settings_are_checked_and_pieces_hashable():
    with pytest.raises(HansaError, match="'mode' of WeightsAndBiases must be 'offline' or 'online'"):
        WeightsAndBiases(mode="sometimes")
    with pytest.raises(HansaError, match="'experiment' of MLflow"):
        MLflow(experiment="")
    with pytest.raises(HansaError, match="'folder' of TensorBoard"):
        TensorBoard(folder="")
    assert len({TensorBoard(), TensorBoard(), MLflow(), WeightsAndBiases()}) == 3


def test_flatten_numbers_lists_of_tables_and_keeps_plain_lists():
    assert flatten({"a": {"b": [1, 2]}, "c": [{"d": 3}]}) == {"a.b": [1, 2], "c.0.d": 3}
