"""Predictions for files: samples read as the training data was read, and their classes or real targets."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors
import safetensors.numpy

from hansa.data.dataset import Array
from hansa.data.labels import plain
from hansa.data.sources.files import existing
from hansa.data.sources.images import ENDINGS
from hansa.data.sources.npz import Archive
from hansa.data.sources.table import TableSource
from hansa.deploy.model import DeployedModel
from hansa.errors import HansaError, require
from hansa.io.npy import read_npy
from hansa.io.pictures import pixels
from hansa.lazy import torch
from hansa.metrics.pieces import RMSE


@dataclass(frozen=True, eq=False)
class LoadedSamples:
    """The samples of a file: a name for each, inputs, and perhaps labels."""

    x: Array
    labels: Array | None = None
    names: Sequence[str] | None = None  # else samples are numbered

    def named(self, count: int) -> Sequence[str]:
        """Return a name for each of so many samples."""
        return self.names or [str(row) for row in range(count)]


class Prediction(Protocol):
    """A model's prediction for one sample."""

    def told(self) -> dict[str, Any]:
        """Return it as columns of a table."""
        ...


@dataclass(frozen=True)
class ClassPrediction:
    """The most probable class of one sample."""

    row: str
    name: str  # of the class
    probability: float
    label: str | None = None

    def told(self) -> dict[str, Any]:
        """Return it as columns of a table."""
        row = {"row": self.row, "class": self.name, "probability": self.probability}
        return row if self.label is None else {**row, "label": self.label}


@dataclass(frozen=True)
class RealPrediction:
    """Real targets of one sample, by name, and the true ones where the file has them."""

    row: str
    targets: Mapping[str, float]
    labels: Mapping[str, float] | None = None

    def told(self) -> dict[str, Any]:
        """Return it as columns of a table, named after the targets."""
        true = {f"{name}_label": value for name, value in (self.labels or {}).items()}
        return {"row": self.row, **self.targets, **true}


@dataclass(frozen=True)
class Predictions:
    """Predictions of every sample of a file, and how good they are where the file has labels."""

    rows: tuple[Prediction, ...]
    accuracy: float | None = None  # of classes
    rmse: float | None = None  # of real targets, the mean over them where there are several

    def csv(self) -> str:
        """Return them as a CSV table."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.rows[0].told()), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.told() for row in self.rows)
        return text.getvalue()


def predict_file(model: DeployedModel, path: str | Path) -> Predictions:
    """Predict for the samples in a file of arrays, a table, an image, or a folder of images."""
    file = existing(str(path), "file")
    held = read_samples(model, file)
    return _real(model, held, file) if model.real else _classes(model, held, file)


def _classes(model: DeployedModel, held: LoadedSamples, file: Path) -> Predictions:
    chances, known = model.probabilities(held.x), model.class_names
    chosen = chances.argmax(1)
    truth = None if held.labels is None else label_numbers(held.labels, known, file)
    _check_count(truth, len(chosen), file)
    rows = tuple(
        ClassPrediction(name, known[best], float(chances[row, best]), None if truth is None else known[truth[row]])
        for row, (name, best) in enumerate(zip(held.named(len(chosen)), chosen, strict=True))
    )
    return Predictions(rows, accuracy=None if truth is None else float((chosen == truth).mean()))


def _real(model: DeployedModel, held: LoadedSamples, file: Path) -> Predictions:
    found, targets = model.predict(held.x), model.target_names
    truth = None if held.labels is None else real_targets(held.labels, len(targets), file)
    _check_count(truth, len(found), file)

    def by_name(values: Array) -> dict[str, float]:
        return dict(zip(targets, values.tolist(), strict=True))

    rows = tuple(
        RealPrediction(name, by_name(found[row]), None if truth is None else by_name(truth[row]))
        for row, name in enumerate(held.named(len(found)))
    )
    return Predictions(rows, rmse=None if truth is None else _rmse(found, truth))


def _rmse(found: Array, truth: Array) -> float:
    return RMSE().one(torch.from_numpy(found), torch.from_numpy(truth))


def _check_count(truth: Array | None, count: int, file: Path) -> None:
    require(truth is None or len(truth) == count, f"'{file}' has {count} samples and another number of labels.")


def read_samples(model: DeployedModel, file: Path) -> LoadedSamples:
    """Read the samples of a file, told by its ending; a model of tables takes one of any other as a table."""
    if is_table(model.card.table, file):
        return _table(model, file)
    if file.is_dir():
        return _images(model, file)
    if file.suffix.lower() not in READERS:
        known = ".npz, .npy, .safetensors, .csv, .parquet, an image, or a folder of images"
        raise HansaError(f"Samples cannot be read from '{file}'; give {known}.")
    return READERS[file.suffix.lower()](model, file)


def is_table(table: TableSource | None, file: Path) -> bool:
    """Tell whether a file is read as a training table was; one of the other kind of tables is refused."""
    ending = file.suffix.lower()
    if table is None or file.is_dir() or READERS.get(ending, _table) is not _table:
        return False
    says = f"The model was trained on {table.ending} tables, so it cannot read '{file}'; convert it."
    require(ending == table.ending or ending not in READERS, says)
    return True


def _archive(_: DeployedModel, file: Path) -> LoadedSamples:
    archive = Archive(str(file))
    labels = "y" if "x" in archive else "y_train"  # an archive may have both names of samples, as it does for a source
    return LoadedSamples(archive.need("x", "x_train"), archive.first(labels))


def _array(_: DeployedModel, file: Path) -> LoadedSamples:
    return LoadedSamples(read_npy(file))


def _tensors(_: DeployedModel, file: Path) -> LoadedSamples:
    try:
        found = safetensors.numpy.load_file(file)
    except Exception as error:  # the library raises errors of many kinds over damaged files
        raise HansaError(f"'{file}' is not a readable .safetensors file of plain numbers.") from error
    x = found.get("x", next(iter(found.values())) if len(found) == 1 else None)
    if x is None:
        raise HansaError(
            f"'{file}' must hold the samples in a tensor 'x'. Got: {', '.join(sorted(found)) or 'nothing'}."
        )
    return LoadedSamples(x, found.get("y"))


def _table(model: DeployedModel, file: Path) -> LoadedSamples:
    source, encoding = model.card.table, model.encoding()
    if source is None or (encoding is None and source.rows == "numbers"):
        raise HansaError(f"The model was not trained on a table, so it cannot read '{file}'; give arrays or images.")
    return LoadedSamples(*source.samples_of(file, encoding))


def _images(model: DeployedModel, file: Path) -> LoadedSamples:
    """Read one image, or all below a folder; folders named after classes are labels."""
    card, root = model.card, file if file.is_dir() else file.parent
    files = [file] if file.is_file() else sorted(one for one in file.rglob("*") if one.suffix.lower() in ENDINGS)
    require(len(files) > 0, f"The folder '{file}' has no images.")
    grey = not card.features and len(card.input_shape) == 3 and card.input_shape[0] == 1
    found = [_pixels(one, card.size, grey) for one in files]
    odd = next((place for place, one in enumerate(found) if one.shape != found[0].shape), None)
    if odd is not None:
        raise HansaError(f"'{files[0]}' and '{files[odd]}' are images of different sizes; bring all to one size.")
    folders = [one.parent.name for one in files]
    named = not model.real and file.is_dir() and set(folders) <= set(model.class_names)
    names = [one.relative_to(root).as_posix() for one in files]
    return LoadedSamples(np.stack(found), np.asarray(folders) if named else None, names)


def _pixels(file: Path, size: int | None, grey: bool) -> Array:
    from PIL import Image

    colours = pixels(file, size, f"The image '{file}'")
    return np.asarray(Image.fromarray(colours).convert("L")) if grey else colours


READERS: Mapping[str, Callable[[DeployedModel, Path], LoadedSamples]] = {
    ".npz": _archive,
    ".npy": _array,
    ".safetensors": _tensors,
    ".csv": _table,
    ".parquet": _table,
    **dict.fromkeys(ENDINGS, _images),
}


def label_numbers(labels: Array, class_names: Sequence[str], file: Path) -> Array:
    """Return labels as class numbers: by name, or where none of a file's numbers is a name, by place."""
    found = plain(labels, f"The labels of '{file}'")
    place = {name: number for number, name in enumerate(class_names)}
    texts = [str(label) for label in found]
    if found.dtype.kind != "U" and not place.keys() & set(texts):
        place = {str(number): number for number in range(len(class_names))}
    odd = next((row for row, text in enumerate(texts) if text not in place), None)
    if odd is not None:
        raise HansaError(f"'{file}' has the label '{texts[odd]}' for sample {odd}, which is no class of the model.")
    return np.asarray([place[text] for text in texts])


def real_targets(labels: Array, columns: int, file: Path) -> Array:
    """Return real targets as samples × columns."""
    require(np.ndim(labels) > 0, f"The targets of '{file}' are a single value; give {columns} for every sample.")
    table = np.asarray(labels).reshape(len(labels), -1)
    fits = table.dtype.kind in "iuf" and table.shape[1] == columns and bool(np.isfinite(table).all())
    require(fits, f"The targets of '{file}' must be numbers, {columns} for every sample.")
    return table.astype(np.float32)
