"""Clients of real tables whose columns differ, and of real people: hospitals, patients, subjects and writers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from common import DATA
from flic_toys import HELD_OUT, Array, federation_of

from hansa.data.federation import Federation, federation_from_clients

TEST = 0.3  # of a site's rows, where the data has no test set of its own
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
# Of the heart data: numbers, and categories by the numbers that stand for them.
NUMBERS = {
    "age": 0,
    "sex": 1,
    "pressure": 3,
    "cholesterol": 4,
    "sugar": 5,
    "rate": 7,
    "angina": 8,
    "oldpeak": 9,
    "vessels": 11,
}
CATEGORIES = {"pain": (2, (1, 2, 3, 4)), "ecg": (6, (0, 1, 2)), "slope": (10, (1, 2, 3)), "thal": (12, (3, 6, 7))}
Site = tuple[Array, Array, Array, Array]  # rows and targets to train on, and to test on


# -------------------------------------------------------------------------------------------------------------- tables


def heart_rows(seed: int, patients: int | None, *, tuning: bool) -> dict[str, Site]:
    """Return the four hospitals' rows as they are, NaN where nothing was measured: 0 is healthy, 1 ill.

    `patients` are those that a hospital trains on, all where it is None.  For `tuning` a part of them stands for the
    test set.
    """
    found = {}
    for place, name in enumerate(HOSPITALS):
        rows = np.genfromtxt(DATA / "heart" / f"processed.{name}.data", delimiter=",")
        rows[rows == -9] = np.nan
        rows[rows[:, 4] == 0, 4] = np.nan
        y = (rows[:, 13] > 0).astype(int)
        found[name] = _cut(rows[:, :13], y, np.random.default_rng((seed, place)), patients, tuning=tuning)
    return found


def _cut(x: Array, y: Array, rng: np.random.Generator, most: int | None, *, tuning: bool) -> Site:
    """Cut a site's rows at random, class by class: test rows first, so that they depend on the seed alone."""
    train, test = _stratified(y, TEST, rng)
    train = train if most is None else _most(train, y, most)
    if tuning:
        kept, out = _stratified(y[train], 1 / 3, rng)
        train, test = train[kept], train[out]
    return x[train], y[train], x[test], y[test]


def _stratified(y: Array, share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the places that stay, in random order, and those cut off: a share of every class."""
    parts = [rng.permutation(np.flatnonzero(y == c)) for c in np.unique(y)]
    cuts = [round(share * len(part)) for part in parts]
    out = np.concatenate([part[:cut] for part, cut in zip(parts, cuts, strict=True)])
    return rng.permutation(np.concatenate([part[cut:] for part, cut in zip(parts, cuts, strict=True)])), out


def _most(train: Array, y: Array, most: int) -> Array:
    """Return the first rows, but for the last of them which make room where a class would have fewer than two."""
    chosen = list(train[:most])
    for c in np.unique(y[train]):
        short = 2 - int((y[chosen] == c).sum())
        if short > 0:
            chosen = chosen[:-short] + list(train[most:][y[train[most:]] == c][:short])
    return np.asarray(chosen)


def widened(rows: Array) -> tuple[Array, list[str]]:
    """Return a column for every number and every category, NaN where nothing was measured, and their names."""
    columns = {name: rows[:, place] for name, place in NUMBERS.items()}
    for name, (place, values) in CATEGORIES.items():
        missing = np.where(np.isnan(rows[:, place]), np.nan, 0.0)
        columns |= {f"{name} {value}": (rows[:, place] == value) + missing for value in values}
    return np.stack(list(columns.values()), 1), list(columns)


def scaled(train: Array, others: Sequence[Array], names: Sequence[str]) -> tuple[list[Array], list[str]]:
    """Return rows standardised by those trained on, gaps at the mean and told by an indicator.

    A column without a value in the rows trained on, or always the same, is left out.
    """
    with np.errstate(invalid="ignore"):
        there = ~np.isnan(train).all(0)
        there[there] = np.nanstd(train[:, there], axis=0) > 1e-9
    mean, deviation = np.nanmean(train[:, there], axis=0), np.nanstd(train[:, there], axis=0)
    gaps = np.isnan(train[:, there])
    told = gaps.any(0) & ~gaps.all(0)
    made = []
    for rows in (train, *others):
        own = (rows[:, there] - mean) / deviation
        made.append(np.concatenate([np.nan_to_num(own), np.isnan(own)[:, told]], 1).astype("float32"))
    own_names = [name for name, one in zip(names, there, strict=True) if one]
    return made, own_names + [f"{name} missing" for name, one in zip(own_names, told, strict=True) if one]


def own_columns(sites: dict[str, Site], names: Sequence[str], **told: object) -> Federation:
    """Return sites of which each has the columns it has, filled and scaled by the rows that it trains on."""
    made, columns = {}, {}
    for site, (x, y, x_test, y_test) in sites.items():
        (train, test), columns[site] = scaled(x, [x_test], names)
        made[site] = (train, y, test, y_test)
    return federation_from_clients(made, columns=columns, **told)  # type: ignore[arg-type]


def one_table(sites: dict[str, Site], names: Sequence[str], *, common: bool = False, **told: object) -> Federation:
    """Return sites that all have the union of columns, or those common to all, filled and scaled over all sites."""
    kept = np.ones(len(names), bool)
    if common:
        kept = np.all([~np.isnan(x).all(0) for x, _, _, _ in sites.values()], axis=0)
    every = np.concatenate([x for x, _, _, _ in sites.values()])[:, kept]
    parts = [part[:, kept] for x, _, x_test, _ in sites.values() for part in (x, x_test)]
    (_, *made), columns = scaled(every, parts, [name for name, one in zip(names, kept, strict=True) if one])
    found = {
        site: (made[2 * place], y, made[2 * place + 1], y_test)
        for place, (site, (_, y, _, y_test)) in enumerate(sites.items())
    }
    return federation_from_clients(found, columns=dict.fromkeys(found, columns), **told)  # type: ignore[arg-type]


def heart(seed: int, look: str, patients: int | None = None, *, tuning: bool = False) -> Federation:
    """Return the four hospitals: with their `own` columns, the `union` of all, those `common` to all, or as `text`."""
    if look == "text":
        import flic_beside  # which needs an encoder

        return flic_beside.text_heart(seed, patients, tuning=tuning)
    sites = heart_rows(seed, patients, tuning=tuning)
    names = widened(next(iter(sites.values()))[0])[1]
    wide = {site: (widened(x)[0], y, widened(x_test)[0], y_test) for site, (x, y, x_test, y_test) in sites.items()}
    told = {"class_names": ("healthy", "ill")}
    return (
        own_columns(wide, names, **told) if look == "own" else one_table(wide, names, common=look == "common", **told)
    )


# ---------------------------------------------------------------------------------------------------------- Parkinson's

SCORE = 60.0  # that a score of 1 stands for: targets are about 0 to 1


def parkinsons_rows(seed: int, *, tuning: bool) -> tuple[dict[str, Site], list[str]]:
    """Return 42 patients' voice recordings, half of the columns of each not measured, and total UPDRS over 60.

    Recordings of one day are all to train on or all to test on.
    """
    with (DATA / "parkinsons" / "telemonitoring.csv").open() as file:
        names = file.readline().strip().split(",")
    rows = np.genfromtxt(DATA / "parkinsons" / "telemonitoring.csv", delimiter=",", skip_header=1)
    inputs = [names.index("test_time"), *range(names.index("Jitter(%)"), len(names))]
    found = {}
    for patient in np.unique(rows[:, 0]).astype(int):
        rng = np.random.default_rng((seed, int(patient)))
        own = rows[rows[:, 0] == patient]
        x, y = own[:, inputs].copy(), own[:, names.index("total_UPDRS")] / SCORE
        x[:, rng.permutation(len(inputs))[: len(inputs) // 2]] = np.nan
        train, test = _days(own[:, names.index("test_time")], TEST, rng)
        if tuning:
            kept, out = _days(own[train, names.index("test_time")], HELD_OUT, rng)
            train, test = train[kept], train[out]
        found[f"{patient:02d}"] = (x[train], y[train], x[test], y[test])
    return found, [names[place] for place in inputs]


def _days(time: Array, share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the places that stay, and those of a share of the days."""
    days = np.floor(time)
    out = np.isin(days, rng.permutation(np.unique(days))[: max(1, round(share * len(np.unique(days))))])
    return np.flatnonzero(~out), np.flatnonzero(out)


def parkinsons(seed: int, look: str, *, tuning: bool = False) -> Federation:
    """Return the patients, each with half of the columns, or with the union of all."""
    sites, names = parkinsons_rows(seed, tuning=tuning)
    return (own_columns if look == "own" else one_table)(sites, names, target="real")


# ------------------------------------------------------------------------------------------------- subjects and writers


def eeg(seed: int, trials: int | None = None, *, tuning: bool = False) -> Federation:
    """Return 40 subjects' trials, six covariances each, of three classes; `trials` are those to train on."""
    with np.load(DATA / "eeg40.npz") as file:
        x, y, subject, is_test = (file[key] for key in ("x", "y", "subject", "is_test"))
    made = {}
    for one in np.unique(subject):
        train, test = (np.flatnonzero((subject == one) & (is_test == part)) for part in (False, True))
        train = np.random.default_rng((seed, int(one))).permutation(train)[:trials]
        mean, deviation = x[train].mean(0), x[train].std(0) + 1e-9
        parts = [part for places in (train, test) for part in ((x[places] - mean) / deviation, y[places].astype(int))]
        made[f"{int(one):02d}"] = (parts[0], parts[1], parts[2], parts[3])
    return federation_of(made, int(y.max()) + 1, tuning=tuning)


def femnist(_seed: int, *, tuning: bool = False) -> Federation:
    """Return the digits of the 110 writers who have some to train and to test on, the 20 × 20 pixels in the middle."""
    with np.load(DATA / "femnist110.npz") as file:
        arrays = {key: file[key] for key in file.files}
    parts = {}
    for part in ("train", "test"):
        digit = arrays[f"y_{part}"] < 10
        x = 1 - arrays[f"x_{part}"][digit][:, 4:24, 4:24].reshape(-1, 400) / 255  # ink is 1, paper 0
        parts[part] = x.astype("float32"), arrays[f"y_{part}"][digit].astype(int), arrays[f"writer_{part}"][digit]
    made = {}
    for one in np.intersect1d(parts["train"][2], parts["test"][2]):
        own = [array[writer == one] for x, y, writer in parts.values() for array in (x, y)]
        made[f"{int(one):03d}"] = (own[0], own[1], own[2], own[3])
    return federation_of(made, 10, tuning=tuning)
