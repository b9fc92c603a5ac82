"""The page docs/results/fedseq.md, from finished runs and from what was kept; every part says its own budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from common import DIVERGED, RESULTS, finished, spread, table
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
    Way,
    grouped_name,
    way_name,
)
from fedseq_runs import described as describing_runs
from kept import Facts, Kept

import attacks
from hansa.data.heterogeneity import jensen_shannon
from hansa.deploy.restored import last_phase
from hansa.io.store import DiskStore, checkpoint_of
from hansa.io.trust import NOBODY
from hansa.orchestrate.grouping import Limits, group
from hansa.results.reader import Run
from hansa.seeds import numpy_generator

Curve = Sequence[Sequence[float]]  # round, test accuracy and simulated seconds of every evaluation
SHARES = (0.7, 0.9)  # of the centralised accuracy
GROUP_LAST = 50  # rounds


def curve(done: Run) -> Facts:
    """Return every evaluation of a run; of one that diverged, after how many rounds it did."""
    if done.status == DIVERGED:
        return {DIVERGED: len(done.rounds)}
    told = [one for one in done.rounds if one["metrics"]]
    return {
        "curve": [[one["round"], one["metrics"]["test_accuracy"], one.get("clock", {}).get("end", 0.0)] for one in told]
    }


def facts(kept: Kept, name: str) -> list[Facts]:
    """Return what is known of a row, seed by seed."""
    return kept.row(name, [(one, curve(one)) for one in finished(name, SEEDS, ("finished", DIVERGED))])


def curves(kept: Kept, name: str) -> list[Curve]:
    """Return the curves of a row, of the seeds that came to their end."""
    return [one["curve"] for one in facts(kept, name) if DIVERGED not in one]


def diverged(setting: Setting, kept: Kept) -> str:
    """Return a sentence about the runs that no mean has in it, where there are any."""
    after = {name: [one[DIVERGED] for one in facts(kept, setting.run(name)) if DIVERGED in one] for name in METHODS}
    told = [f"{name} after {' and '.join(map(str, sorted(rounds)))} rounds" for name, rounds in after.items() if rounds]
    return f"Runs that diverged, and are in no mean: {', '.join(told)}." if told else ""


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


def central(setting: Setting, kept: Kept) -> float | None:
    """Return the centralised accuracy: the mean over seeds of the last fifth of the epochs."""
    name = setting.run(CENTRAL)
    found = [final(one, max(1, setting.epochs // 5)) for one in curves(kept, name)]
    return float(np.mean(found)) if found else kept.told(name).get("accuracy")


def method_row(setting: Setting, method: str, found: Sequence[Curve], target: float) -> list[str]:
    """Return a method's row; dashes where no run has ended."""
    if not found:
        return [method, *["–"] * 5, "0"]
    ends = [final(one, setting.last) for one in found]
    reached = [[first(one, share * target) for one in found] for share in SHARES]
    rounds = [middle([number for number, _ in one]) for one in reached]
    hours = [middle([seconds / 3600 for _, seconds in one], 1) for one in reached]
    return [method, spread(ends), *rounds, *hours, str(len(ends))]


def setting_part(setting: Setting, kept: Kept) -> str:
    """Return the part of the page about one data set and division; empty where no run of it has ended."""
    found = {name: curves(kept, setting.run(name)) for name in METHODS}
    means = {name: np.mean([final(one, setting.last) for one in some]) for name, some in found.items() if some}
    if not means:
        return ""
    known = central(setting, kept)
    target = known or float(max(means.values()))
    whose = "the centralised accuracy" if known else "the best method's accuracy, as no centralised run has ended"
    missing = [name for name in METHODS if name not in means]
    return f"""### {setting.title}

{setting.told} {setting.clients} clients, {setting.superclients} random superclients, {setting.rounds:,} rounds of
{round(setting.fraction * setting.clients)} client updates for every method ({setting.chains} chains), an evaluation
every {setting.every} rounds; accuracies are means over the last {setting.last} rounds. Shares are of {whose},
{100 * target:.1f} %{f" after {setting.epochs} epochs" if known else ""}.
{f"Not run for this page: {', '.join(missing)}." if missing else ""}
{diverged(setting, kept)}

{table(HEAD, [method_row(setting, name, some, target) for name, some in found.items()])}
"""


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


def closeness(described: Run, grouping: str, metric: str) -> float:
    """Return the mean divergence of superclients' label mixes from that of all clients, in bits; 0 is the same mix."""
    rows = None if grouping == "random" else descriptions(described)
    counts = np.asarray(described.data["counts"])
    limits, rng = Limits(SETTINGS["cifar-0"].superclients), numpy_generator(described.seed or 0, "closeness")
    named, sizes = {"metric": metric} if metric else {}, counts.sum(axis=1).tolist()
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


def group_rows(kept: Kept) -> list[list[str]]:
    """Return a row for every way to make superclients that some run has trained, or whose clients one has described."""
    found = [(way, way_told(way, kept)) for way in WAYS]
    return [
        [*(word or "–" for word in way[:3]), told["divergence"], told.get("accuracy", "–"), str(told["seeds"])]
        for way, told in found
        if told
    ]


def way_told(way: Way, kept: Kept) -> Facts:
    """Return the cells of a way to make superclients; nothing where it is not known.

    Descriptions lie in checkpoints, which may be deleted; what was trained on them still tells its groups.
    """
    estimator, grouping, metric, _ = way
    name = way_name(way)
    seeds = kept.row(name, [(one, {"divergence": closeness_of(one)} | curve(one)) for one in finished(name, SEEDS)])
    if not seeds and not kept.told(name):
        name = grouped_name(way)
        found = {one.seed: one for by in ([estimator] if estimator else ESTIMATORS) for one in describing(by)}
        seeds = kept.row(name, [(one, {"divergence": closeness(one, grouping, metric)}) for one in found.values()])
    if not seeds:
        return kept.told(name)
    apart = [one["divergence"] for one in seeds]
    ends = [final(one["curve"], GROUP_LAST) for one in seeds if "curve" in one]
    told = {"divergence": f"{np.mean(apart):.3f} ± {np.std(apart):.3f}", "seeds": len(seeds)}
    return told | ({"accuracy": spread(ends)} if ends else {})


def describing(estimator: str) -> list[Run]:
    """Return the runs that describe clients and still have their descriptions."""
    return [one for one in finished(describing_runs(estimator), SEEDS) if checkpoint_of(one.path).is_file()]


def group_part(kept: Kept) -> str:
    """Return the part of the page about ways to make superclients."""
    rows = group_rows(kept)
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


def flipping_part(kept: Kept) -> str:
    """Return the tables of label flipping on CIFAR-10 whose runs have ended, and where to find the digits'."""
    names = [name for name in attacks.SETTINGS if name.startswith(FLIPPED)]
    tables = [attacks.setting_part(name, found) for name in names if (found := attacks.flipping(name, kept))]
    told = "Label flipping as on the page of [attacks on FedAvg and FedSeq](attacks.md), which has the digits too"
    return "\n".join([f"{told}{':' if tables else '.'}\n", *tables])


def recovery_part(kept: Kept) -> str:
    """Return the table of distances by rounds, from the numbers beside the page on attacks."""
    return attacks.recovery_part(attacks.recoveries(kept, make=False), attacks.RECOVERED["rounds"])


def write() -> None:
    """Write the page and the numbers behind it."""
    kept, others = Kept(RESULTS / "fedseq.json"), Kept(RESULTS / "attacks.json")
    found = {setting.title: part for setting in SETTINGS.values() if (part := setting_part(setting, kept))}
    notes = (RESULTS / "fedseq-notes.md").read_text(encoding="utf-8") if (RESULTS / "fedseq-notes.md").exists() else ""
    lacking = [setting.title for setting in SETTINGS.values() if setting.title not in found]
    parts = {"groups": group_part(kept), "flipping": flipping_part(others), "recovery": recovery_part(others)}
    text = TEXT.format(
        made=kept.made_by("make results-fedseq"),  # last: it tells of all rows that were shown
        lacking=f"Not run for this page: {'; '.join(lacking)}." if lacking else "",
        methods="\n".join(found.values()),
        notes=notes,
        **parts,
    )
    (RESULTS / "fedseq.md").write_text(_tidy(text), encoding="utf-8")
    kept.write()


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
