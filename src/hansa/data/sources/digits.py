"""The digits that come with scikit-learn: 1,797 images of 8 × 8, no download."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hansa.data.checks import share
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.split import stratified_cut
from hansa.data.targets import Classes
from hansa.errors import HansaError
from hansa.seeds import numpy_generator
from hansa.task import ClientInputs


@dataclass(frozen=True)
class Digits:
    """Handwritten digits as vectors of 64 numbers in [0, 1], or as images.  The test set is the same for every seed."""

    images: bool = False
    test_fraction: float = 0.2

    def __post_init__(self) -> None:
        share(self, "test_fraction")

    def load(self) -> Dataset:
        """Load 1,438 training and 359 test samples by default."""
        rows = _rows()
        y, pixels = rows[:, -1].astype(np.int64), rows[:, :-1]
        if self.images:
            x = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        else:
            x = (pixels / 16).astype(np.float32)
        train, test = stratified_cut(y, self.test_fraction, numpy_generator(0, "digits"))
        target = Classes(tuple(map(str, range(10))))
        return Dataset(Samples(x[train], y[train]), target, Samples(x[test], y[test]))

    def glance(self, client: str) -> ClientInputs:
        """Return what samples are like."""
        return ClientInputs(client, (1, 8, 8) if self.images else (64,))


def _rows() -> Array:
    """Read 64 pixels from 0 to 16 and the digit, row by row; the file is read without loading all of scikit-learn."""
    package = importlib.util.find_spec("sklearn")
    folder = Path(package.origin or "").parent if package else Path()
    try:
        return np.loadtxt(folder / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    except OSError as error:
        raise HansaError("The digits that come with scikit-learn are not there; install scikit-learn again.") from error
