"""The writing of run folders: everything a run leaves behind, each file whole at any moment."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hansa import __version__
from hansa.data.federation import Federation
from hansa.errors import HansaError
from hansa.io import wire
from hansa.io.codec import to_table
from hansa.io.files import replacing, write_whole
from hansa.io.store import DiskStore, Store, checkpoint_of
from hansa.metrics.suite import Suite
from hansa.results.columns import recorded
from hansa.results.summary import client_tables, group_table, phase_summary, phase_tables
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import Record
from hansa.running.phase_run import PhaseRun
from hansa.task import task_to_table

Watcher = Callable[[Record], None]


class RunFolder:
    """A run's folder, and the journal of its rounds."""

    def __init__(self, path: Path, watchers: Sequence[Watcher] = ()):
        self.path, self.watchers = path, watchers
        self._rounds = path / "rounds.jsonl"

    @classmethod
    def create(cls, path: Path, plan: str, seed: int, engine: Mapping[str, Any]) -> RunFolder:
        """Create a folder with the resolved plan and the environment; refuse a folder that holds a run already."""
        if (path / "plan.toml").exists():
            raise HansaError(
                f"'{path}' holds a run already: continue it with 'hansa resume {path}', or choose another folder."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HansaError(
                f"The run folder '{path}' cannot be made: {error.strerror}. Choose another with --out."
            ) from error
        write_whole(path / "env.json", json.dumps(environment(seed, engine), indent=1))
        write_whole(path / "plan.toml", plan)
        return cls(path)

    def open_store(self) -> DiskStore:
        """Open the checkpoint."""
        return DiskStore(checkpoint_of(self.path))

    def write(self, record: Record) -> int:
        """Append a round and tell the watchers."""
        try:
            with self._rounds.open("ab") as file:
                file.write(json.dumps(record).encode() + b"\n")
                length = file.tell()
        except OSError as error:
            raise HansaError(f"'{self._rounds}' cannot be written: {error.strerror}.") from error
        for watcher in self.watchers:
            watcher(record)
        return length

    def rewind(self, length: int) -> None:
        """Cut off rounds that the checkpoint does not know."""
        if self._rounds.exists():
            if self._rounds.stat().st_size < length:
                raise HansaError(f"'{self._rounds}' is shorter than the checkpoint says: it was cut off or changed.")
            os.truncate(self._rounds, length)

    def records(self) -> list[Record]:
        """Return the rounds so far."""
        if not self._rounds.exists():
            return []
        return [json.loads(line) for line in self._rounds.read_text(encoding="utf-8").splitlines()]

    def write_data(self, experiment: Experiment) -> None:
        """Write how the data is distributed; on a resumed run, check that it still is."""
        from hansa.data.heterogeneity import distribution

        federation, task = experiment.federation, experiment.task
        data = {
            **distribution(federation),
            "task": task_to_table(task),
            "notes": list(federation.notes),
            "encoding": None if federation.encoding is None else to_table(federation.encoding),
        }
        path = self.path / "data.json"
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            exact = data.keys() & {"clients", "target", "counts", "sizes", "task"}  # no sums of floats
            if any(before.get(key) != data[key] for key in exact):
                raise HansaError(
                    f"The data has changed since the run in '{self.path}' began: bring back what it was run on."
                )
        else:
            write_whole(path, json.dumps(data))

    def write_model(self, run: PhaseRun) -> None:
        """Write the global model the last phase left behind, as a safetensors file."""
        if not run.algorithm.personal:
            write_whole(self.path / "model.safetensors", wire.pack(run.algorithm.model(run.task, run.server)))

    def export(self, store: Store, federation: Federation, phases: Sequence[Phase]) -> None:
        """Export per-client results and costs as tidy Parquet files, and tables such as the confusion matrix."""
        names = np.array(list(federation.clients))
        sizes = np.array([client.size for client in federation.clients.values()])
        found = ((one, store.get(f"{one['phase']}/scores/{one['round']}")) for one in self.records() if one["metrics"])
        evaluations = [(record, rows) for record, rows in found if rows is not None]
        _write_parquet(self.path / "clients.parquet", client_tables(evaluations, names, sizes))
        chains = ((one, store.get(f"{one['phase']}/groups/{one['round']}")) for one in self.records())
        groups = [group_table(record, rows, names) for record, rows in chains if rows is not None]
        _write_parquet(self.path / "groups.parquet", groups)
        tables = [one for one in (phase_tables(rounds, store.get) for rounds in self._by_phase()) if one["tables"]]
        if tables:
            write_whole(self.path / "tables.json", json.dumps({"phases": tables}))
        costs = [_costs(store, index, phase, names) for index, phase in enumerate(phases)]
        _write_parquet(self.path / "ledger.parquet", [table for table in costs if table is not None])

    def _by_phase(self) -> list[list[Record]]:
        rounds = self.records()
        return [[one for one in rounds if one["phase"] == phase] for phase in sorted({one["phase"] for one in rounds})]

    def record_engine(self) -> None:
        """Write into `env.json` how every phase was carried out: what was settled before, and what was really done."""
        path, phases = self.path / "env.json", self._by_phase()
        told = json.loads(path.read_text(encoding="utf-8"))
        told["engine"]["phases"] = [_carried_out(rounds) for rounds in phases]
        write_whole(path, json.dumps(told, indent=1))

    def summarise(
        self, status: str, name: str, seed: int, features: Mapping[str, Any] | None, suite: Suite | None = None
    ) -> dict[str, Any]:
        """Write and return `summary.json`: the metrics, where each phase began, what it reached and what it cost."""
        phases = [phase_summary(rounds) for rounds in self._by_phase()]
        metrics = [] if suite is None else recorded(suite)
        summary = {
            "status": status,
            "name": name,
            "seed": seed,
            "features": features,
            "metrics": metrics,
            "phases": phases,
        }
        write_whole(self.path / "summary.json", json.dumps(summary, indent=1))
        return summary


def _carried_out(rounds: Sequence[Record]) -> dict[str, Any]:
    """Return what the engine settled before a phase, and how often each way was taken."""
    paths: Counter[str] = Counter()
    for record in rounds:
        paths.update(record["paths"])
    return {**rounds[0].get("engine", {}), "paths": dict(paths)}


def _costs(store: Store, index: int, phase: Phase, names: Any) -> dict[str, Any] | None:
    tree = store.get(f"{index}/ledger")
    if tree is None:
        return None
    columns = {key: tree[key].numpy() for key in ("visits", "bytes_up", "bytes_down", "bytes_evaluate", "flops")}
    return {"phase": np.full(len(names), index), "phase_name": [phase.name] * len(names), "client": names, **columns}


def _write_parquet(path: Path, tables: Sequence[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    if not tables:
        return
    schema = pyarrow.table(tables[0]).schema
    with replacing(path) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        for table in tables:
            writer.write_table(pyarrow.table(table))


def environment(seed: int, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts needed to repeat a run elsewhere."""
    return {
        "hansa": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "commit": _commit(),
        "engine": dict(engine),
        "seed": seed,
        "command": sys.argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """Return the commit of the folder the run was started in, where that is a git checkout."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
