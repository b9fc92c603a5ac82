"""Files of tables, read whole or by their headers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hansa.data.sources.cells import sentence
from hansa.errors import HansaError

T = TypeVar("T")


def read_csv(file: Path, columns: Sequence[str], na: Sequence[str], delimiter: str) -> Any:
    """Read a CSV file as an Arrow table; without a header row its columns are named here."""
    from pyarrow import csv

    convert = csv.ConvertOptions()
    options = csv.ConvertOptions(null_values=[*convert.null_values, *na], strings_can_be_null=True)

    def table() -> Any:
        parse = csv.ParseOptions(delimiter=delimiter)
        found = csv.read_csv(file, csv.ReadOptions(column_names=list(columns) or None), parse, options)
        found.column_names  # noqa: B018, names that are not UTF-8 are noticed only here
        return found

    return _read(file, "CSV", table)


def csv_columns(file: Path, delimiter: str) -> list[str]:
    """Read the header row of a CSV file."""
    from pyarrow import csv

    def names() -> list[str]:
        with csv.open_csv(file, parse_options=csv.ParseOptions(delimiter=delimiter)) as opened:
            return list(opened.schema.names)

    return _read(file, "CSV", names)


def read_parquet(file: Path) -> Any:
    """Read a Parquet file as an Arrow table."""
    from pyarrow import parquet

    def table() -> Any:
        found = parquet.read_table(file)
        found.validate(full=True)  # numbers of a damaged file may point outside of it
        return found

    return _read(file, "Parquet", table)


def parquet_columns(file: Path) -> list[str]:
    """Read the names of a Parquet file's columns."""
    from pyarrow import parquet

    return _read(file, "Parquet", lambda: list(parquet.read_schema(file).names))


def _read(file: Path, kind: str, read: Callable[[], T]) -> T:
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, UnicodeDecodeError, OSError, ValueError, MemoryError) as error:
        raise HansaError(f"The file '{file}' cannot be read as a {kind} table: {sentence(error)}") from error
