"""Shared fixtures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from forked import ForkedWorker
from hansa.engines import connection

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Two threads spin on small models; one is faster and leaves the other core to a parallel test."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hundreds of workers that tests start be forks: most tests are about what workers do."""
    if hasattr(os, "fork"):
        monkeypatch.setattr(connection, "subprocess", SimpleNamespace(PIPE=subprocess.PIPE, Popen=ForkedWorker))


@pytest.fixture
def started_workers(_forked_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers start as a user's do."""
    monkeypatch.setattr(connection, "subprocess", subprocess)


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Real data kept beside the repository; a test that needs a missing file is skipped."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{name} is not beside the repository")
        return path

    return find
