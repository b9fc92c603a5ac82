"""The digits that come with scikit-learn: 1,797 images of 8 × 8, no download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hansa.data.checks import share
from hansa.data.dataset import Dataset, Samples
from hansa.data.split import stratified_cut
from hansa.seeds import numpy_generator


@dataclass(frozen=True)
class Digits:
    """Handwritten digits as vectors of 64 numbers in [0, 1], or as images.  The test set is the same for every seed."""

    images: bool = False
    test_fraction: float = 0.2

    def __post_init__(self) -> None:
        share(self, "test_fraction")

    def load(self) -> Dataset:
        """1,438 training and 359 test samples by default."""
        from sklearn.datasets import load_digits

        loaded = load_digits()
        y = loaded.target.astype(np.int64)
        if self.images:
            x = np.rint(loaded.images * (255 / 16)).astype(np.uint8)
        else:
            x = (loaded.data / 16).astype(np.float32)
        train, test = stratified_cut(y, self.test_fraction, numpy_generator(0, "digits"))
        names = tuple(str(name) for name in loaded.target_names)
        return Dataset(Samples(x[train], y[train]), names, Samples(x[test], y[test]))
