"""Pictures that a table lists: a row an image, with its label and perhaps its client, its domain and its split."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hansa.data.album import stack
from hansa.data.arrays import dataset_from_arrays
from hansa.data.checks import one_of, whole
from hansa.data.dataset import SCALES, Array, Dataset, Scale, picture
from hansa.data.labels import of_text
from hansa.data.late_rows import Inputs
from hansa.data.sources.files import existing, existing_file
from hansa.errors import HansaError, did_you_mean, require
from hansa.io.pictures import pixels
from hansa.task import ClientInputs

Table = Mapping[str, Sequence[str]]
CLIENT_COLUMNS = ("client", "user_id", "writer", "subject", "user")
_COLUMN = re.compile(r"\{([^{}\[\]]+)(?:\[(\d+)\])?\}")  # of a pattern: a column, or one sign of it


@dataclass(frozen=True)
class Manifest:
    """Pictures by a CSV or Parquet table: a column for the file, one for the label, and where there are any others.

    The published splits of federated vision data sets (`user_id`, `image_id`, `class`) are read as they are: `image`
    may be a pattern of columns and of single signs of them, `{id[0]}/{id}.jpg`, and `files` a JSON file that knows the
    names behind ids, as iNaturalist has it.
    """

    path: str
    image: str = "path"  # the column that names image files, or a pattern such as "{image_id}.jpg"
    label: str = "label"  # the column to predict
    client: str | None = None  # the column that names clients; else the first of CLIENT_COLUMNS that is there
    domain: str | None = None  # the column that names domains; else 'domain', where it is there
    split: str | None = None  # the column that says train or test; else 'split', where it is there
    test_path: str | None = None  # another table, of the test images
    root: str | None = None  # the folder that image files are in; else the table's own
    files: str | None = None  # a JSON file of `images`, each with an `id` and a `file_name`: 'image' is then an id
    group: str | None = None  # the column of what test cuts keep together; else 'group', where it is there
    size: int | None = None  # pixels square to resize to; images of different sizes need it
    scale: Scale = "unit"  # [0, 1], or "standard": channels of mean 0 and deviation 1

    def __post_init__(self) -> None:
        whole(self, "size", optional=True)
        one_of(self, "scale", SCALES)
        both = self.split is not None and self.test_path is not None
        require(not both, "A manifest has a 'split' column or a 'test_path', not both: leave out one of them.")

    def load(self) -> Dataset:
        """Read the tables, then every image that they list."""
        table = _read(existing_file(self.path, "manifest"))
        held = None if self.test_path is None else _read(existing_file(self.test_path, "test manifest"))
        note: tuple[str, ...] = ()
        split = None if held is not None else self._optional(table, "split", self.split, "split")
        if split is not None:
            chosen = np.char.lower(np.asarray(split))
            note = self._left_out(chosen)
            held = _rows(table, chosen == "test") if (chosen == "test").any() else None
            table = _rows(table, chosen == "train")
        names = {} if self.files is None else _file_names(existing_file(self.files, "list of files"))
        x, y, client = self._samples(table, names)
        domain = self._optional(table, "domain", self.domain, "domain")
        x_test, y_test, client_test = (None, None, None) if held is None else self._samples(held, names)
        group = self._optional(table, "group", self.group, "group")
        found = dataset_from_arrays(x, y, client, x_test, y_test, client_test, domain, scale=self.scale, group=group)
        return replace(found, notes=(*found.notes, *note))

    def glance(self, client: str) -> ClientInputs | None:
        """Return what samples are like by the size that is set, or by the first image of the table."""
        if self.size is not None:
            return picture(client, (self.size, self.size, 3))
        names = {} if self.files is None else _file_names(existing_file(self.files, "list of files"))
        first = self._files(_rows(_read(existing_file(self.path, "manifest")), np.ones(1)), names)[1][0]
        return picture(client, pixels(first, None, f"The image '{first}'").shape)

    def _left_out(self, split: Array) -> tuple[str, ...]:
        """Return a note on rows that are neither for training nor for testing."""
        known = {"train", "test", "val", "valid", "validation"}
        odd = sorted(set(split.tolist()) - known)
        says = f"The split column of '{self.path}' must say train or test"
        require(not odd, f"{says}. Got '{odd[0] if odd else ''}'.")
        require("train" in split, f"{says}, and no row says train.")
        rest = int((~np.isin(split, ("train", "test"))).sum())
        says = (
            f"{rest} rows of '{Path(self.path).name}' are for validation and left out; data.test.validation cuts some."
        )
        return (says,) if rest else ()

    def _samples(self, table: Table, names: Mapping[str, str]) -> tuple[Inputs, Array, Array | None]:
        y = of_text(self._column(table, "label", self.label))
        root, images = self._files(table, names)
        lost = [one for one in images if not one.is_file()]
        says = f"{len(lost)} of {len(images)} images that '{self.path}' lists are not in '{root}', such as"
        require(not lost, f"{says} '{lost[0].relative_to(root) if lost else ''}': set 'root', or correct 'image'.")
        client = self._optional(table, "client", self.client, *CLIENT_COLUMNS)
        x = stack(images, self.size, [f"The image '{one}'" for one in images])
        return x, y, client

    def _files(self, table: Table, names: Mapping[str, str]) -> tuple[Path, list[Path]]:
        """Return the folder of the images, and the files that a table lists."""
        root = existing(self.root, "image folder") if self.root is not None else Path(self.path).expanduser().parent
        return root, [root / names.get(one, one) for one in self._images(table)]

    def _images(self, table: Table) -> Sequence[str]:
        if "{" not in self.image:
            return self._column(table, "image", self.image)
        columns = {name: self._column(table, "image", name) for name, _ in _COLUMN.findall(self.image)}
        require(bool(columns), f"The 'image' pattern '{self.image}' names no column: write '{{COLUMN}}' in it.")

        def filled(row: int) -> str:
            def value(match: re.Match[str]) -> str:
                text = columns[match[1]][row]
                return text if match[2] is None else text[int(match[2]) : int(match[2]) + 1]

            return _COLUMN.sub(value, self.image)

        return [filled(row) for row in range(len(next(iter(columns.values()))))]

    def _column(self, table: Table, setting: str, name: str) -> Sequence[str]:
        if name not in table:
            raise HansaError(f"The {setting} column '{name}' is not in '{self.path}'.{did_you_mean(name, table)}")
        empty = next((row for row, value in enumerate(table[name]) if not value), None)
        says = f"The {setting} column '{name}' of '{self.path}' has no value in data row {(empty or 0) + 1}"
        require(empty is None, f"{says}; give one or remove the row.")
        return table[name]

    def _optional(self, table: Table, setting: str, name: str | None, *usual: str) -> Array | None:
        """Return a column that is named, or one of the usual ones where it is there; test tables may lack clients."""
        found = name if name is not None else next((one for one in usual if one in table), None)
        if found is None or (setting == "client" and found not in table and self.test_path is not None):
            return None
        return np.asarray(self._column(table, setting, found))


def _read(file: Path) -> Table:
    """Read a table as text: an id that is all digits keeps its zeros."""
    return _parquet(file) if file.suffix.lower() in (".parquet", ".pq") else _csv(file)


def _csv(file: Path) -> Table:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            header, *rows = [row for row in csv.reader(opened) if row] or [[]]
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise HansaError(f"The manifest '{file}' cannot be read as a CSV table: {error}.") from error
    require(len(rows) > 0, f"The manifest '{file}' has no rows.")
    odd = next((place for place, row in enumerate(rows) if len(row) != len(header)), None)
    says = f"Data row {(odd or 0) + 1} of the manifest '{file}' has not as many columns as its header"
    require(odd is None, f"{says} ({len(header)}); correct it.")
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def _parquet(file: Path) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(file)
        table.validate(full=True)  # numbers of a damaged file may point outside of it
    except (pa.ArrowException, OSError, ValueError) as error:
        raise HansaError(f"The manifest '{file}' cannot be read as a Parquet table: {error}.") from error
    require(table.num_rows > 0, f"The manifest '{file}' has no rows.")
    return {
        name: ["" if value is None else str(value) for value in table.column(name).to_pylist()]
        for name in table.column_names
    }


def _rows(table: Table, chosen: Array) -> Table:
    places = np.flatnonzero(chosen).tolist()
    return {name: [column[place] for place in places] for name, column in table.items()}


def _file_names(file: Path) -> dict[str, str]:
    """Return the names of image files by id."""
    try:
        images = json.loads(file.read_text(encoding="utf-8"))["images"]
        return {str(image["id"]): str(image["file_name"]) for image in images}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        says = f"The list of files '{file}' must be JSON with 'images', each with an 'id' and a 'file_name'"
        raise HansaError(f"{says}: {type(error).__name__}: {error}.") from error
