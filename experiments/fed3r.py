"""Fed3R on real data: docs/results/fed3r.md.

    make results-fed3r                            # everything; finished runs are found, not repeated
    python experiments/fed3r.py init closed       # the runs of some sections
    python experiments/fed3r.py lacking           # the runs whose numbers the page lacks, and no others
    python experiments/fed3r.py page              # the page from the runs that are there, and from what was kept

Sections are the words of SECTIONS, rows and plans are in fed3r_rows.py.  Hansa's defaults are the main rows, the
papers' values (λ = 0.01, T = 0.1, a tenth of the rate) are named rows beside them.  Runs whose numbers the page lacks
come first.  HANSA_DEVICE says where features are made, of which the first run of each kind is made before the others;
heads and adapters train on the CPU.  HANSA_WORKERS runs so many at a time, and HANSA_SECONDS ends it after so many:
runs under way go on the next time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import fed3r_beside
import fed3r_rows as rows
import numpy as np
from common import DIVERGED, RESULTS, RUNS, UNTIL, finished, make_with_features, picture, reached, spread, table
from fed3r_rows import ROUNDS, Row
from kept import LACKING, Facts, Kept, lacking_first
from safetensors.torch import load_file

from hansa.results.reader import Run

TARGETS = (0.50, 0.55, 0.58, 0.60)
LATER = "Not run for this page."


def facts(done: Run) -> Facts:
    """Return what the page shows of a run: accuracy after every phase, targets that were reached, and costs.

    Of one that diverged, after how many rounds it did.
    """
    if done.status == DIVERGED:
        return {DIVERGED: len(done.rounds)}
    phases = done.summary["phases"]
    return {
        "accuracy": [phase["metrics"].get("test_accuracy") for phase in phases],
        "reached": {f"{100 * target:.0f}": reached(done, target) for target in TARGETS},
        "up": sum(phase["bytes_up"] for phase in phases),
        "down": sum(phase["bytes_down"] for phase in phases),
        "visits": sum(one["clients"] for one in done.rounds),
    }


class Page:
    """The sections of the page, each a text from what is known of its rows; rows that were not run are left out."""

    def __init__(self, kept: Kept):
        self.kept = kept

    def known(self, row: Row) -> list[Facts]:
        """Return the facts of every seed of a row that was run, here or before."""
        ends = ("finished", DIVERGED)
        found = self.kept.row(row.name, [(one, facts(one)) for one in finished(row.name, row.seeds, ends)])
        return found or self.kept.told(row.name).get("runs", [])

    def shown(self, head: Sequence[str], lines: Iterable[tuple[Row, Sequence[object]]]) -> str:
        """Return the table of the rows of which something is known."""
        found = [cells for row, cells in lines if self.known(row)]
        return table(head, found) if found else LATER

    def accuracy(self, row: Row, phase: int = -1) -> str:
        """Return mean and spread at the end of a phase, and how many runs never came there."""
        known = self.known(row)
        found = [one["accuracy"][phase] for one in known if DIVERGED not in one]
        lost = sorted(one[DIVERGED] for one in known if DIVERGED in one)
        after = f"{len(lost)} of {len(known)} diverged, after {' and '.join(map(str, lost))} rounds" if lost else ""
        return "; ".join(filter(None, (spread(found) if found else "", after))) or "–"

    def megabytes(self, row: Row, key: str = "up", visit: bool = False) -> str:
        """Return the mean over runs of what all phases sent together, or for a visit."""
        found = [one[key] / (one["visits"] if visit else 1) for one in self.known(row) if key in one]
        mean = float(np.mean(found)) / 1e6 if found else 0.0
        return f"{mean:.{1 if mean >= 1 else 3}f} MB" if found else "–"

    def to_targets(self, row: Row, targets: Sequence[float] = TARGETS) -> list[str]:
        """Return the rounds and bytes that a row needs for each target."""
        found = [one.get("reached", {}) for one in self.known(row)]
        return [_needed([one.get(f"{100 * target:.0f}") for one in found]) for target in targets]

    def heterogeneity(self) -> str:
        """The same Fed3R on every split, where FedAvg moves."""
        lines, exact = [], set[str]()
        for alpha, (own, paper, trained) in rows.splits():
            closed = [{f"{100 * one['accuracy'][-1]:.2f}" for one in self.known(row)} for row in (own, paper)]
            exact |= closed[0]
            lines.append((alpha, *(" / ".join(sorted(one)) or "–" for one in closed), self.accuracy(trained)))
        same = "the same to the last digit shown on every split and seed"
        verdict = f"\n\nFed3R's accuracy is {same if len(exact) == 1 else 'NOT the same'}." if exact else ""
        head = ("α", "Fed3R, 1 round", "Fed3R, λ = 0.01 (papers)", "FedAvg(ψ), 300 rounds, mean ± std of three seeds")
        return f"{table(head, lines)}{verdict}"

    def closed_forms(self) -> str:
        """Fed3R against other closed forms and with random features."""
        lines = [
            (row, (row.title, self.accuracy(row), figure, self.megabytes(row))) for row, figure in rows.closed_rows()
        ]
        return self.shown(("classifier", "test accuracy", "independent script", "uploaded in all"), lines)

    def initialisation(self) -> str:
        """Rounds and bytes to a target, from a random head and from Fed3R's."""
        lines = [
            (row, (label, start, *self.to_targets(row), self.accuracy(row)))
            for (label, start), row in rows.start_rows().items()
        ]
        return self.shown(("method", "head starts from", *_titles(), f"after {ROUNDS} rounds"), lines)

    def communication(self) -> str:
        """Table 1 of the workshop paper: what a visit and a target cost while the features are fixed."""
        closed = {row.title: row for row, _ in rows.closed_rows()}
        names = ("Fed3R", "Fed3R-RF 5k, σ = 2 × distance", "Fed3R-RF 10k, σ = 2 × distance", "FedNCM, cosine", "FedCOF")
        shown = [rows.start_rows()[name, "random"] for name in ("FedAvg", "SCAFFOLD")] + [
            closed[name] for name in names
        ]
        lines = []
        for row in shown:
            costs = (self.megabytes(row, key, visit=True) for key in ("down", "up"))
            lines.append((row, (row.title, *costs, *self.to_targets(row, TARGETS[:3]), self.accuracy(row))))
        return self.shown(("method", "down a visit", "up a visit", *_titles(TARGETS[:3]), "at the end"), lines)

    def moving(self) -> str:
        """Table 2 of the workshop paper: rounds to a target while features move."""
        lines = [(row, (row.title, *self.to_targets(row), self.accuracy(row))) for row in rows.moving_rows()]
        return self.shown(("method", *_titles(), f"after {ROUNDS} rounds"), lines)

    def architectures(self) -> str:
        """Table 3 of the workshop paper: the same with larger networks."""
        lines = [
            (row, (f"EfficientNet-Lite{variant}", row.title, *self.to_targets(row), self.accuracy(row)))
            for variant, own in rows.architecture_rows()
            for row in own
        ]
        return self.shown(("backbone", "method", *_titles(), "at the end"), lines)

    def writers(self) -> str:
        """Accuracy on writers that nobody has."""
        lines = [(row, (row.title, self.accuracy(row), self.megabytes(row))) for row in rows.writer_rows()]
        return self.shown(("method", "test accuracy (writers never seen)", "uploaded in all"), lines)

    def domain_shift(self) -> str:
        """Table 24: Fed3R where the clients' channels differ."""
        ways = (("fedavg", -1), ("both", 0), ("both", -1), ("paper", 0), ("paper", -1), ("select", -1))
        lines = [
            (delta, "yes" if normal else "no", *(self.accuracy(own[key], phase) for key, phase in ways))
            for delta, normal, own in rows.shift_rows()
        ]
        head = ("δ", "FedRDN", "FedAvg(ψ), 100 rounds", "Fed3R", "Fed3R + FedAvg(ψ)", "Fed3R, papers' λ")
        return table((*head, "and FedAvg(ψ), papers' values", "λ from held-out clients"), lines)

    def selection(self) -> str:
        """What a choice of λ costs, none of which communicates."""
        lines = [(row, (row.title, self.accuracy(row))) for row in rows.ridge_rows()]
        return self.shown(("classifier (no normalisation)", "test accuracy"), lines)

    def beside(self, name: str) -> Facts:
        """Return what was recorded beside the rows, here or before."""
        record = RUNS / f"fed3r-{name}.json"
        if record.exists():
            self.kept.tell(name, json.loads(record.read_text(encoding="utf-8")))
        return self.kept.told(name)

    def forgetting(self) -> str:
        """What was recorded when a client left."""
        if not (told := self.beside("forgetting")):
            return LATER
        before, after = told["accuracy"]
        return (
            f"Client `client-007` of 100 leaves: accuracy {100 * before:.2f} % before, {100 * after:.2f} % after. The "
            f"classifier differs from one trained anew without it by {told['gap']:.1e} (relative, the model is "
            "float32); the sums differ from those of the other clients' kept uploads by "
            f"{told['difference_of_sums']:.1e}. It took {told['seconds']:.1f} s, no training and no contact with any "
            "client."
        )

    def privacy(self) -> str:
        """What was recorded of releases."""
        if not (found := self.beside("privacy")):
            return LATER
        clear, columns, trusts = found["no privacy"], found["columns"], ("central", "local")
        lines = {
            f"{trust}, {columns[0]}": [(float(e), float(np.mean([row[0] for row in drawn]))) for e, drawn in by.items()]
            for trust, by in ((trust, found[trust]) for trust in trusts)
        }
        ends = lines[f"central, {columns[0]}"]
        lines["no privacy"] = [(ends[0][0], clear[0]), (ends[-1][0], clear[0])]
        picture(RESULTS / "fed3r-privacy.svg", "Fed3R under (ε, 10⁻⁵)-differential privacy, CIFAR-100", "ε", lines)
        cells = [
            (e, *(spread([row[i] for row in found[trust][e]]) for trust in trusts for i in range(len(columns))))
            for e in found["central"]
        ]
        without = ["–"] * (len(columns) - len(clear)) + [spread([value]) for value in clear]
        cells.append(("none", *without, *without))
        return (
            f"{table(('ε', *(f'{trust}, {name}' for trust in trusts for name in columns)), cells)}\n\n"
            "![accuracy against ε](fed3r-privacy.svg)\n\nFeatures are clipped to length 1, one sample is protected, "
            "δ = 10⁻⁵; mean ± std over three draws of the noise. `central` adds noise once to the sum, in `local` each "
            "of the 100 clients adds its own."
        )

    def precision(self) -> str:
        """What the number format of the wire costs."""
        own = rows.wire_rows()
        lines = [(row, (row.title, self.accuracy(row), self.megabytes(row))) for row in own]
        models = [one.path / "model.safetensors" for row in own for one in finished(row.name, row.seeds)]
        if len(models) == len(own) and all(path.exists() for path in models):  # packed runs come without
            less, all_ = (load_file(path)["head.weight"].double() for path in models)
            self.kept.tell("wire", {"gap": float((less - all_).norm() / all_.norm())})
        told = self.kept.told("wire")
        gap = f"\n\nThe classifiers differ by {told['gap']:.1e} (relative Frobenius norm)." if told else ""
        return self.shown(("products and wire", "test accuracy", "uploaded"), lines) + gap


def _titles(targets: Sequence[float] = TARGETS) -> list[str]:
    return [f"to {100 * target:.0f} %" for target in targets]


def _needed(found: Sequence[tuple[int, float] | None]) -> str:
    hits = [hit for hit in found if hit is not None]
    if not found or len(hits) < len(found):
        return f"{len(hits)} of {len(found)} runs" if hits else "–"
    rounds, sent = (float(np.mean([hit[i] for hit in hits])) for i in (0, 1))
    return f"{rounds:.0f} rounds, {sent / 1e6:.0f} MB"


@dataclass(frozen=True)
class Section:
    """A part of the page: its text, its runs, what they need, and what is computed beside them and under which name."""

    title: str
    text: Callable[[Page], str]
    rows: Callable[[], Iterable[Row]] = tuple
    prepare: Callable[[], object] = lambda: None
    beside: str = ""
    make: Callable[[], object] = lambda: None


SECTIONS = {
    "splits": Section(
        "Heterogeneity does not matter", Page.heterogeneity, lambda: [row for _, own in rows.splits() for row in own]
    ),
    "closed": Section("Closed-form classifiers", Page.closed_forms, lambda: [row for row, _ in rows.closed_rows()]),
    "init": Section("As the start of fine-tuning (α = 0.1)", Page.initialisation, lambda: rows.start_rows().values()),
    "costs": Section("Communication, features fixed (Table 1 of the workshop paper)", Page.communication),
    "moving": Section("Rounds to a target, features trained (its Table 2; an adapter)", Page.moving, rows.moving_rows),
    "lite": Section(
        "Larger backbones (its Table 3)",
        Page.architectures,
        lambda: [row for _, own in rows.architecture_rows() for row in own],
    ),
    "writers": Section("MNIST by its 539 writers", Page.writers, rows.writer_rows),
    "shift": Section(
        "Domain shift (CIFAR-10, 5,000 images, 30 clients)",
        Page.domain_shift,
        lambda: [row for _, _, own in rows.shift_rows() for row in own.values()],
        rows.small_cifar10,
    ),
    "select": Section("Choosing λ without communication", Page.selection, rows.ridge_rows),
    "forget": Section("Forgetting one client", Page.forgetting, beside="forgetting", make=fed3r_beside.forgotten),
    "privacy": Section("Differential privacy", Page.privacy, beside="privacy", make=fed3r_beside.released),
    "wire": Section("The wire's number format", Page.precision, rows.wire_rows),
}


def every_row() -> dict[str, Row]:
    """All rows that have runs, by name."""
    return {row.name: row for section in SECTIONS.values() for row in section.rows()}


def write() -> None:
    """Write the page and the numbers behind it."""
    page = Page(Kept(RESULTS / "fed3r.json"))
    notes = (RESULTS / "fed3r-notes.md").read_text(encoding="utf-8")
    body = "\n\n".join(f"## {section.title}\n\n{section.text(page)}" for section in SECTIONS.values())
    every = every_row().values()
    lacking = sum(len(page.known(row)) < len(row.seeds) for row in every)
    missing = (
        f"\n\n{lacking} of {len(every)} rows were not run for this page, and are left out, or not with every seed."
        * bool(lacking)
    )
    made = page.kept.made_by("make results-fed3r") + missing
    (RESULTS / "fed3r.md").write_text(f"# Fed3R on real data\n\n{made}\n\n{notes}\n{body}\n", encoding="utf-8")
    page.kept.write()


def main(words: Sequence[str]) -> None:
    """Make the runs of the sections that are named (all where none is), then the page."""
    odd = [word for word in words if word not in (*SECTIONS, LACKING, "page")]
    if odd:
        raise SystemExit(f"There is no section '{odd[0]}': use {', '.join(SECTIONS)}, {LACKING}, page.")
    named = [SECTIONS[word] for word in words if word in SECTIONS]
    chosen = named or ([] if "page" in words else list(SECTIONS.values()))
    RUNS.mkdir(parents=True, exist_ok=True)
    kept = Kept(RESULTS / "fed3r.json")
    jobs = {str(job): job for one in chosen for row in one.rows() for job in row.jobs()}
    for section in chosen:
        section.prepare()
    good = make_with_features(lacking_first(jobs.values(), [kept], words))
    for section in chosen:
        if section.beside and not (LACKING in words and kept.told(section.beside)) and time.time() < UNTIL:
            section.make()
    if not words or "page" in words:
        write()
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
