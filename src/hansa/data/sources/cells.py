"""Cells of Arrow tables: names, labels, numbers and times in a column, and the place of a row among files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import HansaError, did_you_mean, require


class Place:
    """The place where a row of the joined table came from."""

    def __init__(self, files: list[Path], file_of: Array):
        self._files, self._file_of = files, file_of
        self.files = f"'{files[0]}'" if len(files) == 1 else f"{len(files)} files beginning with '{files[0]}'"

    def __call__(self, row: int) -> str:
        """Return a row's number and file."""
        number = int(self._file_of[row])
        first = int(np.flatnonzero(self._file_of == number)[0])
        return f"data row {row - first + 1} of '{self._files[number]}'"


def join(tables: list[Any]) -> Any:
    """Join tables into one; a column that one of them lacks is missing there."""
    import pyarrow as pa

    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        says = f"A column holds numbers in one file and text in another ({sentence(error).rstrip('.')})"
        told = "write it alike everywhere, name it in 'drop', or set columns_of = \"file\" (each its own)"
        raise HansaError(f"{says}: {told}.") from error


def refuse_column(table: Any, column: str, setting: str, file: Path) -> None:
    """Refuse a table without a column that a setting names."""
    raise HansaError(
        f"The {setting} column '{column}' is not in '{file}'.{did_you_mean(column, table.column_names)} "
        "If the file has no header row, name its columns with 'columns'."
    )


def values_of(table: Any, column: str, what: str, place: Place) -> Array:
    """Return a column of labels or names, whole numbers from 0 on or else text; every row must have one."""
    _require_plain(table.column(column).type, column, what, place)
    values = table.column(column).to_pylist()
    for row, value in enumerate(values):
        if value is None or value != value:
            raise HansaError(f"The {what} column '{column}' has no value in {place(row)}; give one or remove the row.")
    if all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer()
        for value in values
    ):
        values = [int(value) for value in values]
        return np.asarray(values) if min(values) >= 0 else np.asarray(values).astype(str)
    return np.asarray([str(value) for value in values])


def _require_plain(kind: Any, column: str, what: str, place: Place) -> None:
    """Refuse a column whose values are neither numbers, truth values, dates nor text."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    odd = pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    says = f"The {what} column '{column}' of {place.files} is of type {kind}, which is neither number nor text"
    require(not odd, f"{says}; name another column.")


def is_numeric(kind: Any) -> bool:
    """Tell whether a column holds numbers."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def numbers_of(table: Any, column: str, place: Place, what: str = "label") -> Array:
    """Return a column, such as a real target, as float64; every row must have a finite number."""
    import pyarrow as pa

    kind = table.column(column).type
    says = f"The {what} column '{column}' of {place.files} must hold numbers for a real target"
    require(is_numeric(kind), f'{says}. Got {kind}; name another column or set target = "classes".')
    numbers: Array = table.column(column).cast(pa.float64(), safe=False).to_numpy()
    odd = np.flatnonzero(~np.isfinite(numbers))
    if len(odd):
        where = place(int(odd[0]))
        raise HansaError(f"The {what} column '{column}' has no finite number in {where}; give one or remove the row.")
    return numbers


def some_rows(values: Array | None, chosen: Array) -> Array | None:
    """Return some rows of values, where there are any."""
    return None if values is None else values[chosen]


def sentence(error: Exception) -> str:
    """Return the first line of an error as a sentence."""
    return str(error).splitlines()[0].rstrip(".") + "."


def times_of(table: Any, column: str, place: Place) -> Array:
    """Return a column of times as numbers: numbers as they are, dates in seconds; every row must have one."""
    import pyarrow as pa

    kind = table.column(column).type
    says = f"The time column '{column}' of {place.files} must hold numbers or dates"
    dated = pa.types.is_temporal(kind)
    require(dated or is_numeric(kind), f"{says}. Got {kind}; name another column.")
    if dated:
        seconds = table.column(column).cast(pa.timestamp("us")).cast(pa.int64())
        require(seconds.null_count == 0, f"{says}, and some rows have none; give one or remove the row.")
        found: Array = seconds.to_numpy().astype(np.float64) / 1e6
        return found
    return numbers_of(table, column, place, "time")
