"""Shared fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Two threads spin on small models; one is faster and leaves the other core to a parallel test."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Real data kept beside the repository; a test that needs a missing file is skipped."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{name} is not beside the repository")
        return path

    return find
