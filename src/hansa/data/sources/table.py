"""Tables: CSV and Parquet files, one of them or one for every site."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from hansa.data.checks import one_of, share, whole
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.labels import class_numbers, names, real_numbers, require_two_classes
from hansa.data.sources.columns import encode
from hansa.data.sources.encoding import Encoding, EncodingRule
from hansa.data.sources.files import client_names, several
from hansa.data.split import strata, stratified_cut
from hansa.data.targets import KINDS, Classes, Kind, Real, Target
from hansa.errors import HansaError, did_you_mean, require
from hansa.seeds import numpy_generator


@dataclass(frozen=True)
class TableSource(ABC):
    """The common part of CSV and Parquet.

    `path` may be a file, a folder, a pattern or several files; then each file is a client unless `client` names a
    column.  Text columns become one column per category.  The data set holds the numbers as they are, with the rule by
    which they are filled and scaled: from the rows that all clients train on, once test and validation rows are cut.
    """

    path: str | tuple[str, ...]
    label: str | tuple[str, ...]  # the column to predict; several where the target is real
    client: str | None = None  # the column that names clients
    domain: str | None = None  # the column that names domains
    drop: tuple[str, ...] = ()  # columns a model must not see
    missing: Literal["error", "mean", "zero", "drop"] = "error"  # what becomes of missing values; 'drop' drops the row
    scale: Literal["standard", "none"] = "standard"
    negative: str | None = None  # this label against all others, as two classes
    max_categories: int = 100
    test_fraction: float = 0.0  # set aside as a global test set, the same for every seed
    target: Kind | None = None  # what numbers in the label column are; text and truth values are classes

    ending: ClassVar[str]  # of the files' names

    def __post_init__(self) -> None:
        one_of(self, "missing", ("error", "mean", "zero", "drop"))
        one_of(self, "scale", ("standard", "none"))
        whole(self, "max_categories")
        share(self, "test_fraction", zero=True)
        one_of(self, "target", KINDS, optional=True)
        real = self.target == "real"
        fits = isinstance(self.label, str) or (real and len(self.label) > 0)
        require(fits, f"A list in 'label' needs column names and target = \"real\". Got target = {self.target!r}.")
        require(not real or self.negative is None, "A real target has no 'negative' class; leave 'negative' out.")

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns."""
        return (self.label,) if isinstance(self.label, str) else self.label

    def samples_of(self, file: Path, encoding: Encoding) -> tuple[Array, Array | None]:
        """Return inputs and, where there are any, labels of another file of the same columns."""
        table, file_of = _join([file], [self._read(file)])
        place = _Place([file], file_of)
        values = encoding.values(table, f"the table '{file}'")
        good = self._check_missing(values, encoding.source, place)
        require(bool(good.all()), f"A value is missing in {place(int(np.argmin(good)))}; fill it or remove the row.")
        there = set(self.labels) <= set(table.column_names)
        return encoding.apply(values), self._labels(table, place) if there else None

    @abstractmethod
    def _read(self, file: Path) -> Any:
        """Read one file as an Arrow table."""

    def load(self) -> Dataset:
        """Read the table or tables."""
        files, each = several(self.path, self.ending, "table")
        table, file_of = _join(files, [self._read(file) for file in files])
        place = _Place(files, file_of)
        for setting, columns in self._named_columns().items():
            for column in columns:
                _require_column(table, column, setting, files[0])
        return self._dataset(table, place, np.asarray(client_names(files))[file_of] if each else None)

    def _named_columns(self) -> dict[str, tuple[str, ...]]:
        client = () if self.client is None else (self.client,)
        domain = () if self.domain is None else (self.domain,)
        return {"label": self.labels, "client": client, "domain": domain, "drop": self.drop}

    def _dataset(self, table: Any, place: _Place, by_file: Array | None) -> Dataset:
        aside = {column for columns in self._named_columns().values() for column in columns}
        labels = self._labels(table, place)
        self._check_target(table, place)
        self._check_negative(table, place)
        client = by_file if self.client is None else _values(table, self.client, "client", place)
        domain = None if self.domain is None else _values(table, self.domain, "domain", place)
        features = encode(table, [column for column in table.column_names if column not in aside], self.max_categories)
        good = self._check_missing(features.values, features.source, place)
        y, target = self._numbered(labels[good], place)
        whole_table = Dataset(
            Samples(features.values[good], y),
            target,
            client=None if client is None else names(client[good], "The client column"),
            domain=None if domain is None else names(domain[good], "The domain column"),
            rule=EncodingRule(features.source, features.category, self.missing, self.scale),
        )
        return whole_table if self.test_fraction == 0 else self._cut(whole_table)

    def _labels(self, table: Any, place: _Place) -> Array:
        """Return labels as in the table: text or whole numbers for classes, rows × columns of a real target."""
        if self.target == "real":
            return np.stack([_numbers(table, column, place) for column in self.labels], axis=1)
        labels = _values(table, self.labels[0], "label", place)
        if self.negative is None:
            return labels
        return np.where(labels.astype(str) == self.negative, self.negative, f"not {self.negative}")

    def _check_target(self, table: Any, place: _Place) -> None:
        """Require a target for a numeric label column: numbers are never guessed into classes."""
        numeric = _is_numeric(table.column(self.labels[0]).type)
        asks = f"The label column '{self.labels[0]}' of {place.files} holds numbers, which may be real or class names"
        known = self.target is not None or self.negative is not None or not numeric
        require(known, f'{asks}; set target = "real" or "classes".')

    def _numbered(self, labels: Array, place: _Place) -> tuple[Array, Target]:
        """Return labels as a data set holds them, and the target they stand for."""
        if self.target == "real":
            return real_numbers(labels, "The label of the table"), Real(self.labels)
        classes = None if self.negative is None else sorted((self.negative, f"not {self.negative}"))
        (numbers,), found = class_numbers([labels], classes, f"The label column '{self.labels[0]}'")
        if classes is None:
            require_two_classes(numbers, Classes(found), f"The label column '{self.labels[0]}' of {place.files}")
        return numbers, Classes(found)

    def _check_negative(self, table: Any, place: _Place) -> None:
        if self.negative is not None:
            labels = np.unique(_values(table, self.labels[0], "label", place).astype(str))
            require(
                self.negative in labels,
                f"The 'negative' label '{self.negative}' does not occur in column '{self.labels[0]}'."
                f"{did_you_mean(self.negative, labels)}",
            )

    def _check_missing(self, x: Array, source: tuple[str, ...], place: _Place) -> Array:
        """Return the mask of rows that stay."""
        bad = np.isnan(x)
        if self.missing == "error" and bad.any():
            column = int(np.flatnonzero(bad.any(axis=0))[0])
            row = int(np.flatnonzero(bad[:, column])[0])
            raise HansaError(
                f"The column '{source[column]}' has a missing, NaN or Inf value in {place(row)}; "
                "set 'missing' to 'mean', 'zero' or 'drop' to treat such values."
            )
        good: Array = np.ones(len(x), dtype=bool)
        if self.missing == "drop":
            good = np.logical_not(bad.any(axis=1))
        require(bool(good.any()), f"Every row of {place.files} has a missing value; set 'missing' to 'mean' or 'zero'.")
        return good

    def _cut(self, data: Dataset) -> Dataset:
        x, y, rng = data.train.x, data.train.y, numpy_generator(0, "table")
        train, test = stratified_cut(strata(y, data.target), self.test_fraction, rng)
        return replace(
            data,
            train=Samples(x[train], y[train]),
            test=Samples(x[test], y[test]),
            client=_rows(data.client, train),
            client_test=_rows(data.client, test),
            domain=_rows(data.domain, train),
        )


@dataclass(frozen=True)
class Csv(TableSource):
    """A CSV file with a header row, or several.  A file without one gets its column names from `columns`."""

    columns: tuple[str, ...] = ()  # names of the columns, where the files have no header row
    na: tuple[str, ...] = ()  # further ways to write a missing value, e.g. "?"
    delimiter: str = ","

    ending: ClassVar[str] = ".csv"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.delimiter) == 1, f"The 'delimiter' of Csv must be one character. Got {self.delimiter!r}.")

    def _read(self, file: Path) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        convert = csv.ConvertOptions()
        options = csv.ConvertOptions(null_values=[*convert.null_values, *self.na], strings_can_be_null=True)
        try:
            table = csv.read_csv(
                file,
                csv.ReadOptions(column_names=list(self.columns) or None),
                csv.ParseOptions(delimiter=self.delimiter),
                options,
            )
            table.column_names  # noqa: B018, names that are not UTF-8 are noticed only here
            return table
        except (pa.ArrowException, UnicodeDecodeError, OSError, ValueError) as error:
            raise HansaError(f"The file '{file}' cannot be read as a CSV table: {_sentence(error)}") from error


@dataclass(frozen=True)
class Parquet(TableSource):
    """A Parquet file, or several."""

    ending: ClassVar[str] = ".parquet"

    def _read(self, file: Path) -> Any:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            table = parquet.read_table(file)
            table.validate(full=True)  # numbers of a damaged file may point outside of it
            return table
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise HansaError(f"The file '{file}' cannot be read as a Parquet table: {_sentence(error)}") from error


class _Place:
    """The place where a row of the joined table came from."""

    def __init__(self, files: list[Path], file_of: Array):
        self._files, self._file_of = files, file_of
        self.files = f"'{files[0]}'" if len(files) == 1 else f"{len(files)} files beginning with '{files[0]}'"

    def __call__(self, row: int) -> str:
        number = int(self._file_of[row])
        first = int(np.flatnonzero(self._file_of == number)[0])
        return f"data row {row - first + 1} of '{self._files[number]}'"


def _join(files: list[Path], tables: list[Any]) -> tuple[Any, Array]:
    """Join all files into one table, with the file number of every row."""
    import pyarrow as pa

    columns = tables[0].column_names
    for file, table in zip(files, tables, strict=True):
        require(table.num_rows > 0, f"The table '{file}' has no rows.")
        require(
            len(set(table.column_names)) == len(table.column_names), f"The table '{file}' has two columns of one name."
        )
        odd = sorted(set(columns) ^ set(table.column_names))
        require(
            not odd,
            f"'{files[0]}' and '{file}' do not have the same columns ({', '.join(odd)} in one only); "
            "build clients with different columns by hansa.data.federation.federation_from_clients.",
        )
    try:
        joined = pa.concat_tables([table.select(columns) for table in tables], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise HansaError(f"A column holds numbers in one file and text in another: {_sentence(error)}") from error
    return joined, np.repeat(np.arange(len(files)), [table.num_rows for table in tables])


def _require_column(table: Any, column: str, setting: str, file: Path) -> None:
    if column not in table.column_names:
        raise HansaError(
            f"The {setting} column '{column}' is not in '{file}'.{did_you_mean(column, table.column_names)} "
            "If the file has no header row, name its columns with 'columns'."
        )


def _values(table: Any, column: str, what: str, place: _Place) -> Array:
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


def _require_plain(kind: Any, column: str, what: str, place: _Place) -> None:
    """Refuse a column whose values are neither numbers, truth values, dates nor text."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    odd = pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    says = f"The {what} column '{column}' of {place.files} is of type {kind}, which is neither number nor text"
    require(not odd, f"{says}; name another column.")


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _numbers(table: Any, column: str, place: _Place) -> Array:
    """Return a column of a real target as float64; every row must have a finite number."""
    import pyarrow as pa

    kind = table.column(column).type
    says = f"The label column '{column}' of {place.files} must hold numbers for a real target"
    require(_is_numeric(kind), f'{says}. Got {kind}; name another column or set target = "classes".')
    numbers: Array = table.column(column).cast(pa.float64(), safe=False).to_numpy()
    odd = np.flatnonzero(~np.isfinite(numbers))
    if len(odd):
        where = place(int(odd[0]))
        raise HansaError(f"The label column '{column}' has no finite number in {where}; give one or remove the row.")
    return numbers


def _rows(values: Array | None, chosen: Array) -> Array | None:
    return None if values is None else values[chosen]


def _sentence(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") + "."
