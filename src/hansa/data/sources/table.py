"""Tables: CSV and Parquet files, one of them or one for every site."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from hansa.data.checks import one_of, share, whole
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.labels import class_numbers, names, real_numbers, require_two_classes
from hansa.data.sources.cells import (
    Place,
    is_numeric,
    join,
    numbers_of,
    refuse_column,
    some_rows,
    times_of,
    values_of,
)
from hansa.data.sources.columns import Features, beside, encode
from hansa.data.sources.encoding import Encoding, EncodingRule, Missing
from hansa.data.sources.files import client_names, several
from hansa.data.sources.sites import as_texts, blanked, has_value, refuse_free_text, shared_columns
from hansa.data.sources.table_files import csv_columns, parquet_columns, read_csv, read_parquet
from hansa.data.split import strata, stratified_cut
from hansa.data.targets import KINDS, Classes, Kind, Real, Target
from hansa.errors import HansaError, did_you_mean, require
from hansa.seeds import numpy_generator
from hansa.task import ClientInputs, Column


@dataclass(frozen=True)
class TableSource(ABC):
    """The common part of CSV and Parquet.

    `path` may be a file, a folder, a pattern or several files; then each file is a client unless `client` names a
    column.  Text columns become one column per category.  The data set holds the numbers as they are, with the rule by
    which they are filled and scaled: from the rows that all clients train on, once test and validation rows are cut.

    `columns_of` says whose columns those are.  `all`: every file has the same.  `union`: all that some file has,
    missing where it has not.  `common`: those with a value in every file.  `file`: every client has its own, filled and
    scaled by the rows that it trains on; a column without a value in them, or always the same, is none of its columns.
    """

    path: str | tuple[str, ...]
    label: str | tuple[str, ...]  # the column to predict; several where the target is real
    client: str | None = None  # the column that names clients
    domain: str | None = None  # the column that names domains
    drop: tuple[str, ...] = ()  # columns a model must not see
    missing: Missing = "error"  # what becomes of missing values; 'drop' drops the row, 'indicator' is the mean, told
    scale: Literal["standard", "none"] = "standard"
    negative: str | None = None  # this label against all others, as two classes
    max_categories: int = 100
    test_fraction: float = 0.0  # set aside as a global test set, the same for every seed
    target: Kind | None = None  # what numbers in the label column are; text and truth values are classes
    columns_of: Literal["all", "file", "union", "common"] = "all"
    na_of: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict, hash=False)  # by column: means missing
    classes: tuple[str, ...] = ()  # all classes there are, where another label is a mistake
    rows: Literal["numbers", "text"] = "numbers"  # 'text': "column: value; …" for a text encoder to read
    group: str | None = None  # the column of what test cuts keep together (data.test.by), such as a patient
    time: str | None = None  # the column of when a row was taken, numbers or dates; a model sees neither

    ending: ClassVar[str]  # of the files' names

    def __post_init__(self) -> None:
        one_of(self, "missing", get_args(Missing))
        one_of(self, "columns_of", ("all", "file", "union", "common"))
        one_of(self, "rows", ("numbers", "text"))
        one_of(self, "scale", ("standard", "none"))
        whole(self, "max_categories")
        share(self, "test_fraction", zero=True)
        one_of(self, "target", KINDS, optional=True)
        real = self.target == "real"
        fits = isinstance(self.label, str) or (real and len(self.label) > 0)
        require(fits, f"A list in 'label' needs column names and target = \"real\". Got target = {self.target!r}.")
        require(not real or self.negative is None, "A real target has no 'negative' class; leave 'negative' out.")
        named = bool(self.classes) and (real or self.negative is not None)
        require(
            not named, "A list of 'classes' is for a label column of class names; leave out 'negative' and \"real\"."
        )
        filled = self.columns_of != "union" or self.rows == "text" or self.missing in ("mean", "zero", "indicator")
        text = self.rows == "numbers" or self.columns_of != "common"
        require(text, 'Rows as text have the columns of their file: leave out columns_of = "common".')
        says = 'With columns_of = "union" values are missing wherever a file has not all columns'
        require(filled, f"{says}: set 'missing' to 'mean', 'zero' or 'indicator'. Got '{self.missing}'.")

    @property
    def apart(self) -> bool:
        """Whether clients have columns of their own, so inputs of different widths."""
        return self.columns_of == "file" and self.rows == "numbers"

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns."""
        return (self.label,) if isinstance(self.label, str) else self.label

    def samples_of(self, file: Path, encoding: Encoding | None) -> tuple[Array, Array | None]:
        """Return inputs and, where there are any, labels of another file of the same columns."""
        table = self.table_of(file)
        place = Place([file], np.zeros(table.num_rows, dtype=np.int64))
        labels = self._labels(table, place) if set(self.labels) <= set(table.column_names) else None
        if encoding is None:
            return self._texts([table]), labels
        values = encoding.values(table, f"the table '{file}'")
        good = self._check_missing(values, tuple(column.name for column in encoding.columns), place)
        require(bool(good.all()), f"A value is missing in {place(int(np.argmin(good)))}; fill it or remove the row.")
        return encoding.apply(values), labels

    def joined_by(self, file: Path, classes: tuple[str, ...]) -> Dataset:
        """Return the table of a site that joins later, with whatever columns it has; `classes` are all there are."""
        table = self.table_of(file)
        there, listed = set(table.column_names), self.target != "real" and self.negative is None
        told = (self.client, self.domain, self.group, self.time, *self.drop)  # of which it need not have any
        own = replace(
            self,
            path=str(file),
            client=None,
            domain=None,
            group=None,
            time=None,
            drop=tuple(column for column in told if column is not None and column in there),
            na_of={column: marks for column, marks in self.na_of.items() if column in there},
            columns_of="file",
            test_fraction=0,
            classes=classes if listed else (),
        )
        own._check_columns([file], [table])
        return own._dataset([file], [table], Place([file], np.zeros(table.num_rows, dtype=np.int64)), joins=True)

    def table_of(self, file: Path) -> Any:
        """Read one file, with nothing in the place of values that mean missing."""
        table = self._read(file)
        require(table.num_rows > 0, f"The table '{file}' has no rows: leave it out.")
        twice = next((name for name in table.column_names if table.column_names.count(name) > 1), None)
        require(twice is None, f"The table '{file}' has two columns of one name, '{twice}': rename one.")
        for column, marks in self.na_of.items():
            if column in table.column_names:
                place = table.column_names.index(column)
                table = table.set_column(place, column, blanked(table.column(column), marks))
        return table

    @abstractmethod
    def _read(self, file: Path) -> Any:
        """Read one file as an Arrow table."""

    @abstractmethod
    def _header(self, file: Path) -> list[str]:
        """Read the names of one file's columns alone."""

    def headers(self) -> dict[Path, list[str]]:
        """Return by file the columns that models may see, without reading more than headers."""
        aside = set(itertools.chain(*self._named_columns().values()))
        files = several(self.path, self.ending, "table")[0]
        return {file: [name for name in self._header(file) if name not in aside] for file in files}

    def glance(self, client: str) -> ClientInputs | None:
        """Return what samples are like by the headers, before texts become a column for each category."""
        names = dict.fromkeys(itertools.chain(*self.headers().values())) if self.rows == "numbers" else {}
        return ClientInputs(client, (len(names),), tuple(map(Column, names))) if names else None

    def load(self) -> Dataset:
        """Read the table or tables."""
        files, each = several(self.path, self.ending, "table")
        tables = [self.table_of(file) for file in files]
        self._check_columns(files, tables)
        file_of = np.repeat(np.arange(len(files)), [table.num_rows for table in tables])
        by_file = np.asarray(client_names(files))[file_of] if each else None
        return self._dataset(files, tables, Place(files, file_of), by_file)

    def _named_columns(self) -> dict[str, tuple[str, ...]]:
        client = () if self.client is None else (self.client,)
        domain = () if self.domain is None else (self.domain,)
        group, time = (() if one is None else (one,) for one in (self.group, self.time))
        own = {"label": self.labels, "client": client, "domain": domain}
        return {**own, "group": group, "time": time, "drop": self.drop}

    def _check_columns(self, files: list[Path], tables: list[Any]) -> None:
        """Refuse files without the columns that the settings name; dropped ones need not be everywhere."""
        for setting, columns in {**self._named_columns(), "na_of": tuple(self.na_of)}.items():
            for column in columns:
                there = [column in table.column_names for table in tables]
                some = setting in ("drop", "na_of") and self.columns_of != "all" and any(there)
                if not (all(there) or some):
                    place = there.index(False)
                    refuse_column(tables[place], column, setting, files[place])

    def _dataset(
        self,
        files: list[Path],
        tables: list[Any],
        place: Place,
        by_file: Array | None = None,
        *,
        joins: bool = False,
    ) -> Dataset:
        """Return the tables as a data set; that of a site which joins others need not have all classes."""
        aside = {column for columns in self._named_columns().values() for column in columns}
        own = [[name for name in table.column_names if name not in aside] for table in tables]
        columns = shared_columns(self.columns_of, files, tables, own)
        named = [column for key, some in self._named_columns().items() if key != "drop" for column in some]
        table = join([one.select([*dict.fromkeys(named)]) for one in tables])
        tables = [one.select(some) for one, some in zip(tables, columns, strict=True)]
        features = join(tables) if self.columns_of != "file" and self.rows == "numbers" else None
        labels = self._labels(table, place)
        self._check_target(table, place)
        self._check_classes(table, place)
        if not joins:
            self._check_negative(table, place)
        client = by_file if self.client is None else values_of(table, self.client, "client", place)
        domain = None if self.domain is None else values_of(table, self.domain, "domain", place)
        group = None if self.group is None else values_of(table, self.group, "group", place)
        time = None if self.time is None else times_of(table, self.time, place)
        x, good, rule = self._inputs(files, tables, features, place)
        y, target = self._numbered(labels[good], place)
        whole_table = Dataset(
            Samples(x[good], y),
            target,
            client=None if client is None else names(client[good], "The client column"),
            domain=None if domain is None else names(domain[good], "The domain column"),
            rule=rule,
            group=some_rows(group, good),
            time=some_rows(time, good),
        )
        return whole_table if self.test_fraction == 0 else self._cut(whole_table)

    def _inputs(
        self, files: list[Path], tables: list[Any], joined: Any, place: Place
    ) -> tuple[Array, Array, EncodingRule | None]:
        """Return the inputs of all rows, which of the rows stay, and how the inputs will be filled and scaled."""
        if self.rows == "text":
            texts = self._texts(tables)
            return texts, np.ones(len(texts), dtype=bool), None
        if self.columns_of == "file":
            parts = [self._site(file, table) for file, table in zip(files, tables, strict=True)]
            features, good = beside([part for part, _ in parts]), np.concatenate([mask for _, mask in parts])
        else:
            features = encode(joined, joined.column_names, self.max_categories)
            good = self._check_missing(features.values, features.source, place)
        rule = EncodingRule(features.source, features.category, self.missing, self.scale, self.columns_of == "file")
        return features.values, good, rule

    def _site(self, file: Path, table: Any) -> tuple[Features, Array]:
        """Return the columns that have a value in a site's file as numbers, and the mask of rows that stay."""
        held = [name for name in table.column_names if has_value(table.column(name))]
        says = f"The site '{file.stem}' has no value in any of its columns"
        require(len(held) > 0, f"{says}, in '{file}': leave the file out.")
        features = encode(table, held, self.max_categories, f" of '{file}'")
        refuse_free_text(features, file)
        place = Place([file], np.zeros(table.num_rows, dtype=np.int64))
        return features, self._check_missing(features.values, features.source, place)

    def _texts(self, tables: list[Any]) -> Array:
        """Return every row as text, of the columns that have a value in it."""
        aside = {column for columns in self._named_columns().values() for column in columns}
        return np.asarray(
            [
                text
                for table in tables
                for text in as_texts(table.select([name for name in table.column_names if name not in aside]))
            ]
        )

    def _labels(self, table: Any, place: Place) -> Array:
        """Return labels as in the table: text or whole numbers for classes, rows × columns of a real target."""
        if self.target == "real":
            return np.stack([numbers_of(table, column, place) for column in self.labels], axis=1)
        labels = values_of(table, self.labels[0], "label", place)
        if self.negative is None:
            return labels.astype(str) if self.classes else labels
        return np.where(labels.astype(str) == self.negative, self.negative, f"not {self.negative}")

    def _check_target(self, table: Any, place: Place) -> None:
        """Require a target for a numeric label column: numbers are never guessed into classes."""
        numeric = is_numeric(table.column(self.labels[0]).type)
        asks = f"The label column '{self.labels[0]}' of {place.files} holds numbers, which may be real or class names"
        known = self.target is not None or self.negative is not None or bool(self.classes) or not numeric
        require(known, f'{asks}; set target = "real" or "classes".')

    def _numbered(self, labels: Array, place: Place) -> tuple[Array, Target]:
        """Return labels as a data set holds them, and the target they stand for."""
        if self.target == "real":
            return real_numbers(labels, "The label of the table"), Real(self.labels)
        classes = list(self.classes) or None
        if self.negative is not None:
            classes = sorted((self.negative, f"not {self.negative}"))
        (numbers,), found = class_numbers([labels], classes, f"The label column '{self.labels[0]}'")
        if classes is None:
            require_two_classes(numbers, Classes(found), f"The label column '{self.labels[0]}' of {place.files}")
        return numbers, Classes(found)

    def _check_classes(self, table: Any, place: Place) -> None:
        """Refuse a label that is none of the classes."""
        if self.classes:
            labels = self._labels(table, place)
            odd = np.flatnonzero(~np.isin(labels, self.classes))
            if len(odd):
                says = f"The label column '{self.labels[0]}' has '{labels[odd[0]]}' in {place(int(odd[0]))}"
                hint = did_you_mean(str(labels[odd[0]]), self.classes)
                raise HansaError(f"{says}, which is none of the 'classes'.{hint}")

    def _check_negative(self, table: Any, place: Place) -> None:
        """Refuse a negative label that never occurs."""
        if self.negative is not None:
            labels = np.unique(values_of(table, self.labels[0], "label", place).astype(str))
            require(
                self.negative in labels,
                f"The 'negative' label '{self.negative}' does not occur in column '{self.labels[0]}'."
                f"{did_you_mean(self.negative, labels)}",
            )

    def _check_missing(self, x: Array, source: tuple[str, ...], place: Place) -> Array:
        """Return the mask of rows that stay."""
        bad = np.isnan(x)
        if self.missing == "error" and bad.any():
            column = int(np.flatnonzero(bad.any(axis=0))[0])
            row = int(np.flatnonzero(bad[:, column])[0])
            raise HansaError(
                f"The column '{source[column]}' has a missing, NaN or Inf value in {place(row)}; "
                "set 'missing' to 'mean', 'indicator', 'zero' or 'drop' to treat such values."
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
            client=some_rows(data.client, train),
            client_test=some_rows(data.client, test),
            domain=some_rows(data.domain, train),
            group=some_rows(data.group, train),
            time=some_rows(data.time, train),
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
        return read_csv(file, self.columns, self.na, self.delimiter)

    def _header(self, file: Path) -> list[str]:
        return list(self.columns) or csv_columns(file, self.delimiter)


@dataclass(frozen=True)
class Parquet(TableSource):
    """A Parquet file, or several."""

    ending: ClassVar[str] = ".parquet"

    def _read(self, file: Path) -> Any:
        return read_parquet(file)

    def _header(self, file: Path) -> list[str]:
        return parquet_columns(file)
