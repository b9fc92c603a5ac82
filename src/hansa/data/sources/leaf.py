"""LEAF's JSON files: samples by user, in `train/` and `test/`, or in one folder of all data."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hansa.data.album import stack
from hansa.data.arrays import dataset_from_arrays
from hansa.data.checks import one_of, whole
from hansa.data.dataset import SCALES, Array, Dataset, Samples, Scale, picture
from hansa.data.labels import require_two_classes
from hansa.data.late_rows import Inputs
from hansa.data.sources.files import existing, several
from hansa.data.targets import Classes
from hansa.errors import HansaError, require
from hansa.task import ClientInputs

CHUNK = 2**16  # characters
_SAMPLES = re.compile(r'"x"\s*:\s*\[(?=\s*[^\s\]])\s*')  # a user's list of samples, where it has some


@dataclass(frozen=True)
class Leaf:
    """Samples by user, as LEAF's preprocessing writes them: `users`, and `user_data` with `x` and `y` of each.

    `path` is a file, a folder of files, or one with `train/` and `test/` (or `all_data/`) in it.  Numbers are features,
    or with a `shape` pictures of values in [0, 1]; texts with a single character each to predict are characters
    (Shakespeare), other texts are for a text encoder, and with `root` they name image files (CelebA).
    """

    path: str
    shape: tuple[int, ...] = ()  # of pictures: height and width, perhaps 3 colours
    column: int | None = None  # of samples that are lists of texts, which one to read (4 of Sentiment140)
    root: str | None = None  # the folder of the image files that samples name
    size: int | None = None  # pixels square to resize such images to
    scale: Scale = "unit"  # of pictures: [0, 1], or "standard": channels of mean 0 and deviation 1

    def __post_init__(self) -> None:
        whole(self, "size", optional=True)
        one_of(self, "scale", SCALES)
        good = not self.shape or (len(self.shape) in (2, 3) and min(self.shape) > 0)
        require(good, f"The 'shape' of Leaf must be height, width and perhaps 3 colours. Got {self.shape}.")

    def load(self) -> Dataset:
        """Read all users."""
        named = self._folder()
        parts = [_users(str(named))]
        if named.name == "train" and (named.parent / "test").is_dir():
            parts.append(_users(str(named.parent / "test")))
        client = [np.asarray([user for user, x, _ in part for _ in x]) for part in parts]
        x = [[self._one(sample) for _, xs, _ in part for sample in xs] for part in parts]
        y = [np.asarray([label for _, _, ys in part for label in ys]) for part in parts]
        if self.root is None and isinstance(x[0][0], str) and all(_single(one) for one in y):
            return _characters(x, y, client)
        inputs = [self._inputs(one) for one in x]
        test = (inputs[1], y[1], client[1]) if len(parts) > 1 else ()
        return dataset_from_arrays(inputs[0], y[0], client[0], *test, scale=self.scale)

    def glance(self, client: str) -> ClientInputs | None:
        """Return what samples are like by the settings, or by the first sample; texts are no inputs yet."""
        if self.root is not None:
            return None if self.size is None else picture(client, (self.size, self.size, 3))
        if self.shape:
            return picture(client, self.shape)
        if self.column is not None:
            return None
        first = _first(several(str(self._folder()), ".json", "LEAF file")[0][0])
        with suppress(ValueError):  # of lists that are not all of one length
            return ClientInputs(client, np.shape(first)) if isinstance(first, list) else None
        return None

    def _folder(self) -> Path:
        """Return the file or folder of the samples to train on."""
        root = existing(self.path, "LEAF data")
        below = root / "data" if (root / "data").is_dir() else root
        return next((below / name for name in ("train", "all_data") if (below / name).is_dir()), below)

    def _one(self, sample: Any) -> Any:
        if self.column is None:
            return sample
        good = isinstance(sample, list) and -len(sample) <= self.column < len(sample)
        require(good, f"The 'column' of Leaf is {self.column}, and samples of '{self.path}' are no such lists.")
        return sample[self.column]

    def _inputs(self, x: Sequence[Any]) -> Inputs:
        if self.root is not None:
            folder = existing(self.root, "image folder")
            files = [folder / str(name) for name in x]
            return stack(files, self.size, [f"The image '{file}'" for file in files])
        try:
            values = np.asarray(x)
        except ValueError as error:
            says = f"The samples of '{self.path}' are not all of one length"
            raise HansaError(f"{says}; for lists of texts set 'column'.") from error
        if not self.shape:
            return values
        fits = values.dtype.kind in "iuf" and values[0].size == int(np.prod(self.shape))
        require(fits, f"Samples of {values[0].size} numbers make no pictures of shape {self.shape}: correct 'shape'.")
        inside = bool(((values >= 0) & (values <= 1)).all())
        require(inside, f"With a 'shape', values must lie in [0, 1]. '{self.path}' has others: leave 'shape' out.")
        pictures: Array = np.rint(values.reshape(len(values), *self.shape) * 255).astype(np.uint8)
        return pictures


def _first(file: Path) -> Any:
    """Return the first sample of a file, of which no more is read; None where there is none."""
    text = ""
    with file.open(encoding="utf-8", errors="replace") as stream:
        while chunk := stream.read(CHUNK):
            text += chunk
            if found := _SAMPLES.search(text):
                with suppress(ValueError):  # of a sample that goes on in the next chunk
                    return json.JSONDecoder().raw_decode(text, found.end())[0]
    return None


def _users(path: str) -> list[tuple[str, list[Any], list[Any]]]:
    """Return name, inputs and labels of every user with samples."""
    found, seen = [], set[str]()
    for file in several(path, ".json", "LEAF file")[0]:
        for user, own in _read(file):
            require(user not in seen, f"The user '{user}' is in two LEAF files, the second of them '{file}'.")
            seen.add(user)
            if own[0]:
                found.append((user, *own))
    require(len(found) > 0, f"No user of '{path}' has samples.")
    return found


def _read(file: Path) -> list[tuple[str, tuple[list[Any], list[Any]]]]:
    says = f"The LEAF file '{file}' must be JSON with 'users' and 'user_data', lists 'x' and 'y' of each"
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        data = [(str(user), (table["user_data"][user]["x"], table["user_data"][user]["y"])) for user in table["users"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HansaError(f"{says}: {type(error).__name__}: {error}.") from error
    for user, (x, y) in data:
        good = isinstance(x, list) and isinstance(y, list) and len(x) == len(y)
        require(good, f"{says}, of one length; those of user '{user}' are not.")
    return data


def _single(y: Array) -> bool:
    """Tell whether all labels are single characters of text, and not only digits."""
    return y.dtype == np.dtype("<U1") and not np.char.isdigit(y).all()


def _characters(x: Sequence[Sequence[str]], y: Sequence[Array], client: Sequence[Array]) -> Dataset:
    """Return next-character prediction: texts of one length as numbers of characters."""
    lengths = {len(text) for part in x for text in part}
    require(len(lengths) == 1, "Texts whose next character is predicted must all be of one length.")
    known = sorted({sign for part in x for text in part for sign in text} | {str(one) for part in y for one in part})
    place = {sign: number for number, sign in enumerate(known)}
    samples = [
        Samples(
            np.asarray([[place[sign] for sign in text] for text in texts], dtype=np.int64),
            np.asarray([place[str(one)] for one in labels], dtype=np.int64),
        )
        for texts, labels in zip(x, y, strict=True)
    ]
    target = Classes(tuple(known))
    require_two_classes(samples[0].y, target, "The training data")
    data = Dataset(samples[0], target, client=client[0], characters="".join(known))
    return data if len(samples) == 1 else replace(data, test=samples[1], client_test=client[1])
