"""Columns of a table as numbers: numeric columns as they are, text as one column per category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import HansaError, require


@dataclass(frozen=True, eq=False)
class Features:
    """Numbers of all columns side by side; NaN where a value is missing or not finite."""

    source: tuple[str, ...]  # the table's column behind each
    category: tuple[str | None, ...]  # the text it stands for, where that column holds text
    values: Array  # float64, rows × columns


@dataclass(frozen=True)
class Cures:
    """What errors say to do with a column: one that is neither number nor text, and one of many different texts."""

    neither: str = "name it in 'drop'"
    texts: str = "name it in 'drop' or raise the limit"


def encode(
    table: Any, columns: list[str], max_categories: int, where: str = "", cures: Cures | None = None
) -> Features:
    """Encode all feature columns as numbers, categories in sorted order; `where` follows a column's name in errors."""
    cures = cures or Cures()
    require(len(columns) > 0, "The table has no feature columns: all of them are label, client, domain or dropped.")
    source: list[str] = []
    category: list[str | None] = []
    blocks = []
    for column in columns:
        block, categories = _column(column, table.column(column), max_categories, where, cures)
        blocks.append(block)
        category += categories
        source += [column] * len(categories)
    return Features(tuple(source), tuple(category), np.concatenate(blocks, axis=1))


def beside(parts: Sequence[Features]) -> Features:
    """Put the columns of several tables side by side, their rows below each other; NaN where a table has no such."""
    found = dict.fromkeys(key for part in parts for key in zip(part.source, part.category, strict=True))
    order = {name: place for place, name in enumerate(dict.fromkeys(source for source, _ in found))}
    keys = sorted(found, key=lambda key: (order[key[0]], key[1] or ""))
    place = {key: number for number, key in enumerate(keys)}
    values = np.full((sum(len(part.values) for part in parts), len(keys)), np.nan)
    first = 0
    for part in parts:
        own = [place[key] for key in zip(part.source, part.category, strict=True)]
        values[first : first + len(part.values), own] = part.values
        first += len(part.values)
    return Features(tuple(source for source, _ in keys), tuple(category for _, category in keys), values)


def _column(
    name: str, column: Any, max_categories: int, where: str, cures: Cures
) -> tuple[Array, Sequence[str | None]]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _one_hot(name, column.to_pylist(), max_categories, where, cures.texts)
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null, pa.types.is_decimal)
    if not any(test(kind) for test in numeric):
        says = f"The column '{name}'{where} is of type {kind}, which is neither number nor text"
        raise HansaError(f"{says}; {cures.neither}.")
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    numbers = column.cast(pa.float64(), safe=False).to_numpy()
    return np.where(np.isfinite(numbers), numbers, np.nan)[:, None], [None]


def _one_hot(
    name: str, values: list[str | None], max_categories: int, where: str, cure: str
) -> tuple[Array, list[str]]:
    categories = sorted({value for value in values if value is not None})
    says = f"The column '{name}'{where} has {len(categories)} different texts, more than 'max_categories'"
    few = len(categories) <= max_categories
    require(few, f"{says} = {max_categories}; {cure}.")
    place = {category: number for number, category in enumerate(categories)}
    block = np.zeros((len(values), len(categories)))
    for row, value in enumerate(values):
        if value is None:
            block[row] = np.nan
        else:
            block[row, place[value]] = 1.0
    return block, categories
