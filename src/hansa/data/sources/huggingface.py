"""A Hugging Face data set that was saved to disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hansa.data.album import stack
from hansa.data.arrays import dataset_from_arrays
from hansa.data.checks import one_of, whole
from hansa.data.dataset import SCALES, Array, Dataset, Scale, picture
from hansa.data.late_rows import Inputs
from hansa.data.sources.files import existing
from hansa.data.targets import KINDS, Kind
from hansa.errors import HansaError, did_you_mean, require
from hansa.io.pictures import pixels
from hansa.task import ClientInputs


class Encoded(Sequence[object]):
    """The pictures of a column as they are stored: bytes, or files of them."""

    def __init__(self, split: Any, column: str):
        import datasets

        self.rows, self.column = split.cast_column(column, datasets.Image(decode=False)), column

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        stored = self.rows[place][self.column]
        return Path(stored["path"]) if stored["bytes"] is None else stored["bytes"]


@dataclass(frozen=True)
class HuggingFace:
    """A data set written by `save_to_disk`: a column of images, vectors or text, a label column, perhaps clients.

    Text stays text, for a text encoder to read; with a `length` it becomes that many UTF-8 bytes as token numbers, cut
    or padded with 0.
    """

    path: str
    input: str = "image"  # the column a model reads
    label: str = "label"
    client: str | None = None
    domain: str | None = None
    train: str = "train"  # the split to learn from, where there are several
    test: str | None = "test"  # the split to test on, where it exists
    size: int | None = None  # images are resized to so many pixels square
    length: int | None = None  # bytes of a text; None leaves it to data.features
    target: Kind | None = None  # what floats in the label column are; whole numbers and text are classes unless "real"
    scale: Scale = "unit"  # of images: [0, 1], or "standard", channels of mean 0 and deviation 1

    def __post_init__(self) -> None:
        one_of(self, "target", KINDS, optional=True)
        whole(self, "size", optional=True)
        one_of(self, "scale", SCALES)
        whole(self, "length", optional=True)

    def load(self) -> Dataset:
        """Read both splits; class names come from the label column where it has them."""
        train, test = self._splits(_open(self.path))
        tokens = self.length is not None and _is_text(train, self._column(train, self.input))
        names = getattr(train.features[self._column(train, self.label)], "names", None)
        return dataset_from_arrays(
            self._inputs(train),
            self._values(train, self.label),
            self._values(train, self.client),
            None if test is None else self._inputs(test),
            None if test is None else self._values(test, self.label),
            None if test is None else self._values(test, self.client),
            self._values(train, self.domain),
            names,
            tokens=tokens,
            target=self.target,
            scale=self.scale,
        )

    def glance(self, client: str) -> ClientInputs | None:
        """Return what samples are like by the first one; texts are no inputs yet."""
        split = self._splits(_open(self.path))[0]
        column = self._column(split, self.input)
        if _is_text(split, column) or not len(split):
            return None
        if type(split.features[column]).__name__ != "Image":
            return ClientInputs(client, np.asarray(split.with_format("numpy")[:1][column]).shape[1:])
        shape = pixels(Encoded(split, column)[0], self.size, f"'{self.path}' (image 0)").shape
        return picture(client, shape)

    def _splits(self, found: Any) -> tuple[Any, Any]:
        if not isinstance(found, dict):
            return found, None
        require(self.train in found, f"'{self.path}' has no split '{self.train}'.{did_you_mean(self.train, found)}")
        return found[self.train], found.get(self.test) if self.test is not None else None

    def _column(self, split: Any, name: str) -> str:
        require(
            name in split.column_names, f"'{self.path}' has no column '{name}'.{did_you_mean(name, split.column_names)}"
        )
        return name

    def _values(self, split: Any, name: str | None) -> Array | None:
        if name is None:
            return None
        values = list(split[self._column(split, name)])
        missing = next((row for row, value in enumerate(values) if value is None), None)
        require(missing is None, f"The column '{name}' of '{self.path}' has no value in row {missing}.")
        return np.asarray(values)

    def _inputs(self, split: Any) -> Inputs:
        column = self._column(split, self.input)
        if _is_text(split, column):
            texts = [str(text) for text in split[column]]
            return np.asarray(texts) if self.length is None else _bytes(texts, self.length)
        if type(split.features[column]).__name__ == "Image":
            return stack(Encoded(split, column), self.size, f"'{self.path}'")
        try:
            return np.asarray(split.with_format("numpy")[column][:])
        except ValueError as error:
            raise HansaError(f"The column '{column}' of '{self.path}' has rows of different lengths.") from error


def _open(path: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise HansaError("The huggingface source needs datasets: pip install 'hansa[huggingface]'.") from error
    folder = existing(path, "data set folder")
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:  # what a damaged folder makes the library raise is not told anywhere
        raise HansaError(f"'{path}' is not a data set written by datasets' save_to_disk.") from error


def _is_text(split: Any, column: str) -> bool:
    return getattr(split.features[column], "dtype", None) in ("string", "large_string")


def _bytes(texts: list[str], length: int) -> Array:
    """Return UTF-8 bytes in rows of one length; 0 pads, and occurs in no text."""
    rows = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        code = np.frombuffer(text.encode()[:length], dtype=np.uint8)
        row[: len(code)] = code
    return rows
