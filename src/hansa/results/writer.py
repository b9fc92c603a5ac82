"""The writing of run folders: everything a run leaves behind, each file whole at any moment."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hansa import __version__
from hansa.data.federation import Federation
from hansa.errors import HansaError, require
from hansa.io import wire
from hansa.io.codec import to_table
from hansa.io.files import remove_left_overs, replacing, sync, write_whole
from hansa.io.store import DiskStore, Store, checkpoint_of
from hansa.lazy import torch
from hansa.metrics.suite import Suite
from hansa.results.columns import recorded
from hansa.results.exhibits import phase_exhibits
from hansa.results.reader import Run, read_records
from hansa.results.summary import phase_summary
from hansa.results.tables import client_tables, group_tables, phase_tables
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import Record
from hansa.running.phase_run import PhaseRun
from hansa.task_table import task_to_table

Watcher = Callable[[Record], None]
FILES = (  # that nobody writes but whoever has the folder's store open
    "audit.jsonl",
    "clients.parquet",
    "data.json",
    "env.json",
    "exhibits.json",
    "ledger.parquet",
    "model.safetensors",
    "plan.toml",
    "rounds.jsonl",
    "summary.json",
    "tables.json",
)


class RunFolder:
    """A run's folder, and the journal of its rounds."""

    def __init__(self, path: Path, watchers: Sequence[Watcher] = ()):
        self.path, self.watchers = path, watchers
        self._rounds = path / "rounds.jsonl"
        self._length, self._digest = 0, _digest()

    def claim(self) -> DiskStore:
        """Take a folder for a new run before anything is written into it; refuse one that holds a run already.

        The folder is taken while the store that this returns is open: of many runs that want it, one gets it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise HansaError(
                f"The run folder '{self.path}' cannot be made: {why}. Choose another with --out."
            ) from error
        self._must_be_new()
        store = self.open_store()
        try:
            self._must_be_new()  # another run may have come and gone meanwhile
            begun = (store.progress() or {}).get("round", 0)
            require(not begun, f"'{self.path}' holds the checkpoint of another run: choose another folder.")
        except HansaError:
            store.close()
            raise
        return store

    def _must_be_new(self) -> None:
        says = (
            f"'{self.path}' holds a run already: continue it with 'hansa resume {self.path}', or choose another folder"
        )
        require(not (self.path / "plan.toml").exists(), f"{says}.")

    def begin(self, plan: str, seed: int, engine: Mapping[str, Any], *, trusted: Sequence[str] = ()) -> None:
        """Write the environment and, last, the resolved plan, which makes the folder a run."""
        write_whole(self._rounds, b"")
        write_whole(self.path / "env.json", json.dumps(environment(seed, engine, trusted), indent=1))
        write_whole(self.path / "plan.toml", plan)

    def open_store(self) -> DiskStore:
        """Open the checkpoint, and remove what a process that was killed as it wrote left behind."""
        store = DiskStore(checkpoint_of(self.path))
        remove_left_overs(self.path, FILES)
        return store

    def write(self, record: Record) -> None:
        """Append a round and tell the watchers."""
        line = json.dumps(record).encode() + b"\n"
        try:
            with self._rounds.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise HansaError(f"'{self._rounds}' cannot be written: {error.strerror}.") from error
        self._length += len(line)
        self._digest.update(line)
        for watcher in self.watchers:
            watcher(record)

    def settle(self) -> Record:
        """Make all rounds so far permanent, and return the journal's length and digest for the commit."""
        try:
            sync(self._rounds)
        except OSError as error:
            raise HansaError(f"'{self._rounds}' cannot be written: {error.strerror}.") from error
        return {"journal": self._length, "journal_digest": self._digest.hexdigest()}

    def rewind(self, progress: Record) -> None:
        """Cut off rounds that the checkpoint does not know; refuse a journal that is not the one it knows."""
        length = progress["journal"]
        known = self._rounds.read_bytes()[:length] if self._rounds.exists() else b""
        self._length, self._digest = length, _digest(known)
        if len(known) < length or self._digest.hexdigest() != progress.get("journal_digest", _digest().hexdigest()):
            raise HansaError(
                f"'{self._rounds}' is not the journal that the checkpoint knows: it was cut off or changed. Bring it "
                "back, or run the plan again in another folder."
            )
        if self._rounds.exists():
            os.truncate(self._rounds, length)

    def records(self) -> list[Record]:
        """Return the rounds so far."""
        return [dict(record) for record in read_records(self._rounds)]

    def write_data(self, experiment: Experiment, *, changed: bool = False) -> None:
        """Write how the data is distributed; where that is written already, check that it still is so.

        A change that was accepted takes the place of what is written.
        """
        from hansa.data.heterogeneity import distribution

        federation, task = experiment.federation, experiment.task
        data = {
            **distribution(federation),
            "task": task_to_table(replace(task, networks={})),  # which are made anew with the data
            "notes": list(federation.notes),
            "encoding": None if federation.encoding is None else to_table(federation.encoding),
            "digest": federation.digest,
        }
        if federation.encodings:
            data["encodings"] = {client: to_table(own) for client, own in federation.encodings.items()}
        path = self.path / "data.json"
        if path.exists() and not changed:
            before = Run(self.path).data
            # Sums of floats are not compared; what the file does not tell, as after forgetting, cannot be.
            exact = data.keys() & before.keys() & {"clients", "target", "counts", "sizes", "task", "digest"}
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
        """Export per-client results and costs as tidy Parquet files, tables such as confusion, and exhibits."""
        names = np.array(list(federation.clients))
        sizes = np.array([client.size for client in federation.clients.values()])
        found = ((one, store.get(f"{one['phase']}/scores/{one['round']}")) for one in self.records() if one["metrics"])
        evaluations = [(record, rows) for record, rows in found if rows is not None]
        _write_parquet(self.path / "clients.parquet", client_tables(evaluations, names, sizes))
        chains = ((one, store.get(f"{one['phase']}/groups/{one['round']}")) for one in self.records())
        groups = [(record, rows) for record, rows in chains if rows is not None]
        _write_parquet(self.path / "groups.parquet", group_tables(groups, names))
        tables = [one for one in (phase_tables(rounds, store.get) for rounds in self._by_phase()) if one["tables"]]
        if tables:
            write_whole(self.path / "tables.json", json.dumps({"phases": tables}))
        exhibits = [
            one for one in (phase_exhibits(rounds, store.get) for rounds in self._by_phase()) if one["exhibits"]
        ]
        if exhibits:
            write_whole(self.path / "exhibits.json", json.dumps({"phases": exhibits}))
        costs = [_costs(store, index, phase, names) for index, phase in enumerate(phases)]
        _write_parquet(self.path / "ledger.parquet", [table for table in costs if table is not None])

    def _by_phase(self) -> list[list[Record]]:
        rounds = self.records()
        return [[one for one in rounds if one["phase"] == phase] for phase in sorted({one["phase"] for one in rounds})]

    def record_engine(self) -> None:
        """Write into `env.json` how every phase was carried out: what was settled before, and what was really done."""
        path, phases = self.path / "env.json", self._by_phase()
        told = dict(Run(self.path).environment)
        require(isinstance(told.get("engine"), dict), f"The file '{path}' is damaged: it tells no engine. Restore it.")
        told["engine"]["phases"] = [_carried_out(rounds) for rounds in phases]
        write_whole(path, json.dumps(told, indent=1))

    def record_accepted(self, changes: Mapping[str, Sequence[str]]) -> None:
        """Write into `env.json` what had changed and was accepted when the run was resumed, and when that was."""
        told = dict(Run(self.path).environment)
        now = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "changes": dict(changes)}
        told["accepted"] = [*told.get("accepted", []), now]
        write_whole(self.path / "env.json", json.dumps(told, indent=1))

    def summarise(
        self,
        status: str,
        name: str,
        seed: int,
        features: Mapping[str, Any] | None,
        suite: Suite | None = None,
        why: str = "",
    ) -> dict[str, Any]:
        """Write and return `summary.json`: the metrics, where each phase began, what it reached and what it cost."""
        phases = [phase_summary(rounds) for rounds in self._by_phase()]
        metrics = [] if suite is None else recorded(suite)
        summary = {
            "status": status,
            **({"why": why} if why else {}),
            "name": name,
            "seed": seed,
            "features": features,
            "metrics": metrics,
            "phases": phases,
        }
        told = [record["privacy"] for record in self.records() if "privacy" in record]
        summary |= {"privacy": told[-1]} if told else {}
        write_whole(self.path / "summary.json", json.dumps(summary, indent=1))
        return summary


def _digest(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)


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


def environment(seed: int, engine: Mapping[str, Any], trusted: Sequence[str] = ()) -> dict[str, Any]:
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
        "trusted": list(trusted),  # import paths of code outside the catalogue that the plan names
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
