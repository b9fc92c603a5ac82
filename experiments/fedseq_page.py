"""The page docs/results/fedseq.md, from whatever finished runs are there; every part says its own budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common import RESULTS, RUNS, environments, made_by, spread, table
from fedseq_runs import (
    CENTRAL,
    ESTIMATORS,
    FLIPPED,
    GROUP_ROUNDS,
    METHODS,
    SEEDS,
    SETTINGS,
    SMALL,
    WAYS,
    Setting,
    way_name,
)
from fedseq_runs import described as describing_runs

import attacks
from hansa.data.heterogeneity import jensen_shannon
from hansa.deploy.restored import last_phase
from hansa.io.store import DiskStore, checkpoint_of
from hansa.io.trust import NOBODY
from hansa.orchestrate.grouping import Limits, group
from hansa.results.reader import Run
from hansa.seeds import numpy_generator

Curve = list[tuple[int, float, float]]  # round, test accuracy and simulated seconds of every evaluation
SHARES = (0.7, 0.9)  # of the centralised accuracy
GROUP_LAST = 50  # rounds


def finished(name: str, seed: int) -> Run | None:
    """Return a run, where it is there and has come to its end."""
    folder = RUNS / f"{name}-seed{seed}"
    there = (folder / "summary.json").exists() and (folder / "plan.toml").exists()
    done = Run.open(folder) if there else None
    return done if done is not None and done.status == "finished" else None


def finished_runs(name: str) -> list[Run]:
    """Return the finished runs of a name, seed by seed."""
    return [done for seed in SEEDS if (done := finished(name, seed)) is not None]


def curve(done: Run) -> Curve:
    """Return every evaluation of a run."""
    told = [one for one in done.rounds if one["metrics"]]
    return [(one["round"], one["metrics"]["test_accuracy"], one.get("clock", {}).get("end", 0.0)) for one in told]


def final(points: Curve, last: int) -> float:
    """Return the mean accuracy over the evaluations of the last rounds."""
    return float(np.mean([accuracy for number, accuracy, _ in points if number > points[-1][0] - last]))


def first(points: Curve, target: float) -> tuple[float, float]:
    """Return the first evaluated round, and simulated second, at which a target is reached; infinite where none is."""
    return next(((float(n), seconds) for n, accuracy, seconds in points if accuracy >= target), (np.inf, np.inf))


def middle(values: Sequence[float], digits: int = 0) -> str:
    """Return the median over seeds; a dash where most never arrive."""
    value = float(np.median(values))
    return f"{value:,.{digits}f}" if np.isfinite(value) else "–"


# ------------------------------------------------------------------------------------------------------------- methods


def central(setting: Setting) -> float | None:
    """Return the centralised accuracy: the mean over seeds of the last fifth of the epochs."""
    found = [final(curve(one), max(1, setting.epochs // 5)) for one in finished_runs(setting.run(CENTRAL))]
    return float(np.mean(found)) if found else None


def method_row(setting: Setting, method: str, target: float) -> tuple[list[str], dict[str, Any] | None]:
    """Return a method's row, and its numbers; dashes where no run has ended."""
    curves = [curve(one) for one in finished_runs(setting.run(method))]
    if not curves:
        return [method, *["–"] * 5, "0"], None
    ends = [final(one, setting.last) for one in curves]
    reached = [[first(one, share * target) for one in curves] for share in SHARES]
    rounds = [middle([number for number, _ in one]) for one in reached]
    hours = [middle([seconds / 3600 for _, seconds in one], 1) for one in reached]
    told = {"accuracy": ends, "curves": [[list(point) for point in one] for one in curves]}
    return [method, spread(ends), *rounds, *hours, str(len(ends))], told


def setting_part(setting: Setting) -> tuple[str, dict[str, Any]]:
    """Return the part of the page about one data set and division; empty where no run of it has ended."""
    known = central(setting)
    ends = {name: [final(curve(one), setting.last) for one in finished_runs(setting.run(name))] for name in METHODS}
    means = {name: float(np.mean(found)) for name, found in ends.items() if found}
    if not means:
        return "", {}
    target = known or max(means.values())
    rows = {name: method_row(setting, name, target) for name in METHODS}
    whose = "the centralised accuracy" if known else "the best method's accuracy, as no centralised run has ended"
    missing = [name for name in METHODS if name not in means]
    text = f"""### {setting.title}

{setting.told} {setting.clients} clients, {setting.superclients} random superclients, {setting.rounds:,} rounds of
{round(setting.fraction * setting.clients)} client updates for every method ({setting.chains} chains), an evaluation
every {setting.every} rounds; accuracies are means over the last {setting.last} rounds. Shares are of {whose},
{100 * target:.1f} %{f" after {setting.epochs} epochs" if known else ""}.
{f"Not run for this page: {', '.join(missing)}." if missing else ""}

{table(HEAD, [row for row, _ in rows.values()])}
"""
    numbers = {name: told for name, (_, told) in rows.items() if told is not None}
    return text, {"central": known, "rounds": setting.rounds, **numbers}


HEAD = ["method", "accuracy", "rounds to 70 %", "to 90 %", "hours to 70 %", "to 90 %", "seeds"]


# -------------------------------------------------------------------------------------------------------------- groups


def descriptions(done: Run) -> np.ndarray:
    """Return what a run's clients are described by, in the order of their names."""
    store = DiskStore(checkpoint_of(done.path), read_only=True)
    try:
        found = last_phase(done, store, NOBODY).describing
    finally:
        store.close()
    return np.stack([found[name].double().numpy() for name in done.data["clients"]])


def closeness(done: Run | None, counts: np.ndarray, grouping: str, metric: str, seed: int) -> float:
    """Return the mean divergence of superclients' label mixes from that of all clients, in bits; 0 is the same mix."""
    rows = None if done is None else descriptions(done)
    sizes = counts.sum(axis=1).tolist()
    limits, rng = Limits(SETTINGS["cifar-0"].superclients), numpy_generator(seed, "closeness")
    named = {"metric": metric} if metric else {}
    return divergence(counts, group(grouping, sizes, rows, limits, rng, clusters=counts.shape[1], **named))


def closeness_of(trained: Run) -> float:
    """Return the same of the superclients that a run visited, as it recorded them."""
    table, place = trained.groups(), {name: k for k, name in enumerate(trained.data["clients"])}
    assert table is not None
    found: dict[int, set[int]] = {}
    for number, client in zip(table["superclient"].to_pylist(), table["client"].to_pylist(), strict=True):
        found.setdefault(number, set()).add(place[client])
    return divergence(np.asarray(trained.data["counts"]), [sorted(members) for members in found.values()])


def divergence(counts: np.ndarray, found: Sequence[Sequence[int]]) -> float:
    """Return the mean divergence of groups of clients from all of them."""
    mixes = np.stack([counts[list(members)].sum(axis=0) / counts[list(members)].sum() for members in found])
    return float(jensen_shannon(mixes, counts.sum(axis=0) / counts.sum()).mean())


def group_rows() -> list[list[str]]:
    """Return a row for every way to make superclients that some run has trained, or whose clients one has described.

    Descriptions lie in checkpoints, which may be deleted; what was trained on them still tells its groups.
    """
    any_run = [done for name in ESTIMATORS for done in finished_runs(describing_runs(name))]
    counts = {done.seed: np.asarray(done.data["counts"]) for done in any_run}
    rows = []
    for way in WAYS:
        estimator, grouping, metric, _ = way
        trained = finished_runs(way_name(way))
        found = [closeness_of(one) for one in trained]
        if not trained:
            described = {seed: finished(describing_runs(estimator), seed) if estimator else None for seed in counts}
            known = {seed: done for seed, done in described.items() if not estimator or (done and _kept(done))}
            found = [closeness(done, counts[seed], grouping, metric, int(seed or 0)) for seed, done in known.items()]
        if found:
            told = f"{np.mean(found):.3f} ± {np.std(found):.3f}"
            ends = [final(curve(one), GROUP_LAST) for one in trained]
            rows.append([estimator or "–", grouping, metric or "–", told, spread(ends) if ends else "–", len(found)])
    return rows


def _kept(done: Run) -> bool:
    """Tell whether a run's checkpoint is there."""
    return checkpoint_of(done.path).is_file()


def group_part() -> str:
    """Return the part of the page about ways to make superclients."""
    rows = group_rows()
    if not rows:
        return ""
    head = ["ψ", "φ", "τ", "divergence of superclients, bits", "FedSeq's accuracy", "seeds"]
    return f"""## How superclients are made

CIFAR-10, one class a client, 500 clients of 100 images of {SMALL} × {SMALL} pixels, 50 superclients of ten. The
divergence is Jensen and Shannon's between a superclient's label mix and that of all clients, the mean over
superclients, mean ± standard deviation over seeds: 0 is the same mix. `labels` is an oracle that no client would send.
Clients train for ten epochs to be described, at a rate of 0.1, or of 0.01 where that is said. Accuracy is FedSeq's with
these superclients after {GROUP_ROUNDS} rounds of 100 client updates, mean of the last {GROUP_LAST}; a dash was not
trained.

{table(head, rows)}
"""


# ---------------------------------------------------------------------------------------------------------------- page


def flipping_part() -> str:
    """Return the table of label flipping on CIFAR-10, where all its runs have ended; else where to find the digits'."""
    setting = attacks.SETTINGS[FLIPPED]
    cells = [
        finished(attacks.cell(FLIPPED, method, *row)[0], seed)
        for row in attacks.rows(FLIPPED).values()
        for method in setting["methods"]
        for seed in setting["seeds"]
    ]
    if any(one is None for one in cells):
        return "Label flipping was run on the digits: [attacks on FedAvg and FedSeq](attacks.md)."
    return attacks.setting_part(FLIPPED, attacks.flipping(FLIPPED))


def recovery_part() -> str:
    """Return the table of distances by rounds, from the numbers beside the page on attacks."""
    told = json.loads((RESULTS / "attacks.json").read_text(encoding="utf-8"))["recovery"]
    return attacks.recovery_part(told, attacks.RECOVERED["rounds"])


def every_run() -> list[Run]:
    """Return all runs that the page is made of."""
    names = [setting.run(method) for setting in SETTINGS.values() for method in (*METHODS, CENTRAL)]
    names += [*map(describing_runs, ESTIMATORS), *map(way_name, WAYS)]
    return [done for name in dict.fromkeys(names) for done in finished_runs(name)]


def write() -> None:
    """Write the page and the numbers behind it."""
    parts = {name: setting_part(setting) for name, setting in SETTINGS.items()}
    found = {name: part for name, part in parts.items() if part[0]}
    notes = (RESULTS / "fedseq-notes.md").read_text(encoding="utf-8") if (RESULTS / "fedseq-notes.md").exists() else ""
    lacking = [setting.title for name, setting in SETTINGS.items() if name not in found]
    text = TEXT.format(
        made=f"{made_by('make results-fedseq')} {environments(every_run())}",
        lacking=f"Not run for this page: {'; '.join(lacking)}." if lacking else "",
        methods="\n".join(text for text, _ in found.values()),
        groups=group_part(),
        flipping=flipping_part(),
        recovery=recovery_part(),
        notes=notes,
    )
    (RESULTS / "fedseq.md").write_text(_tidy(text), encoding="utf-8")
    numbers: Mapping[str, Any] = {name: told for name, (_, told) in found.items()}
    (RESULTS / "fedseq.json").write_text(json.dumps(numbers) + "\n", encoding="utf-8")


def _tidy(text: str) -> str:
    """Return text without double empty lines, ending in one end of line."""
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.rstrip() + "\n"


TEXT = """# Sequential training of superclients

{made}

{lacking}

## Methods at equal client updates

Accuracy on the common test set in per cent, mean ± standard deviation over seeds. FedSeq2Par's superclients grow in
number from 5 to all clients over the run; FedAsyncSeq averages every so many rounds as there are superclients; FedProx
has μ = 0.01 and FedDyn α = 0.01. Rounds and simulated hours are to shares of an accuracy, medians over seeds; a dash is
a share that most seeds never reach. Simulated time: seconds a sample are log-normal over clients (median 0.01 s,
σ = 1), a message takes 0.1 s, and a round waits for its slowest chain; FedAsyncSeq's chains wait where they are
averaged alone.

{methods}
{groups}
## Attacks

{flipping}

### Recovery with a generator

{recovery}

{notes}
"""
