"""NumPy archives: plain arrays, or JPEG images packed into one array of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hansa.data.album import stack
from hansa.data.arrays import dataset_from_arrays
from hansa.data.checks import one_of, whole
from hansa.data.dataset import SCALES, Array, Dataset, Scale, picture
from hansa.data.labels import require_two_classes
from hansa.data.late_rows import Inputs, rows_of
from hansa.data.sources.files import existing_file
from hansa.data.targets import KINDS, Classes, Kind
from hansa.errors import HansaError, did_you_mean, require
from hansa.io.npy import Header, begin_member, open_npz, read_member
from hansa.io.pictures import pixels
from hansa.task import ClientInputs

CLIENT_ARRAYS = ("client", "writer", "subject", "user")


class Archive(Mapping[str, Array]):
    """The arrays of an archive, each read when asked for and never unpickled."""

    def __init__(self, path: str):
        self.path = path
        self._opened = open_npz(existing_file(path, "npz file"))
        names = [name.removesuffix(".npy") for name in self._opened.namelist() if name.endswith(".npy")]
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return read_member(self._opened, name, f"The array '{name}' of '{self.path}'")

    def __contains__(self, name: object) -> bool:  # a mapping's own way would be to read the array
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def begin(self, name: str, count: int = 0) -> tuple[Header, Array]:
        """Return an array's header, and the first entries of one that is a list."""
        return begin_member(self._opened, name, f"The array '{name}' of '{self.path}'", count)

    def first(self, *names: str) -> Array | None:
        """Return the first of these arrays that is there."""
        return next((self[name] for name in names if name in self), None)

    def need(self, *names: str) -> Array:
        """Return the first of these arrays, or refuse where none is there."""
        found = self.first(*names)
        if found is None:
            raise HansaError(f"'{self.path}' has no array '{names[0]}'.{did_you_mean(names[0], self)}")
        return found


class Packed(Sequence[bytes]):
    """Encoded images one after the other in an array of bytes, which may be mapped."""

    def __init__(self, blob: Array, bounds: Array):
        self.blob, self.bounds = blob, bounds

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, place: Any) -> Any:
        found: bytes = self.blob[self.bounds[place] : self.bounds[place + 1]].tobytes()
        return found


@dataclass(frozen=True)
class Npz:
    """Arrays from a .npz file: `x`, `y`, perhaps `client`, `x_test`, `y_test`, `client_test`, `domain` and `classes`.

    `group` and `time` of the training samples are for cuts of test samples (data.test.by).
    `x_train` and `y_train` do as well.  A mask `is_test` over all samples may stand for separate test arrays, and
    `domains` may name the numbers in `domain`.  Packed JPEG images come as `blob` (bytes) and `offsets` (n + 1
    positions) instead of `x`.  Labels that are floats need a `target`; a real one may have several columns.
    """

    path: str
    client: str | None = None  # the array that names clients; else one of CLIENT_ARRAYS, with or without _train
    clients_from: str | None = None  # another .npz file that holds the arrays with the clients' names
    domain: str | None = None  # the array that names domains; else 'domain'
    size: int | None = None  # packed images are resized to so many pixels square
    tokens: bool = False  # whole-number inputs are token numbers, not features
    target: Kind | None = None  # what floats in 'y' are; whole numbers and text are classes unless it is "real"
    scale: Scale = "unit"  # as they are, pictures in [0, 1]; "standard": channels or columns of mean 0, deviation 1

    def __post_init__(self) -> None:
        whole(self, "size", optional=True)
        one_of(self, "scale", SCALES)
        one_of(self, "target", KINDS, optional=True)

    def load(self) -> Dataset:
        """Read the archive; only packed images take longer than a moment."""
        archive = Archive(self.path)
        names = Archive(self.clients_from) if self.clients_from is not None else archive
        client, client_test = self._clients(names)
        x, y = self._inputs(archive), archive.need("y", "y_train")
        domain, classes = self._domains(archive), self._class_names(archive)
        mask = archive.first("is_test")
        if mask is not None:
            return self._masked(x, y, self._flags(mask), client, domain, classes)
        return dataset_from_arrays(
            x,
            y,
            client,
            archive.first("x_test"),
            archive.first("y_test"),
            client_test,
            domain,
            classes,
            tokens=self.tokens,
            target=self.target,
            scale=self.scale,
            group=archive.first("group", "group_train"),
            time=archive.first("time", "time_train"),
        )

    def glance(self, client: str) -> ClientInputs | None:
        """Return what samples are like by the header of their array, or by the first of packed images."""
        archive = Archive(self.path)
        if "blob" in archive and "offsets" in archive:
            shape = self._first_picture(archive) if self.size is None else (self.size, self.size, 3)
            return picture(client, shape) if shape else None
        name = next((one for one in ("x", "x_train") if one in archive), None)
        if name is None or self.tokens:
            return None
        (whole, _, dtype), _ = archive.begin(name)
        shape = whole[1:]
        if dtype == np.uint8 and len(shape) > 1:
            return picture(client, shape)
        return ClientInputs(client, shape) if whole and dtype.kind in "biuf" else None

    def _first_picture(self, archive: Archive) -> tuple[int, ...]:
        """Return the shape of the first of packed images; nothing where there is none."""
        ends: list[int] = archive.begin("offsets", 2)[1].tolist()
        if len(ends) < 2:
            return ()
        first: bytes = archive.begin("blob", ends[1])[1][ends[0] :].tobytes()
        shape: tuple[int, ...] = pixels(first, None, f"'{self.path}' (image 0)").shape
        return shape

    def _inputs(self, archive: Archive) -> Inputs:
        if "blob" not in archive or "offsets" not in archive:
            return archive.need("x", "x_train")
        blob, bounds = archive["blob"], archive["offsets"]
        good = bounds.ndim == 1 and len(bounds) > 1 and bounds.dtype.kind in "iu" and blob.ndim == 1
        good = good and int(bounds[0]) >= 0 and bool((bounds[1:] >= bounds[:-1]).all()) and int(bounds[-1]) <= len(blob)
        says = f"The 'offsets' of '{self.path}' must be n + 1 whole numbers, rising positions in the bytes of 'blob'"
        require(good, f"{says}. Got {bounds.dtype} of shape {bounds.shape}.")
        return stack(Packed(blob, bounds), self.size, f"'{self.path}'")

    def _clients(self, archive: Archive) -> tuple[Array | None, Array | None]:
        wanted = CLIENT_ARRAYS if self.client is None else (self.client,)
        for name in wanted:
            train = archive.first(name, f"{name}_train")
            if train is not None:
                return train, archive.first(f"{name}_test")
        if self.client is not None or self.clients_from is not None:
            archive.need(*wanted)
        return None, None

    def _domains(self, archive: Archive) -> Array | None:
        name = self.domain or "domain"
        codes = archive.first(name, f"{name}_train") if self.domain is None else archive.need(name, f"{name}_train")
        titles = archive.first("domains") if self.domain is None else None
        return codes if codes is None or titles is None else self._titled(codes, titles)

    def _titled(self, codes: Array, titles: Array) -> Array:
        """Return the names behind domain numbers."""
        good = codes.ndim == titles.ndim == 1 and codes.dtype.kind in "iu" and len(codes) > 0
        good = good and int(codes.min()) >= 0 and int(codes.max()) < len(titles)
        says = f"The array 'domain' of '{self.path}' must hold places in its array 'domains' for every sample"
        require(good, f"{says}. Got {codes.dtype} of shape {codes.shape} for domains of shape {titles.shape}.")
        named: Array = titles[codes]
        return named

    def _flags(self, mask: Array) -> Array:
        good = mask.ndim == 1 and mask.dtype.kind in "biu"
        says = f"The mask 'is_test' of '{self.path}' must be a truth value for every sample"
        require(good, f"{says}. Got {mask.dtype} of shape {mask.shape}.")
        return mask.astype(bool)

    def _class_names(self, archive: Archive) -> list[str] | None:
        names = archive.first("classes")
        if names is None:
            return None
        says = f"The array 'classes' of '{self.path}' must be a list of names"
        require(names.ndim == 1, f"{says}. Got an array of shape {names.shape}.")
        return [str(name) for name in names]

    def _masked(
        self, x: Inputs, y: Array, test: Array, client: Array | None, domain: Array | None, names: list[str] | None
    ) -> Dataset:
        """Split one array of all samples by a mask of those for testing."""
        for name, values in (("x", x), ("y", y), ("client", client), ("domain", domain)):
            require(
                values is None or np.shape(values)[:1] == test.shape,
                f"The mask 'is_test' of '{self.path}' has {len(test)} entries, its array '{name}' does not.",
            )
        every = dataset_from_arrays(
            x, y, client, domain=domain, class_names=names, tokens=self.tokens, target=self.target, scale=self.scale
        )
        if not test.any():
            return every
        if names is None:
            require_two_classes(every.train.y[~test], every.target, "The training data")
        return dataset_from_arrays(
            rows_of(every.train.x, ~test),
            every.train.y[~test],
            None if client is None else client[~test],
            rows_of(every.train.x, test),
            every.train.y[test],
            None if client is None else client[test],
            None if domain is None else domain[~test],
            every.target.names if isinstance(every.target, Classes) else None,
            tokens=self.tokens,
            target=self.target,
            scale=self.scale,
        )
