"""What the laws share: processes that the engine starts must find the examples too, and stores are closed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from battery import Disk

from hansa.io.store import DiskStore

HERE = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Open the same store on disk again and again; hundreds that stayed open would take all file descriptors."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(DiskStore(tmp_path / "state.sqlite")))
