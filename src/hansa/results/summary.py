"""The outcome of a phase: its summary from the records of its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
        **_clock(records),
    }


def _clock(records: Sequence[Record]) -> dict[str, Any]:
    """Return when a phase began and ended in simulated time, and what was waited; nothing where none passed."""
    timed = [record["clock"] for record in records if "clock" in record]
    return {"clock": {**timed[-1], "start": timed[0]["start"]}} if timed else {}


def exploded(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Tell whether a loss or an error is many times what the phase began with, or whether outputs are no numbers."""
    if any(name.endswith("undefined") and after[name] for name in after):
        return True
    watched = [name for name in after if name in before and name.split("_")[1] in WATCHED]
    known = [name for name in watched if None not in (before[name], after[name])]  # of a file that somebody wrote
    return any(after[name] > EXPLODED * max(before[name], 1.0) for name in known)


def _evaluations(records: Sequence[Record]) -> dict[int, Mapping[str, float]]:
    """Return the metrics by round; round 0 is what the phase began with."""
    before = {0: records[0]["before"]} if records[0].get("before") else {}
    return before | {record["round"]: record["metrics"] for record in records if record.get("metrics")}


def _deployed(records: Sequence[Record]) -> int | None:
    """Return the round whose model is deployed, where the run chose one by its validation sets."""
    told = [record["deployed"] for record in records if record.get("deployed") is not None]
    return int(told[-1]) if told else None
