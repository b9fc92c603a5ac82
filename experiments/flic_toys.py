"""Clients whose inputs differ: the toys of FLIC (Rakotomamonjy et al. 2023, §S3.1.1), and digits of two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from common import DATA

from hansa.data.federation import Federation, federation_from_clients

Array = np.ndarray
Clients = dict[str, tuple[Array, Array, Array, Array]]  # training inputs and labels, test inputs and labels
CLASSES, LATENT = 20, 5
EACH = 2000  # training samples of a class, dealt to the clients that hold it; there are half as many to test on
HELD_OUT = 0.2  # of a client's training samples, where settings are chosen


def noisy_features(clients: int, rng: np.random.Generator, each: int = EACH) -> Clients:
    """20 Gaussian classes in 5 columns, centres N(0, 0.8²·I), and 1 to 10 columns of noise on every client."""

    def look(extra: int) -> Callable[[Array], Array]:
        return lambda x: np.concatenate([x, rng.normal(size=(len(x), extra))], 1)

    return _toy(0.8, [look(int(rng.integers(1, 11))) for _ in range(clients)], rng, each)


def linear_mapping(clients: int, rng: np.random.Generator, each: int = EACH) -> Clients:
    """20 Gaussian classes in 5 columns, centres N(0, 0.5²·I), which every client sees through a map to 3 to 100."""

    def look(columns: int) -> Callable[[Array], Array]:
        mapping = rng.normal(size=(LATENT, columns))
        return lambda x: x @ mapping

    return _toy(0.5, [look(int(rng.integers(3, 101))) for _ in range(clients)], rng, each)


def _toy(sigma: float, looks: list[Callable[[Array], Array]], rng: np.random.Generator, each: int) -> Clients:
    """Three classes a client; of its training samples a share between 5 and 100 per cent is kept."""
    centres = rng.normal(0, sigma, (CLASSES, LATENT))
    held = [sorted(rng.choice(CLASSES, 3, replace=False).tolist()) for _ in looks]
    shares = {c: max(1, sum(c in own for own in held)) for c in range(CLASSES)}
    made: Clients = {}
    for k, (own, look) in enumerate(zip(held, looks, strict=True)):
        parts = []
        for part, count in (("train", each), ("test", each // 2)):
            y = np.concatenate([np.full(max(2, count // shares[c]), c) for c in own])
            if part == "train":
                y = rng.permutation(y)[: max(6, int(rng.uniform(0.05, 1.0) * len(y)))]
            parts += [look(centres[y] + rng.normal(size=(len(y), LATENT))).astype("float32"), y]
        made[f"{k:03d}"] = (parts[0], parts[1], parts[2], parts[3])
    return made


def digits(clients: int, rng: np.random.Generator, classes: int = 3, samples: int | None = None) -> Clients:
    """MNIST of 28 × 28 and USPS of 16 × 16 pixels: a client has samples of one of them, and of a few classes.

    Of `samples` training samples each of the two gives a half; there are as many to test on.
    """
    made: Clients = {}
    for place, name in enumerate(("mnist", "usps")):
        with np.load(DATA / f"{name}.npz") as file:
            arrays = {key: file[key] for key in ("x_train", "y_train", "x_test", "y_test")}
        names = [f"{k:03d}" for k in range(place, clients, 2)]
        held = {one: sorted(rng.choice(10, classes, replace=False).tolist()) for one in names}
        dealt = {part: _dealt(arrays[f"y_{part}"], held, rng, samples and samples // 2) for part in ("train", "test")}
        for one in names:
            parts = []
            for part in ("train", "test"):
                chosen = dealt[part][one]
                parts += [arrays[f"x_{part}"][chosen], arrays[f"y_{part}"][chosen].astype(int)]
            made[one] = (parts[0], parts[1], parts[2], parts[3])
    return made


def _dealt(y: Array, held: Mapping[str, list[int]], rng: np.random.Generator, most: int | None) -> dict[str, Array]:
    """Deal the samples of every class, a tenth of `most` of them, evenly to the clients that hold it."""
    found: dict[str, list[Array]] = {name: [] for name in held}
    for c in range(10):
        owners = [name for name, own in held.items() if c in own]
        places = rng.permutation(np.flatnonzero(y == c))[: most and most // 10]
        for name, part in zip(owners, np.array_split(places, len(owners) or 1), strict=False):
            found[name].append(part)
    return {name: np.concatenate(parts) for name, parts in found.items()}


TOYS: Mapping[str, Callable[[int, np.random.Generator, int], Clients]] = {
    "noisy": noisy_features,
    "mapping": linear_mapping,
}


def toy(name: str, clients: int, seed: int, *, each: int = EACH, tuning: bool = False) -> Federation:
    """Return the clients of a toy; for `tuning` a part of each client's training samples stands for its test set."""
    made = TOYS[name](clients, np.random.default_rng((seed, list(TOYS).index(name), clients)), each)
    return federation_of(made, CLASSES, tuning=tuning)


def federation_of(made: Clients, classes: int, *, tuning: bool) -> Federation:
    """Return clients as a federation; for `tuning` a part of each one's training samples stands for its test set."""
    made = {name: held_out(arrays) for name, arrays in made.items()} if tuning else made
    return federation_from_clients(made, tuple(str(c) for c in range(classes)))


def held_out(arrays: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
    """Return a client without its test set, for which every fifth of its training samples of a class stands."""
    x, y, _, _ = arrays
    out = np.argsort(y, kind="stable")[:: round(1 / HELD_OUT)]
    kept = np.setdiff1d(np.arange(len(y)), out)
    return x[kept], y[kept], x[out], y[out]
