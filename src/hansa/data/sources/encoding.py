"""The numbers by which a table became a model's inputs, so that another table can be read in the same way."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from hansa.data.dataset import Array
from hansa.data.sources.columns import encode
from hansa.errors import HansaError, did_you_mean, require
from hansa.task import Column

Missing = Literal["error", "mean", "zero", "drop", "indicator"]


@dataclass(frozen=True)
class EncodingRule:
    """The rule by which columns of a table become inputs, once it is known which rows are trained on."""

    source: tuple[str, ...]  # the table's column behind each input
    category: tuple[str | None, ...]  # the text that is 1 here; None where the column holds numbers
    missing: Missing
    scale: Literal["standard", "none"]
    apart: bool = False  # every client has an encoding of its own, of the columns that say something there

    def fit(self, rows: Array) -> Encoding:
        """Fit to these rows: missing values become their mean or 0 (also where a column has no value at all), what is
        missing may be told by an input of its own, and inputs are brought to mean 0 and standard deviation 1, constant
        ones to 0."""
        absent = np.isnan(rows)
        means = np.nansum(rows, axis=0) / np.maximum((~absent).sum(axis=0), 1)
        filler = np.zeros_like(means) if self.missing == "zero" else means
        flags = self._flags(absent) if self.missing == "indicator" else []
        rows = np.concatenate([np.where(absent, filler, rows), absent[:, flags]], axis=1)
        filler = np.concatenate([filler, np.zeros(len(flags))])
        shift, spread = np.zeros_like(filler), np.ones_like(filler)
        if self.scale == "standard":
            shift, spread = rows.mean(axis=0), rows.std(axis=0)
        filled, mean, deviation = (tuple(map(float, one)) for one in (filler, shift, np.where(spread > 0, spread, 1.0)))
        source = (*self.source, *(self.source[flag] for flag in flags))
        category = (*self.category, *(None for _ in flags))
        indicator = (False,) * len(self.source) + (True,) * len(flags)
        return Encoding(source, category, filled, mean, deviation, indicator)

    def _flags(self, absent: Array) -> list[int]:
        """Return the first input of every column that has a value in some of the rows, and none in others."""
        partly = set(np.flatnonzero(absent.any(axis=0) & ~absent.all(axis=0)).tolist())
        first = {name: place for place, name in reversed(list(enumerate(self.source))) if place in partly}
        return sorted(first.values())

    def of(self, rows: Array) -> tuple[EncodingRule, Array]:
        """Return the rule of the inputs that say something in these rows, and their places among all.

        An input says something if it differs between rows, or if it is missing in some and that is told.  Of a column
        of text also categories count that only other rows of its table have: they must be read where they occur.
        """
        absent = np.isnan(rows)
        varies = np.where(absent, -np.inf, rows).max(axis=0) > np.where(absent, np.inf, rows).min(axis=0)
        partly = absent.any(axis=0) & ~absent.all(axis=0)
        says = varies | partly if self.missing == "indicator" else varies
        held = {self.source[place] for place in np.flatnonzero(says)}
        known = [text is not None and name in held for name, text in zip(self.source, self.category, strict=True)]
        chosen = np.flatnonzero(says | (np.array(known) & ~absent.all(axis=0)))
        source = tuple(self.source[place] for place in chosen)
        return replace(self, source=source, category=tuple(self.category[place] for place in chosen)), chosen


@dataclass(frozen=True)
class Encoding:
    """One entry an input: where it comes from, what stands for a missing value, and what scales it.

    Inputs that tell whether a column's value is missing come last.
    """

    source: tuple[str, ...]  # the table's column
    category: tuple[str | None, ...]  # the text that is 1 here; None where the column holds numbers
    missing: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    indicator: tuple[bool, ...] = ()  # whether it is 1 where the column's value is missing; empty: none is

    def __post_init__(self) -> None:
        if not self.indicator:
            object.__setattr__(self, "indicator", (False,) * len(self.source))
        counts = {len(getattr(self, one.name)) for one in fields(self)}
        require(len(counts) == 1 and min(counts) > 0, "An encoding must have one entry of each kind for every input.")
        require(min(self.deviation) > 0, f"The 'deviation' of an encoding must be > 0. Got {min(self.deviation)}.")
        good = sorted(self.indicator) == list(self.indicator) and set(self._flagged) <= set(self._own)
        require(good, "The inputs of an encoding that tell of missing values must be the last, each of a column of it.")

    @property
    def columns(self) -> tuple[Column, ...]:
        """What each input stands for."""
        return tuple(map(Column, self.source, self.category, self.indicator))

    @property
    def _own(self) -> list[str]:
        """The columns of the inputs that are values."""
        return [name for name, flag in zip(self.source, self.indicator, strict=True) if not flag]

    @property
    def _flagged(self) -> list[str]:
        """The columns of the inputs that tell whether a value is missing."""
        return [name for name, flag in zip(self.source, self.indicator, strict=True) if flag]

    def apply(self, values: Array) -> Array:
        """Fill and scale the numbers, and tell which of them are missing where that is an input too."""
        told = np.isnan(values[:, [self._own.index(name) for name in self._flagged]])
        filled = np.where(np.isnan(values), self.missing[: values.shape[1]], values)
        scaled: Array = (np.concatenate([filled, told], axis=1) - np.asarray(self.mean)) / np.asarray(self.deviation)
        return scaled

    def values(self, table: Any, where: str) -> Array:
        """Return numbers of another table's columns, not yet filled and scaled; its further columns do not matter."""
        return np.concatenate([self._column(table, name, where) for name in dict.fromkeys(self._own)], axis=1)

    def _column(self, table: Any, name: str, where: str) -> Array:
        if name not in table.column_names:
            raise HansaError(f"There is no column '{name}' in {where}.{did_you_mean(name, table.column_names)}")
        entries = zip(self.source, self.category, self.indicator, strict=True)
        known = [text for column, text, flag in entries if column == name and not flag]
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
