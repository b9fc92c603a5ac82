"""The reading of run folders: a run's results and costs, finished or not."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hansa.errors import HansaError, did_you_mean, require
from hansa.metrics.facts import Facts
from hansa.results.columns import facts_from

if TYPE_CHECKING:
    import pyarrow

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A run folder.  Files are read when first asked for; a missing one reads as empty, since a run may go on."""

    path: Path
    given: Any = field(default=None, repr=False, compare=False)  # data that the run was given as objects just now

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open the run in a folder, or tell in a sentence why it holds none."""
        path = Path(path)
        require(path.is_dir(), f"There is no run folder '{path}'. Give a folder that 'hansa run' has written.")
        require((path / "plan.toml").is_file(), f"The folder '{path}' is not a run folder: it has no plan.toml.")
        return cls(path)

    @cached_property
    def plan_text(self) -> str:
        """The resolved plan as it stands on disk."""
        return (self.path / "plan.toml").read_text(encoding="utf-8", errors="replace")

    @cached_property
    def plan(self) -> Record:
        """The resolved plan."""
        try:
            return tomllib.loads(self.plan_text)
        except (ValueError, RecursionError) as error:
            raise HansaError(f"The plan '{self.path / 'plan.toml'}' is not valid TOML: {error}.") from error

    @cached_property
    def environment(self) -> Record:
        """Versions, device and seed the run had."""
        return self._json("env.json")

    @cached_property
    def data(self) -> Record:
        """The division of the data: clients, classes, counts and heterogeneity."""
        return self._json("data.json")

    def recorded(self, key: str) -> Any:
        """Return an entry of `data.json` that every run has."""
        path = self.path / "data.json"
        there = key in self.data and (key != "clients" or good_names(self.data[key]))
        require(there, f"The file '{path}' is damaged: it has no sound '{key}'. Restore it or run again.")
        return self.data[key]

    @cached_property
    def summary(self) -> Record:
        """The run's own account of its end; empty when it was killed."""
        return self._json("summary.json")

    @cached_property
    def tables(self) -> Record:
        """Tables of the evaluation each phase is known by, such as confusion matrices, where they were asked for."""
        return self._json("tables.json")

    @cached_property
    def exhibits(self) -> Record:
        """Exhibits of every phase, tables that its algorithm shows beside the metrics, where it has any."""
        return self._json("exhibits.json")

    @cached_property
    def recovery(self) -> Record:
        """The distances of images that an attacker recovered, where somebody noted them."""
        return self._json("recovery.json")

    @cached_property
    def metrics(self) -> tuple[Facts, ...]:
        """The run's recorded facts on its metrics; where it recorded nothing, the catalogue's on the usual ones."""
        try:
            return facts_from(self.summary.get("metrics", ()))
        except (KeyError, TypeError) as error:
            path = self.path / "summary.json"
            raise HansaError(f"The metrics in '{path}' are damaged. Remove the file or run again.") from error

    @cached_property
    def rounds(self) -> list[Record]:
        """A record per round, in order; where a resumed run repeated a round, its last record."""
        latest = {(record["phase"], record["round"]): record for record in read_records(self.path / "rounds.jsonl")}
        return [latest[key] for key in sorted(latest)]

    @property
    def oracles(self) -> dict[str, str]:
        """By phase, a sentence on what its server was told that no real one would learn, where that is anything."""
        told = (one for one in self.rounds if one.get("oracle"))
        return {str(one.get("phase_name", one["phase"])): str(one["oracle"]) for one in told}

    @property
    def name(self) -> str:
        """The name its plan gave it, or the folder's."""
        return str(self.plan.get("name") or self.path.resolve().name)

    @property
    def seed(self) -> int | None:
        """The seed all its draws came from."""
        seed = self.plan.get("seed", self.environment.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def status(self) -> str:
        """'finished', 'interrupted', 'running' or 'forgetting'; 'unfinished' where no summary tells which it was."""
        return str(self.summary.get("status", "unfinished"))

    def clients(self) -> pyarrow.Table | None:
        """Return a row per client per evaluation, where clients have local test sets."""
        return self._table("clients.parquet")

    def ledger(self) -> pyarrow.Table | None:
        """Return a row per client per phase: its visits, bytes and FLOPs."""
        return self._table("ledger.parquet")

    def groups(self) -> pyarrow.Table | None:
        """Return a row per visit of a round, where clients are grouped into superclients."""
        return self._table("groups.parquet")

    def frame(self, of: Literal["clients", "rounds", "ledger"] = "clients") -> Any:
        """Return a row per client per evaluation, per round, or per client per phase with its costs.

        It is a pandas frame, or where pandas is not installed an Arrow table.
        """
        require(
            of in (known := ("clients", "rounds", "ledger")), f"There is no frame of '{of}'.{did_you_mean(of, known)}"
        )
        table = self._rounds_table() if of == "rounds" else self.clients() if of == "clients" else self.ledger()
        if table is None:
            says = f"The run in '{self.path}' has no rows of {of}"
            raise HansaError(f"{says}: clients need test samples of their own; see frame('rounds').")
        return table.to_pandas() if importlib.util.find_spec("pandas") else table

    def _rounds_table(self) -> pyarrow.Table:
        import pyarrow

        flat = (int, float, str)
        rows = [
            {**{key: value for key, value in record.items() if isinstance(value, flat)}, **record.get("metrics", {})}
            for record in self.rounds
        ]
        names = dict.fromkeys(key for row in rows for key in row)
        return pyarrow.table({name: [row.get(name) for row in rows] for name in names})

    def _repr_html_(self) -> str:
        from hansa.results.notebook import run_html

        return run_html(self)

    def _json(self, name: str) -> Record:
        path = self.path / name
        if not path.is_file():
            return {}
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise HansaError(f"The file '{path}' is damaged: {error}. Remove it or run again.") from error
        require(isinstance(content, dict), f"The file '{path}' is damaged: it holds no JSON object.")
        return dict(content)

    def _table(self, name: str) -> pyarrow.Table | None:
        path = self.path / name
        if not path.exists():
            return None
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(path).read()  # read_table imports pandas where it is installed
        except (pyarrow.ArrowException, OSError) as error:
            raise HansaError(f"The file '{path}' is damaged and cannot be read. Remove it or run again.") from error


def read_records(path: Path) -> Iterable[Record]:
    """Read the whole lines of a journal; a last line without an end, or cut off by a power cut, is not there yet."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            require(record.keys() >= {"phase", "round"} and sound(record), "")
        except (ValueError, AttributeError) as error:
            if number == len(lines):
                return
            raise HansaError(f"Line {number} of '{path}' is damaged. Remove that line or run again.") from error
        yield record


COUNTS = ("phase", "round", "rounds", "evaluated", "deployed", "bytes_up", "bytes_down", "s2c", "c2s", "c2c")
NUMBERS = ("flops", "seconds")
TABLES = ("before", "metrics", "clock")


def good_names(names: object) -> bool:
    """Tell whether it is a list of names, with one at least."""
    return isinstance(names, list) and len(names) > 0 and all(isinstance(name, str) for name in names)


def sound(record: Record) -> bool:
    """Tell whether what a record says is of the kinds that a run writes: counts, numbers and tables of numbers."""
    counts = all(record.get(key) is None or type(record[key]) is int for key in COUNTS)
    numbers = all(type(record.get(key, 0)) in (int, float) for key in NUMBERS)
    tables = [record.get(key, {}) for key in TABLES]
    return counts and numbers and all(isinstance(one, dict) and all(map(_measured, one.values())) for one in tables)


def _measured(value: object) -> bool:
    return value is None or type(value) in (int, float)


@contextmanager
def reading(runs: Sequence[Run]) -> Iterator[None]:
    """Turn what damaged files make a reader stumble over into a sentence that names the folders."""
    try:
        yield
    except HansaError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        names = ", ".join(f"'{run.path}'" for run in runs)
        says = f"A file of {names} is damaged, or written by another version ({type(error).__name__}: {error})"
        raise HansaError(f"{says}. Restore it or run again.") from error


def labels(runs: Sequence[Run]) -> list[str]:
    """Name each run so as to tell it from the others: its name, with seed or folder where that is not enough."""
    named = [run.name for run in runs]
    alike = [named.count(name) > 1 for name in named]
    seeded = [f"{run.name}, seed {run.seed}" for run in runs]
    placed = [f"{run.name}, {run.path.resolve().name}" for run in runs]
    numbered = [f"{run.name}, {number}" for number, run in enumerate(runs, start=1)]
    longer = (
        [long if same else name for long, same, name in zip(one, alike, named, strict=True)]
        for one in (seeded, placed, numbered)
    )
    return next((names for names in (named, *longer) if len(set(names)) == len(runs)), numbered)


def facts_in(runs: Sequence[Run]) -> tuple[Facts, ...]:
    """Return the runs' recorded facts on their metrics; of two that share a name, the first run's."""
    found = {facts.name: facts for run in reversed(runs) for facts in run.metrics}
    return tuple(found.values())
