"""The numbers behind a page, which outlive its runs: what was run elsewhere is read from the JSON file beside it.

Run folders are not in the repository.  A page keeps what it shows of every run, by the name of the row's runs, in which
the budget is a part.  Runs that are found take the row's place; seeds that were kept stay beside them only where they
had the same plan.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Job, environment

from hansa.io.cache import digest
from hansa.io.files import write_whole
from hansa.results.reader import Run

Facts = dict[str, Any]  # what a page shows of one run
ASIDE = ("name", "seed", "engine", "start", "track")  # of a plan; what a run starts from, its row's name tells


class Kept:
    """The rows of a page: of each the facts of every seed, the digest of their plan, and where they were made.

    A row may have `told` in the place of seeds: what a page showed of it when single seeds were not kept.  What a page
    shows beside its rows is `told` too.
    """

    def __init__(self, file: Path):
        self.file, self.shown = file, set[str]()
        self.rows: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def row(self, name: str, found: Iterable[tuple[Run, Facts]] = ()) -> list[Facts]:
        """Return a row's facts, seed by seed: of the runs that were found, and those that were kept."""
        pairs = list(found)
        if pairs:
            plans = sorted({plan_digest(run) for run, _ in pairs})
            if len(plans) > 1:
                raise SystemExit(f"The runs '{name}-seed…' have not all the same plan: remove those of old plans.")
            old = self.rows.get(name, {})
            old = old if old.get("plan") == plans[0] else {}
            seeds = {**old.get("seeds", {}), **{str(run.seed): facts for run, facts in pairs}}
            made = {*old.get("made", ()), *(environment(run) for run, _ in pairs)}
            self.rows[name] = {"plan": plans[0], "made": sorted(made), "seeds": dict(sorted(seeds.items()))}
        if name in self.rows:
            self.shown.add(name)
        return list(self.rows.get(name, {}).get("seeds", {}).values())

    def has(self, name: str, seed: int, of: int) -> bool:
        """Tell whether a row of so many runs has the numbers of one, wherever that was made.

        What was told of fewer runs cannot be joined by others.
        """
        row = self.rows.get(name, {})
        return str(seed) in row.get("seeds", {}) or ("told" in row and len(row["told"].get("runs", range(of))) >= of)

    def told(self, name: str) -> Facts:
        """Return what is known of a row whose single seeds were not kept."""
        found: Facts = self.rows.get(name, {}).get("told", {})
        return found

    def tell(self, name: str, facts: Facts) -> None:
        """Keep what a page shows beside its rows, in the place of what was kept."""
        self.rows[name] = {"told": facts}

    def made_by(self, command: str) -> str:
        """Say what one must know to repeat the page, and where the runs of the rows that it shows were made."""
        found = sorted({one for name in self.shown for one in self.rows[name]["made"]})
        return (
            f"Made by `{command}`. The numbers behind this page are in the JSON file beside it; a row whose runs are "
            "found under `runs/results/`, each with its resolved plan, seed and environment, takes the place of what "
            f"was kept there. Its runs were made with {'; '.join(found) or 'nothing yet'}."
        )

    def write(self) -> None:
        """Write all rows, a line each, also those that a page of this budget does not show."""
        lines = (
            f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in sorted(self.rows.items())
        )
        write_whole(self.file, "{\n" + ",\n".join(lines) + "\n}\n")


LACKING = "lacking"  # the word that asks for the runs whose numbers a page lacks, and no others


def lacking_first(jobs: Iterable[Job], pages: Sequence[Kept], words: Sequence[str]) -> list[Job]:
    """Return runs in the order they are made: those that the pages lack, then, unless `lacking` is said, the others."""
    jobs = list(jobs)
    runs = Counter(job.name for job in jobs)
    there = [job for job in jobs if any(page.has(job.name, job.seed, runs[job.name]) for page in pages)]
    lacking = [job for job in jobs if job not in there]
    return lacking if LACKING in words else [*lacking, *there]


def plan_digest(run: Run) -> str:
    """Return a digest of what decides a row's numbers: its plan, whatever seed, device and folder of data it has."""
    settings = {key: value for key, value in run.plan.items() if key not in ASIDE}
    settings["precision"] = run.plan.get("engine", {}).get("precision", "float32")
    return digest(json.dumps(_anywhere(settings), sort_keys=True))


def _anywhere(value: Any) -> Any:
    """Return settings whose paths have lost their folders, which differ from machine to machine."""
    if isinstance(value, Mapping):
        return {
            key: Path(one).name if key == "path" and isinstance(one, str) else _anywhere(one)
            for key, one in value.items()
        }
    return [_anywhere(one) for one in value] if isinstance(value, list) else value
