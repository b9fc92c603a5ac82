"""Folders of images: a folder per class, or a folder per client or domain with a folder per class in each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from hansa.data.album import stack
from hansa.data.arrays import dataset_from_arrays
from hansa.data.checks import one_of, whole
from hansa.data.dataset import SCALES, Dataset, Scale, picture
from hansa.data.sources.files import existing
from hansa.errors import HansaError, require
from hansa.io.pictures import pixels
from hansa.task import ClientInputs

Layout = Literal["auto", "class", "client/class", "domain/class"]
ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})


@dataclass(frozen=True)
class Images:
    """Images in folders: `class/image`, `client/class/image` or `domain/class/image`.

    They may lie below `train/` and `test/`.  Two folders deep, the upper one is a client, or with a `layout` a domain.
    """

    path: str
    size: int | None = None  # pixels square to resize to; images of different sizes need it
    layout: Layout = "auto"
    scale: Scale = "unit"  # [0, 1], or "standard": channels of mean 0 and deviation 1

    def __post_init__(self) -> None:
        whole(self, "size", optional=True)
        one_of(self, "scale", SCALES)
        one_of(self, "layout", get_args(Layout))

    def load(self) -> Dataset:
        """Read and resize every image; the depth of the folders tells the layout unless it is set."""
        root = existing(self.path, "image folder")
        require(root.is_dir(), f"The image folder '{self.path}' is a file.")
        below = root / "train" if (root / "train").is_dir() else root
        held = root / "test" if below != root and (root / "test").is_dir() else None
        train = _find(below)
        depth = self._depth(below, train)
        x, y, upper = self._read(below, train, depth)
        domain, client = (upper, None) if self.layout == "domain/class" else (None, upper)
        if held is None:
            return dataset_from_arrays(x, y, client, domain=domain, scale=self.scale)
        test = _find(held)
        require(
            self._depth(held, test) == depth,
            f"The folders 'train' and 'test' of '{self.path}' are laid out differently.",
        )
        x_test, y_test, upper = self._read(held, test, depth)
        client_test = None if client is None else upper
        return dataset_from_arrays(x, y, client, x_test, y_test, client_test, domain, scale=self.scale)

    def glance(self, client: str) -> ClientInputs | None:
        """Return what samples are like by the size that is set, or by the first image that is found."""
        if self.size is not None:
            return picture(client, (self.size, self.size, 3))
        root = existing(self.path, "image folder")
        first = next((file for file in root.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file()), None)
        return None if first is None else picture(client, pixels(first, None, f"The image '{first}'").shape)

    def _depth(self, root: Path, files: list[Path]) -> int:
        depths = {len(file.relative_to(root).parts) - 1 for file in files}
        wanted = {"auto": depths & {1, 2}, "class": {1}}.get(self.layout, {2})
        if len(depths) != 1 or depths != wanted:
            raise HansaError(
                f"The images in '{root}' must all lie in class/image folders or all in client/class/image folders"
                f"{'' if self.layout == 'auto' else f' (the layout is set to {self.layout!r})'}; "
                f"they lie {' and '.join(map(str, sorted(depths)))} folders deep."
            )
        return depths.pop()

    def _read(self, root: Path, files: list[Path], depth: int) -> tuple[object, object, object]:
        x = stack(files, self.size, [f"The image '{file}'" for file in files])
        folders = [file.relative_to(root).parts for file in files]
        y = np.asarray([parts[-2] for parts in folders])
        return x, y, np.asarray([parts[0] for parts in folders]) if depth == 2 else None


def _find(root: Path) -> list[Path]:
    """Find image files below a folder in sorted order; hidden ones and other files are passed over."""
    files = sorted(
        file
        for file in root.rglob("*")
        if file.suffix.lower() in ENDINGS
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(root).parts)
    )
    require(len(files) > 0, f"The folder '{root}' has no images ({', '.join(sorted(ENDINGS))}).")
    return files
