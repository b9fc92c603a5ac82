"""The numbers by which a table became a model's inputs, so that another table can be read in the same way."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from hansa.data.dataset import Array
from hansa.data.sources.columns import encode
from hansa.errors import HansaError, did_you_mean, require


@dataclass(frozen=True)
class EncodingRule:
    """The rule by which columns of a table become inputs, once it is known which rows are trained on."""

    source: tuple[str, ...]  # the table's column behind each input
    category: tuple[str | None, ...]  # the text that is 1 here; None where the column holds numbers
    missing: Literal["error", "mean", "zero", "drop"]
    scale: Literal["standard", "none"]

    def fit(self, rows: Array) -> Encoding:
        """Fit to these rows: missing values become their mean or 0 (also where a column has no value at all),
        and columns are brought to mean 0 and standard deviation 1, constant ones to 0."""
        absent = np.isnan(rows)
        means = np.nansum(rows, axis=0) / np.maximum((~absent).sum(axis=0), 1)
        filler = np.zeros_like(means) if self.missing == "zero" else means
        rows = np.where(absent, filler, rows)
        shift, spread = np.zeros_like(means), np.ones_like(means)
        if self.scale == "standard":
            shift, spread = rows.mean(axis=0), rows.std(axis=0)
        numbers = (filler, shift, np.where(spread > 0, spread, 1.0))
        return Encoding(self.source, self.category, *(tuple(map(float, column)) for column in numbers))


@dataclass(frozen=True)
class Encoding:
    """One entry an input: where it comes from, what stands for a missing value, and what scales it."""

    source: tuple[str, ...]  # the table's column
    category: tuple[str | None, ...]  # the text that is 1 here; None where the column holds numbers
    missing: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        counts = {len(getattr(self, one.name)) for one in fields(self)}
        require(len(counts) == 1 and min(counts) > 0, "An encoding must have one entry of each kind for every input.")
        require(min(self.deviation) > 0, f"The 'deviation' of an encoding must be > 0. Got {min(self.deviation)}.")

    def apply(self, values: Array) -> Array:
        """Fill and scale the numbers."""
        filled = np.where(np.isnan(values), self.missing, values)
        scaled: Array = (filled - np.asarray(self.mean)) / np.asarray(self.deviation)
        return scaled

    def values(self, table: Any, where: str) -> Array:
        """Return numbers of another table's columns, not yet filled and scaled; its further columns do not matter."""
        return np.concatenate([self._column(table, name, where) for name in dict.fromkeys(self.source)], axis=1)

    def _column(self, table: Any, name: str, where: str) -> Array:
        if name not in table.column_names:
            raise HansaError(f"There is no column '{name}' in {where}.{did_you_mean(name, table.column_names)}")
        known = [text for column, text in zip(self.source, self.category, strict=True) if column == name]
        column = table.select([name])
        if known == [None]:
            found = encode(column, [name], sys.maxsize)
            if found.category != (None,):
                raise HansaError(f"The column '{name}' of {where} holds text where the training data had numbers.")
            return found.values
        found = encode(_as_text(column), [name], sys.maxsize)
        odd = [text for text in found.category if text not in known]
        if odd:
            raise HansaError(f"The column '{name}' of {where} has '{odd[0]}', which the training data never had.")
        block = np.zeros((len(found.values), len(known)))
        block[:, [known.index(text) for text in found.category]] = found.values
        block[np.isnan(found.values).any(axis=1)] = np.nan
        return block


def _as_text(table: Any) -> Any:
    """Cast to text: categories that look like numbers here were text among others in the training data."""
    import pyarrow as pa

    return table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
