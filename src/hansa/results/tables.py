"""Tables of a run: those of its metrics, and its clients' rows and superclients as tidy columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hansa.lazy import Tensor, torch
from hansa.metrics.facts import TABLE
from hansa.metrics.suite import is_sum
from hansa.results.summary import Record, phase_summary
from hansa.tree import Tree


def phase_tables(records: Sequence[Record], stored: Callable[[str], Tree | None]) -> dict[str, Any]:
    """Return the tables of a phase's known evaluation: of the global test set, and summed over its clients."""
    phase, told = records[-1]["phase"], phase_summary(records)
    tables = stored(f"{phase}/tables/{told['evaluated']}") or {}
    sums = stored(f"{phase}/scores/{told['evaluated']}") or {}
    tables |= {f"client_{key.removeprefix(TABLE)}": leaf for key, leaf in sums.items() if key.startswith(TABLE)}
    shown = {name: _plain(leaf.tolist()) for name, leaf in tables.items()}
    return {"phase": phase, "phase_name": told["name"], "round": told["evaluated"], "tables": shown}


def _plain(values: Any) -> Any:
    """Return nested lists in which what is no number is None."""
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return values if math.isfinite(values) else None


def client_tables(
    evaluations: Iterable[tuple[Record, Tree]], names: np.ndarray, sizes: np.ndarray
) -> list[dict[str, Any]]:
    """Return clients' rows of every evaluation as columns, the same for all: a metric that one lacks is missing."""
    pairs = list(evaluations)
    keys = dict.fromkeys(key for _, rows in pairs for key in rows if key not in ("client", "samples"))
    metrics = [key for key in keys if not is_sum(key) and key != "undefined"]
    return [_client_table(record, rows, names, sizes, metrics) for record, rows in pairs]


def _client_table(record: Record, rows: Tree, names: Any, sizes: Any, metrics: Sequence[str]) -> dict[str, Any]:
    place = rows["client"].numpy()
    none = torch.full((len(place),), torch.nan)
    correct = {"correct": _present((rows.get("accuracy", none) * rows["samples"]).round(), whole=True)}
    return {
        "phase": np.full(len(place), record["phase"]),
        "phase_name": [record["phase_name"]] * len(place),
        "round": np.full(len(place), record["round"]),
        "client": names[place],
        "train_samples": sizes[place],
        "test_samples": rows["samples"].numpy(),
        **(correct if "accuracy" in metrics else {}),
        **{key: _present(rows.get(key, none)) for key in metrics},
    }


def group_tables(chains: Iterable[tuple[Record, Tree]], names: np.ndarray) -> list[dict[str, Any]]:
    """Return the superclients of every round as columns, the same for all: times are missing where no clock ran."""
    pairs = list(chains)
    timed = any("start" in rows for _, rows in pairs)
    return [_group_table(record, rows, names, timed) for record, rows in pairs]


def _group_table(record: Record, rows: Tree, names: np.ndarray, timed: bool) -> dict[str, Any]:
    """Return who stood where in which chain of a round."""
    places = {key: rows[key].numpy() for key in ("superclient", "position")}
    count = len(places["position"])
    none = torch.full((count,), torch.nan)
    return {
        "phase": np.full(count, record["phase"]),
        "phase_name": [record["phase_name"]] * count,
        "round": np.full(count, record["round"]),
        **places,
        "client": names[rows["client"].numpy()],
        **({key: _present(rows.get(key, none)) for key in ("start", "end")} if timed else {}),
    }


def _present(values: Tensor, *, whole: bool = False) -> Any:
    """Return a column in which what is no number is missing."""
    import pyarrow

    numbers = values.double().numpy()
    there = np.isfinite(numbers)
    kept = np.where(there, numbers, 0)
    return pyarrow.array(kept.astype(np.int64) if whole else kept, mask=~there)
