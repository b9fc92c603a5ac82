"""The workloads of the speed comparison, in numpy alone so that every library can be given the same.

W1  softmax linear head, 512 features, 100 classes, 1,000 clients of 13 samples on average (log-normal), 5 epochs,
    batches of 50, learning rate 0.1
W2  LEAF's convolutional network, 28 × 28 pixels, 62 classes, 500 clients of 100 samples, 1 epoch, batches of 20
W4  a model of 10 numbers, one sample a client, 100 clients a round: nothing but overhead
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

LEAF_CNN = {
    "features.0": (32, 1, 5, 5),
    "features.3": (64, 32, 5, 5),
    "features.7": (512, 3136),
    "head": (62, 512),
}


@dataclass(frozen=True, eq=False)
class Workload:
    """Clients, a model, how a client trains, and who takes part in which round."""

    name: str
    model: str  # linear or leaf-cnn
    classes: int
    x: Array
    y: Array
    sizes: Array
    per_round: int
    epochs: int
    batch_size: int
    lr: float
    bias: bool = True

    def cohort(self, round: int) -> list[int]:
        """The clients of a round."""
        found: list[int] = np.random.default_rng(round).choice(len(self.sizes), self.per_round, replace=False).tolist()
        return found

    def rows(self, k: int) -> slice:
        """Where a client's samples lie."""
        end = int(self.sizes[: k + 1].sum())
        return slice(end - int(self.sizes[k]), end)

    def start(self) -> dict[str, Array]:
        """The initial parameters, in torch's names and shapes."""
        rng = np.random.default_rng(1)
        shapes = {"head": (self.classes, self.x.shape[1])} if self.model == "linear" else LEAF_CNN
        found = {}
        for layer, shape in shapes.items():
            bound = np.prod(shape[1:]) ** -0.5
            found[f"{layer}.weight"] = rng.uniform(-bound, bound, shape).astype(np.float32)
            if self.bias:
                found[f"{layer}.bias"] = rng.uniform(-bound, bound, shape[0]).astype(np.float32)
        return found


def distance(before: dict[str, Array], after: list[Array]) -> float:
    """How far all parameters moved: the same for everyone who did the same work."""
    pairs = zip(before.values(), after, strict=True)
    return float(np.sqrt(sum(np.square(np.asarray(b, np.float64) - a).sum() for a, b in pairs)))


def workload(name: str, per_round: int | None = None) -> Workload:
    """One of the workloads."""
    rng = np.random.default_rng(0)
    if name == "W1":
        sizes = lognormal(rng, 1000, 13.0)
        x, y = vectors(rng, int(sizes.sum()), 512, 100)
        return Workload(name, "linear", 100, x, y, sizes, per_round or 10, 5, 50, 0.1)
    if name == "W2":
        x = rng.random((50_000, 1, 28, 28), dtype=np.float32)
        y = rng.integers(0, 62, 50_000)
        return Workload(name, "leaf-cnn", 62, x, y, np.full(500, 100), per_round or 10, 1, 20, 0.05)
    if name == "W4":
        x, y = vectors(rng, 1000, 5, 2)
        return Workload(name, "linear", 2, x, y, np.ones(1000, dtype=np.int64), per_round or 100, 1, 1, 0.1, bias=False)
    raise SystemExit(f"There is no workload '{name}'.")


def lognormal(rng: np.random.Generator, clients: int, mean: float) -> Array:
    draws = rng.lognormal(0.0, 0.8, clients)
    sizes: Array = np.maximum(1, np.round(draws * mean / draws.mean())).astype(np.int64)
    return sizes


def vectors(rng: np.random.Generator, count: int, width: int, classes: int) -> tuple[Array, Array]:
    x = rng.standard_normal((count, width), dtype=np.float32) / np.float32(width**0.5)
    truth = rng.standard_normal((width, classes), dtype=np.float32)
    return x, (x @ truth).argmax(1).astype(np.int64)
