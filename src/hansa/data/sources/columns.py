"""Columns of a table as numbers: numeric columns as they are, text as one column per category."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import HansaError, require


@dataclass(frozen=True, eq=False)
class Features:
    """Numbers of all columns side by side; NaN where a value is missing or not finite."""

    names: tuple[str, ...]
    source: tuple[str, ...]  # the table's column behind each
    values: Array  # float64, rows × names


def encode(table: Any, columns: list[str], max_categories: int) -> Features:
    """All feature columns as numbers, categories in sorted order."""
    require(len(columns) > 0, "The table has no feature columns: all of them are label, client, domain or dropped.")
    names: list[str] = []
    source: list[str] = []
    blocks = []
    for column in columns:
        block, titles = _column(column, table.column(column), max_categories)
        blocks.append(block)
        names += titles
        source += [column] * len(titles)
    return Features(tuple(names), tuple(source), np.concatenate(blocks, axis=1))


def _column(name: str, column: Any, max_categories: int) -> tuple[Array, list[str]]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _one_hot(name, column.to_pylist(), max_categories)
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null, pa.types.is_decimal)
    if not any(test(kind) for test in numeric):
        raise HansaError(f"The column '{name}' is of type {kind}, which is neither number nor text; name it in 'drop'.")
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    numbers = column.cast(pa.float64(), safe=False).to_numpy()
    return np.where(np.isfinite(numbers), numbers, np.nan)[:, None], [name]


def _one_hot(name: str, values: list[str | None], max_categories: int) -> tuple[Array, list[str]]:
    categories = sorted({value for value in values if value is not None})
    require(
        len(categories) <= max_categories,
        f"The column '{name}' has {len(categories)} different texts, more than 'max_categories' = {max_categories}; "
        "name it in 'drop' or raise the limit.",
    )
    place = {category: number for number, category in enumerate(categories)}
    block = np.zeros((len(values), len(categories)))
    for row, value in enumerate(values):
        if value is None:
            block[row] = np.nan
        else:
            block[row, place[value]] = 1.0
    return block, [f"{name}={category}" for category in categories]


def fill(values: Array, train: Array, missing: str) -> Array:
    """Missing values replaced by the mean of the training rows, or by 0 (also where a column has no value at all)."""
    if missing == "zero":
        return np.nan_to_num(values, nan=0.0)
    present = ~np.isnan(values[train])
    mean = np.nansum(values[train], axis=0) / np.maximum(present.sum(axis=0), 1)
    return np.where(np.isnan(values), mean, values)


def standardise(values: Array, train: Array) -> Array:
    """Mean 0 and standard deviation 1 over the training rows; constant columns become 0."""
    spread = values[train].std(axis=0)
    scaled: Array = (values - values[train].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled
