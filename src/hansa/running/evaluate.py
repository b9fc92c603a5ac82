"""Evaluations of a phase: the global model on the common test set, and clients' models on their own samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hansa.data.dataset import Array
from hansa.data.federation import has_samples, pooled_test
from hansa.engines.session import EngineSession, EvaluationRequest
from hansa.io import wire
from hansa.lazy import Tensor, torch
from hansa.metrics.suite import OBSERVED, Forward, evaluate_outputs, fold, is_sum, outputs, stack_rows, tables_of
from hansa.running.phase_run import PhaseRun
from hansa.task import ClientData
from hansa.tree import Tree, pick

PREFIX = {"test": ("test_", "client_"), "validation": ("validation_", "client_validation_")}


@dataclass(frozen=True)
class Evaluation:
    """Metrics by name, the clients' rows where they have samples of their own, tables, and what clients observed."""

    metrics: dict[str, float]
    rows: Tree | None = None
    tables: Tree = field(default_factory=dict)
    observed: dict[str, Tree] = field(default_factory=dict)  # for exhibits, by client


Awaited = Callable[[], Evaluation]  # an evaluation that was asked for


def evaluate(run: PhaseRun, session: EngineSession) -> Evaluation:
    """Evaluate what the clients deploy now on test and validation samples."""
    return ask(run, session)()


def ask(run: PhaseRun, session: EngineSession, *, start: bool = False) -> Awaited:
    """Ask for the same, or what they start the phase from; what is returned gives it.

    Where rows ride with the next round, it is better called after.
    """
    served = {} if start else run.served()
    test, chosen_by = (_split(run, session, served, split, start) for split in ("test", "validation"))

    def found() -> Evaluation:
        told = test()
        return replace(told, metrics={**told.metrics, **chosen_by().metrics})

    return found


def ask_start(run: PhaseRun, session: EngineSession, known: Mapping[str, float] | None) -> Awaited:
    """Ask for an evaluation of what clients start the phase from; where its metrics are known, what they observe."""
    if known is None:
        return ask(run, session, start=True)
    metrics = dict(known)
    if not run.algorithm.observes_start(run.task):
        return lambda: Evaluation(metrics)
    rows = _rows(run, session, {}, "test", start=True)
    return lambda: Evaluation(metrics, observed=rows()[1])


def _split(run: PhaseRun, session: EngineSession, served: Tree, split: str, start: bool) -> Awaited:
    samples: ClientData | None = getattr(run.federation, split)
    common, of_clients = PREFIX[split]
    metrics: dict[str, float] = {}
    tables: Tree = {}
    if samples is not None and not run.algorithm.personal:
        out = outputs(_common_model(run, served, start, session.device), samples.x)
        found = evaluate_outputs(run.experiment.suite, out, samples.y)
        metrics |= {f"{common}{name}": value for name, value in found.items()}
        tables = {f"{common}{name}": leaf for name, leaf in tables_of(run.experiment.suite, out, samples.y).items()}
    visited = None if start else run.ledger.visited
    awaited = _rows(run, session, served, split, start)

    def folded() -> Evaluation:
        rows, observed = awaited()
        told = {} if rows is None else fold(run.experiment.suite, rows, visited, prefix=of_clients)
        return Evaluation({**metrics, **told}, rows, tables, observed)

    return folded


def _common_model(run: PhaseRun, served: Tree, start: bool, device: torch.device) -> Forward:
    """Return the model that everyone deploys: what is served over what everybody has, so that it is made only once."""
    model = {key: leaf.to(device) for key, leaf in (run.task.params() | pick("model", served)).items()}
    if start:
        return lambda x: run.task.forward(model, x.to(device)).cpu()
    return lambda x: run.algorithm.outputs(run.task, model, x.to(device)).cpu()


def _rows(
    run: PhaseRun, session: EngineSession, served: Tree, split: str, start: bool
) -> Callable[[], tuple[Tree | None, dict[str, Tree]]]:
    """Ask for the clients' rows, in their order, None where no client has such samples; and for what they observe."""
    public = _public(run) if run.phase.outside and split == "test" else None
    tested = [name for name in run.names if public is not None or has_samples(run.federation.clients[name], split)]
    if not tested:
        return lambda: (None, {})
    coming = session.evaluate(EvaluationRequest(tested, served, run.experiment.suite, split, public, start))
    return lambda: _in_order(run, tested, served, stack_rows(list(coming)))


def _in_order(run: PhaseRun, tested: list[str], served: Tree, rows: Tree) -> tuple[Tree, dict[str, Tree]]:
    """Return rows by the clients' order in the run, and apart from them what clients observed; charge both."""
    told = {key.removeprefix(OBSERVED): rows.pop(key) for key in list(rows) if key.startswith(OBSERVED)}
    by_row = {tested[number]: row for row, number in enumerate(rows["client"].tolist())} if told else {}
    observed = {name: {key: leaf[by_row[name]] for key, leaf in told.items()} for name in tested if name in by_row}
    place = {name: row for row, name in enumerate(run.names)}
    rows["client"] = rows["client"].new_tensor([place[tested[row]] for row in rows["client"].tolist()])
    sent = 8 * len(rows) + sum(leaf[0].nbytes for leaf in told.values())
    run.ledger.add_evaluation(rows["client"].numpy(), _served_bytes(run, rows["client"], served) + sent)
    order = rows["client"].argsort()
    return {key: leaf if is_sum(key) else leaf[order] for key, leaf in rows.items()}, observed


def _served_bytes(run: PhaseRun, places: Tensor, served: Tree) -> int | Array:
    """Return the bytes of what is served to clients: the same for all, or of each where they have other networks."""
    if not run.task.networks:
        return wire.cost(served)
    return np.array([wire.cost(run.task.received(run.names[place], served)) for place in places.tolist()])


def _public(run: PhaseRun) -> ClientData:
    """Return a test set of all classes: the common one, or where there is none, everybody's together."""
    return run.federation.test or pooled_test(client.test for client in run.federation.clients.values())
