"""`hansa cost`: what a plan will send, compute and need, before it is run, and beside a run what it really took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hansa.cli.console import bare_table, plain, show
from hansa.cli.text import printable
from hansa.errors import require
from hansa.features.sketch import sketch_features
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan
from hansa.results.reader import Run
from hansa.results.report.format import bytes_text, flops_text, seconds_text
from hansa.running.cost import PhaseCost, predict

SUMS = ("visits", "bytes_up", "bytes_down", "bytes_evaluate", "flops")
TITLES = ("visits", "up", "down", "to evaluate", "FLOPs", "seconds", "client memory", "server memory")


def show_cost(source: str, changes: Sequence[str], by_client: bool, as_json: bool, trust: bool) -> None:
    """Show the predicted cost of a plan by phase; of a run folder, beside what the run took."""
    run = Run.open(source) if Path(source).is_dir() else None
    plan = read_plan(source if run is None else run.path / "plan.toml", changes, trust=trust)
    made = assemble(plan, trust=trust, extract=sketch_features)
    costs = predict(made.experiment)
    took = None if run is None else _took(run, len(costs))
    if as_json:
        told = {"features": made.features, "phases": _told(costs, took)}
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return
    if made.features is not None:
        cost = f"{flops_text(made.features['flops'])}, about {seconds_text(made.features['seconds'])}"
        show(plain(f"Features of {made.features['computed']:,} samples, where none are cached: {cost}."), wrap=False)
    _show(costs, took)
    if by_client:
        _show_clients(costs)
    rough = [one.name for one in costs if not one.exact]
    says = (
        "Bytes are those the ledger will charge; FLOPs, seconds (one client after the other) and memory are estimates."
    )
    show(plain(says if not rough else f"{says} Not exact: the bytes of {', '.join(rough)}."), wrap=False)


def _took(run: Run, phases: int) -> list[dict[str, float]]:
    """Return what each phase of a run took, as its rounds tell it."""
    require(run.status == "finished", f"The run '{run.path}' is {run.status}: only a finished one can be compared.")
    keys = {"visits": "clients", "seconds": "seconds", **{key: key for key in SUMS[1:]}}
    every = [[one for one in run.rounds if one["phase"] == number] for number in range(phases)]
    return [{key: sum(one[told] for one in rounds) for key, told in keys.items()} for rounds in every]


def _told(costs: Sequence[PhaseCost], took: Sequence[Mapping[str, float]] | None) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "exact": one.exact,
            **{key: one.total(key) for key in SUMS},
            "seconds": one.seconds,
            "client_memory": one.client_memory,
            "server_memory": one.server_memory,
            "clients": {key: dict(zip(one.clients, one.columns[key].tolist(), strict=True)) for key in SUMS},
            **({} if took is None else {"run": dict(took[place])}),
        }
        for place, one in enumerate(costs)
    ]


def _cells(found: Mapping[str, float]) -> tuple[str, ...]:
    sent = (bytes_text(found[key]) for key in ("bytes_up", "bytes_down", "bytes_evaluate"))
    return f"{found['visits']:,.0f}", *sent, flops_text(found["flops"]).removesuffix("FLOP")


def _show(costs: Sequence[PhaseCost], took: Sequence[Mapping[str, float]] | None) -> None:
    table = bare_table()
    for title in ("phase", *TITLES):
        table.add_column(title, justify="left" if title == "phase" else "right", no_wrap=True)
    for place, one in enumerate(costs):
        memory = (bytes_text(one.client_memory), bytes_text(one.server_memory))
        cells = (*_cells({key: one.total(key) for key in SUMS}), f"~ {seconds_text(one.seconds)}", *memory)
        table.add_row(*map(plain, (one.name, *cells)))
        if took is not None:
            table.add_row(
                *map(plain, ("  the run", *_cells(took[place]), seconds_text(took[place]["seconds"]), "", ""))
            )
    show(table)


def _show_clients(costs: Sequence[PhaseCost]) -> None:
    table = bare_table()
    for title in ("phase", "client", *TITLES[: len(SUMS)]):
        table.add_column(title, justify="left" if title in ("phase", "client") else "right", no_wrap=True)
    for one in costs:
        for row, client in enumerate(one.clients):
            cells = _cells({key: float(one.columns[key][row]) for key in SUMS})
            table.add_row(*map(plain, (one.name, printable(client), *cells)))
    show(table)
