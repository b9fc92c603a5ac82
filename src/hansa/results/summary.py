"""The outcome of a phase: its summary from the records of its rounds, and its clients' rows as tidy columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hansa.metrics.suite import TABLE, is_sum
from hansa.tree import Tree

Record = Mapping[str, Any]
COSTS = ("bytes_up", "bytes_down", "flops", "seconds")
WATCHED = ("loss", "rmse")  # what grows without bound where training does
EXPLODED = 10  # times what it was
EXCHANGES = ("s2c", "c2s", "c2c")  # messages: server to client, client to server, client to client


def phase_summary(records: Sequence[Record]) -> dict[str, Any]:
    """Summarise where a phase began, what it reached, and what it cost.

    Its metrics are those of the model it deploys: of the round that a record names as `deployed`, else of the last
    evaluation, and never of the best on a test set.  `evaluated` is that round; None where there was no evaluation.
    """
    last = records[-1]
    evaluated, deployed = _evaluations(records), _deployed(records)
    final = deployed if deployed in evaluated else max((number for number in evaluated if number > 0), default=None)
    return {
        "name": str(last.get("phase_name", last["phase"])),
        "algorithm": str(last.get("algorithm", "")),
        "rounds": last["round"],
        "before": records[0].get("before", {}),
        "evaluated": final,
        "deployed": deployed,
        "metrics": {} if final is None else evaluated[final],
        "exploded": final is not None and exploded(records[0].get("before", {}), evaluated[final]),
        **{key: sum(record.get(key, 0) for record in records) for key in (*COSTS, *EXCHANGES)},
        **{key: records[0][key] for key in ("oracle", "attack") if key in records[0]},
        **({"clock": last["clock"]} if "clock" in last else {}),
    }


def exploded(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Tell whether a loss or an error is many times what the phase began with, or whether outputs are no numbers."""
    if any(name.endswith("undefined") and after[name] for name in after):
        return True
    watched = [name for name in after if name in before and name.split("_")[1] in WATCHED]
    known = [name for name in watched if None not in (before[name], after[name])]  # of a file that somebody wrote
    return any(after[name] > EXPLODED * max(before[name], 1.0) for name in known)


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


def _evaluations(records: Sequence[Record]) -> dict[int, Mapping[str, float]]:
    """Return the metrics by round; round 0 is what the phase began with."""
    before = {0: records[0]["before"]} if records[0].get("before") else {}
    return before | {record["round"]: record["metrics"] for record in records if record.get("metrics")}


def _deployed(records: Sequence[Record]) -> int | None:
    """Return the round whose model is deployed, where the run chose one by its validation sets."""
    told = [record["deployed"] for record in records if record.get("deployed") is not None]
    return int(told[-1]) if told else None


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
