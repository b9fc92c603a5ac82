"""The report: one HTML page from run folders, complete in itself, that needs no network to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hansa.errors import require
from hansa.io.files import write_whole
from hansa.results.reader import Run, reading

__all__ = ["build", "build_split_page"]


def build(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write the report of one or more run folders to `out`; an older page stays until the new one is complete."""
    from hansa.results.report.page import page

    require(len(runs) > 0, "A report needs at least one run folder. Got none.")
    opened = [Run.open(path) for path in runs]
    with reading(opened):
        content = page(opened)
    return _write(content, Path(out))


def build_split_page(name: str, data: Mapping[str, Any], out: str | Path) -> Path:
    """Write how a split divides the data, told as in a run folder's data.json, as a page of its own."""
    from hansa.results.report.page import split_page

    return _write(split_page(name, data), Path(out))


def _write(content: str, out: Path) -> Path:
    write_whole(out, content)
    return out
