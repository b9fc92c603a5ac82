"""Writing run folders: everything a run leaves behind, each file whole at any moment."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
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
from hansa.io.store import DiskStore, Store, checkpoint_of
from hansa.running.loop import Record
from hansa.running.phase_run import Experiment, Phase, PhaseRun

Watcher = Callable[[Record], None]


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file at once: a reader, or a run killed now, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HansaError(f"'{path}' cannot be written: {error.strerror}.") from error


class RunFolder:
    """A run's folder, and the journal of its rounds."""

    def __init__(self, path: Path, watchers: Sequence[Watcher] = ()):
        self.path, self.watchers = path, watchers
        self._rounds = path / "rounds.jsonl"

    @classmethod
    def create(cls, path: Path, plan: str, seed: int, engine: Mapping[str, Any]) -> RunFolder:
        """A new folder with the resolved plan and the environment; a folder that holds a run already is refused."""
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
        """The checkpoint."""
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
        """The rounds so far."""
        if not self._rounds.exists():
            return []
        return [json.loads(line) for line in self._rounds.read_text(encoding="utf-8").splitlines()]

    def write_data(self, experiment: Experiment) -> None:
        """How the data lies; on a resumed run, that it still lies as it did."""
        from hansa.data.heterogeneity import measure

        federation, task = experiment.federation, experiment.task
        counts = federation.label_counts()
        data = {
            "clients": list(federation.clients),
            "class_names": list(federation.class_names),
            "counts": counts.tolist(),
            "input_shape": list(task.input_shape),
            "integers": task.integers,
            "notes": list(federation.notes),
            "heterogeneity": measure(counts).summary(),
        }
        path = self.path / "data.json"
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            if any(before[key] != data[key] for key in ("clients", "class_names", "counts", "input_shape")):
                raise HansaError(
                    f"The data has changed since the run in '{self.path}' began: bring back what it was run on."
                )
        else:
            write_whole(path, json.dumps(data))

    def write_model(self, stage: PhaseRun) -> None:
        """The global model the last phase left behind, as a safetensors file."""
        if not stage.algorithm.personal:
            write_whole(self.path / "model.safetensors", wire.pack(stage.algorithm.model(stage.task, stage.server, {})))

    def export(self, store: Store, federation: Federation, phases: Sequence[Phase]) -> None:
        """Per-client results and costs as tidy Parquet files."""
        names = np.array(list(federation.clients))
        sizes = np.array([client.size for client in federation.clients.values()])
        judged = [record for record in self.records() if record["metrics"]]
        outside = any("local_class_accuracy" in record["metrics"] for record in judged)
        asked = ("local", "outside") if outside else ()  # of some phase: then all rows have these columns
        tables = [_scores(store, record, names, sizes, asked) for record in judged]
        _write_parquet(self.path / "clients.parquet", [table for table in tables if table is not None])
        costs = [_costs(store, index, phase, names) for index, phase in enumerate(phases)]
        _write_parquet(self.path / "ledger.parquet", [table for table in costs if table is not None])

    def summarise(self, status: str, name: str, seed: int, features: Mapping[str, Any] | None) -> dict[str, Any]:
        """Write and return `summary.json`: where each phase began, what it reached last, and what it cost."""
        rounds = self.records()
        phases = [_phase_summary([r for r in rounds if r["phase"] == p]) for p in sorted({r["phase"] for r in rounds})]
        summary = {"status": status, "name": name, "seed": seed, "features": features, "phases": phases}
        write_whole(self.path / "summary.json", json.dumps(summary, indent=1))
        return summary


def _phase_summary(rounds: Sequence[Record]) -> dict[str, Any]:
    sums = {key: sum(record[key] for record in rounds) for key in ("bytes_up", "bytes_down", "flops", "seconds")}
    judged = [record["metrics"] for record in rounds if record["metrics"]]
    return {
        "name": rounds[0]["phase_name"],
        "algorithm": rounds[0]["algorithm"],
        "rounds": rounds[-1]["round"],
        "before": rounds[0].get("before", {}),
        "metrics": judged[-1] if judged else {},
        **sums,
    }


def _scores(store: Store, record: Record, names: Any, sizes: Any, asked: Sequence[str]) -> dict[str, Any] | None:
    tree = store.get(f"{record['phase']}/scores/{record['round']}")
    if tree is None:
        return None
    rows = tree["client"].numpy()
    none = torch.full((len(rows),), torch.nan)
    return {
        "phase": np.full(len(rows), record["phase"]),
        "phase_name": [record["phase_name"]] * len(rows),
        "round": np.full(len(rows), record["round"]),
        "client": names[rows],
        "train_samples": sizes[rows],
        "test_samples": tree["samples"].numpy(),
        "correct": tree["correct"].numpy(),
        "accuracy": (tree["correct"].double() / tree["samples"]).numpy(),
        "loss": _present(tree["loss"]),
        "balanced_accuracy": _present(tree["balanced"]),
        **(
            {f"{name}_class_accuracy": _present(tree.get(name, none)) for name in ("local", "outside")} if asked else {}
        ),
    }


def _present(column: torch.Tensor) -> Any:
    """A column in which what is no number is missing."""
    import pyarrow

    numbers = column.double().numpy()
    return pyarrow.array(numbers, mask=~np.isfinite(numbers))


def _costs(store: Store, index: int, phase: Phase, names: Any) -> dict[str, Any] | None:
    tree = store.get(f"{index}/ledger")
    if tree is None:
        return None
    columns = {key: tree[key].numpy() for key in ("visits", "bytes_up", "bytes_down", "flops")}
    return {"phase": np.full(len(names), index), "phase_name": [phase.name] * len(names), "client": names, **columns}


def _write_parquet(path: Path, tables: Sequence[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    if not tables:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with pyarrow.parquet.ParquetWriter(temporary, pyarrow.table(tables[0]).schema) as writer:
            for table in tables:
                writer.write_table(pyarrow.table(table))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HansaError(f"'{path}' cannot be written: {error}.") from error


def environment(seed: int, engine: Mapping[str, Any]) -> dict[str, Any]:
    """What one must know to repeat a run elsewhere."""
    return {
        "hansa": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "commit": _commit(),
        "device": "cpu",
        "engine": dict(engine),
        "seed": seed,
        "command": sys.argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of the folder the run was started in, where that is a git checkout."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
