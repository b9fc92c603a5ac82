"""Frames and series of pandas and polars, taken as they are; neither is imported here."""

from __future__ import annotations

from typing import Any

import numpy as np

from hansa.data.sources.columns import Cures, Features, beside, encode
from hansa.errors import require

LIBRARIES = ("pandas", "polars")
CATEGORIES = 100  # different texts of a column; one with more is no category
CURES = Cures(
    "leave it out of the frame",
    "leave it out of the frame, or have a text encoder read it: give it alone, as a series, with features=…",
)


def _of(value: Any, kind: str) -> bool:
    home = type(value).__module__.partition(".")[0]
    return home in LIBRARIES and type(value).__name__ == kind


def is_frame(value: Any) -> bool:
    """Tell whether something is a frame."""
    return _of(value, "DataFrame")


def from_series(value: Any) -> Any:
    """Return a series as an array, text and categories as text; anything else as it is."""
    if not _of(value, "Series") and not _of(value, "Categorical") and not _of(value, "Index"):
        return value
    found = np.asarray(value)
    if found.dtype.kind == "O":
        empty = [place for place, one in enumerate(found) if one is None or one != one]
        require(not empty, f"A series has no value in row {empty[0] if empty else 0}; give one or drop the row.")
        return np.asarray([str(one) for one in found])
    return found


def is_prose(series: Any) -> bool:
    """Tell whether a series holds texts of which too many differ to be categories."""
    values = np.asarray(series)
    texts = values.dtype.kind in "OUT" and all(isinstance(one, str) for one in values)
    return texts and len({*values}) > CATEGORIES


def frame_columns(train: Any, test: Any = None) -> list[Features]:
    """Return the columns of one or two frames as numbers, a column for every category that one of them has."""
    require(
        test is None or is_frame(test), "The training inputs are a frame, and the test inputs are not: give a frame."
    )
    tables = [to_arrow(one) for one in (train, test) if one is not None]
    names = [tuple(one.column_names) for one in tables]
    require(
        len({*names}) == 1, f"The test frame has other columns than the training frame: {names[-1]} and {names[0]}."
    )
    parts = [encode(one, one.column_names, CATEGORIES, cures=CURES) for one in tables]
    both = beside(parts)
    ends = np.cumsum([len(part.values) for part in parts])[:-1]
    return [Features(both.source, both.category, _known(rows, both)) for rows in np.split(both.values, ends)]


def _known(rows: Any, columns: Features) -> Any:
    """Put 0 for categories that a frame does not have, where it has others of the column."""
    rows = rows.copy()
    for name in {name for name, text in zip(columns.source, columns.category, strict=True) if text is not None}:
        own = [place for place, source in enumerate(columns.source) if source == name]
        block = rows[:, own]
        there = ~np.isnan(block).all(axis=1)
        block[there] = np.nan_to_num(block[there], nan=0.0)
        rows[:, own] = block
    return rows


def to_arrow(frame: Any) -> Any:
    """Return a frame as an Arrow table."""
    if type(frame).__module__.startswith("polars"):
        return frame.to_arrow()
    import pyarrow as pa

    frame = frame.rename(columns=str)
    return pa.Table.from_pandas(frame, preserve_index=False)
