"""Processes the engine starts must find the examples too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from forked import ForkedWorker
from hansa.engines import connection

HERE = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(autouse=True)
def _forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hundreds of workers that the laws start be forks: what the laws say is about messages."""
    if hasattr(os, "fork"):
        monkeypatch.setattr(connection, "subprocess", SimpleNamespace(PIPE=subprocess.PIPE, Popen=ForkedWorker))
