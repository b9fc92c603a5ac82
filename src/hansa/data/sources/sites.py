"""Tables of several sites: which columns they have in common, and values of single columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hansa.data.sources.columns import Features
from hansa.errors import HansaError, require

FEW = 10  # different texts that any column may have


def shared_columns(whose: str, files: Sequence[Path], tables: Sequence[Any], own: list[list[str]]) -> list[list[str]]:
    """Return the feature columns of every file: its own, those of all, or those that have a value in all."""
    if whose == "all":
        for file, columns in zip(files, own, strict=True):
            odd = sorted(set(own[0]) ^ set(columns))
            says = f"'{files[0]}' and '{file}' do not have the same columns ({', '.join(odd)} in one only)"
            require(not odd, f'{says}; set columns_of to "file" (each its own), "union" or "common".')
        return [own[0] for _ in files]
    if whose != "common":
        return own
    held = [
        {name for name in columns if has_value(table.column(name))} for table, columns in zip(tables, own, strict=True)
    ]
    common = [name for name in own[0] if all(name in columns for columns in held)]
    require(len(common) > 0, 'No column has a value in every file; set columns_of to "file" or "union".')
    return [common for _ in files]


def has_value(column: Any) -> bool:
    """Tell whether a column has a value in some row; NaN is none."""
    import pyarrow as pa

    if column.null_count == len(column):
        return False
    return not pa.types.is_floating(column.type) or bool(np.isfinite(column.to_numpy()).any())


def blanked(column: Any, marks: Sequence[float | str]) -> Any:
    """Return a column without the values that mean missing there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    known = [str(mark) for mark in marks] if text else [float(mark) for mark in marks if not isinstance(mark, str)]
    compared = column if text else column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_in(compared, pa.array(known, compared.type)), pa.scalar(None, column.type), column)


def refuse_free_text(features: Features, file: Path) -> None:
    """Refuse a column of text that is no category: most rows have a text of their own."""
    for name in dict.fromkeys(features.source):
        inputs = [place for place, source in enumerate(features.source) if source == name]
        rows = int(np.isfinite(features.values[:, inputs[0]]).sum())
        free = features.category[inputs[0]] is not None and FEW < len(inputs) > rows / 2
        if free:
            says = f"The column '{name}' of '{file}' has {len(inputs)} different texts in {rows} rows"
            raise HansaError(f"{says}, so it is free text and no category; name it in 'drop'.")


def as_texts(table: Any) -> Iterator[str]:
    """Yield every row as text, `column: value; …`, without what is missing."""
    for row in table.to_pylist():
        told = {name: value for name, value in row.items() if value is not None and value == value}
        yield "; ".join(f"{name}: {_written(value)}" for name, value in told.items())


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
