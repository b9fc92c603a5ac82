"""Rates from statistics: what a calibration tells, how leaves step by it, and what a plan makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hansa import api
from hansa.algorithms.calibrate import GRID, Calibrate
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedncm import FedNCM
from hansa.algorithms.guarded import Guarded
from hansa.algorithms.lda import LDA
from hansa.algorithms.local import Local
from hansa.algorithms.mime import Mime
from hansa.algorithms.personal import Personal
from hansa.algorithms.pfedme import PFedMe
from hansa.algorithms.robust import Robust
from hansa.algorithms.self_guarded import SelfGuarded
from hansa.algorithms.wima import Wima
from hansa.contract import Algorithm
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.plan.files import plan_from_table, write_plan
from hansa.plan.phases import phases_of
from hansa.plan.schema import Plan
from hansa.results.reader import Run
from hansa.task import ClientData, Task
from hansa.task_table import task_from_table, task_to_table
from hansa.training.local import LocalTraining, Turn, train
from hansa.training.schedules import Exponential
from hansa.tree import Tree

TASK = Task(MLP((4,)), (3,), 3)
DATA = {"source": "digits", "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.3}, "test": {"kind": "both"}}


def plan(phases: Any, **more: Any) -> Plan:
    table = {"data": DATA, "model": {"name": "mlp", "hidden": [16]}, "phases": phases, **more}
    return plan_from_table(json.loads(json.dumps(table)), "p", Path())


def drawn(samples: int, seed: int = 0) -> ClientData:
    rng = torch.Generator().manual_seed(seed)
    return ClientData(3 * torch.randn(samples, 3, generator=rng), torch.randint(3, (samples,), generator=rng))


# ------------------------------------------------------------------------------------------------ what is measured


def calibrated(*clients: ClientData) -> Tree:
    algorithm = Calibrate()
    server = algorithm.server_init(TASK)
    for data in clients:
        up, _ = algorithm.client_step(TASK, {}, {}, data, torch.Generator())
        server = algorithm.server_step(TASK, server, up)
    return server


def test_rates_by_hand() -> None:
    data, params = drawn(40), TASK.params()
    server = calibrated(data)
    z = torch.relu(F.linear(data.x, params["features.1.weight"], params["features.1.bias"])).double()
    assert torch.allclose(TASK.features(params, data.x).double(), z)
    logits = TASK.forward(params, data.x).double()
    best = min(GRID, key=lambda temperature: float(F.cross_entropy(logits / temperature, data.y)))
    head = params["head.weight"].double() / best
    spread = sum(float((row - head.mean(0)).square().sum()) for row in head) / 3
    found = Calibrate().rates(TASK, server)
    assert found == pytest.approx((40 / float(torch.trace(z.T @ z)), min(1.0, 1 / 3 / spread)), rel=1e-6)
    assert Calibrate().rates(TASK, Calibrate().server_init(TASK)) == ()


def test_long_columns_slow_the_features_down() -> None:
    long = replace(TASK, start={"head.weight": 50 * TASK.params()["head.weight"]})
    sure = ClientData(drawn(60).x, torch.zeros(60, dtype=torch.long))
    labelled = replace(sure, y=long.forward(long.params(), sure.x).argmax(1))  # all right: the sharper the better
    up, _ = Calibrate().client_step(long, {}, {}, labelled, torch.Generator())
    _, factor = Calibrate().rates(long, Calibrate().server_step(long, Calibrate().server_init(long), up))
    assert factor < 0.01


def test_rates_are_the_same_on_every_split() -> None:
    data = drawn(40)
    parts = [ClientData(data.x[a:b], data.y[a:b]) for a, b in ((0, 3), (3, 25), (25, 40))]
    rates = [Calibrate().rates(TASK, calibrated(*some)) for some in ([data], parts, parts[::-1])]
    assert rates[1] == pytest.approx(rates[0], rel=1e-6) and rates[2] == pytest.approx(rates[0], rel=1e-6)


# ------------------------------------------------------------------------------------------------- what it changes


def test_head_and_features_step_by_rates_of_their_own() -> None:
    """One step on one batch: the gradient by autograd, times each part's own rate, in float64."""
    data, task = drawn(10), replace(TASK, rates=(0.02, 0.5), pace=3.0)
    params = {key: leaf.clone().requires_grad_() for key, leaf in TASK.params().items()}
    slopes = torch.autograd.grad(F.cross_entropy(TASK.forward(params, data.x), data.y), list(params.values()))
    done = train(Turn(LocalTraining(lr=0.1, batch_size=10), task, TASK.params()), data, 0).params
    for (key, leaf), slope in zip(params.items(), slopes, strict=True):
        rate = 3.0 * (0.02 if key.startswith("head.") else 0.05)
        assert torch.allclose(done[key], leaf.detach() - rate * slope, atol=1e-6), key


def test_rates_bound_the_given_one_and_leave_adam_alone() -> None:
    task = replace(TASK, rates=(0.02, 0.5), round=2, rounds=4)
    local = LocalTraining(lr=0.01, schedule=Exponential(0.5))
    assert local.rate(task, "head.weight") == pytest.approx(0.01 / 4)
    assert local.rate(task, "features.1.weight") == pytest.approx(0.005 / 4)
    assert replace(local, optimiser="adam").rate(task, "features.1.weight") == pytest.approx(0.01 / 4)
    assert local.rate(replace(task, rates=()), "head.weight") == pytest.approx(0.01 / 4)


def test_a_task_with_rates_travels() -> None:
    task = replace(TASK, rates=(0.02, 0.5), pace=0.25)
    again = task_from_table(json.loads(json.dumps(task_to_table(task))))
    assert (again.rates, again.pace) == ((0.02, 0.5), 0.25)
    for wrong in ({"pace": 0.0}, {"rates": [0.1]}, {"rates": [0.1, -1.0]}):
        with pytest.raises(HansaError, match="'pace' and both 'rates'"):
            task_from_table(task_to_table(TASK) | wrong)


# ------------------------------------------------------------------------------------------------------- in a plan


def kinds(found: Plan) -> list[str]:
    return [phase.name for phase in phases_of(found)]


def guarded(algorithm: Algorithm) -> bool:
    return isinstance(algorithm, Guarded)


@pytest.mark.parametrize("first", ["fed3r", "fedncm", "fedcof", "lda", "deepafl"])
def test_after_a_closed_form_rates_come_from_statistics(first: str) -> None:
    found = plan([{"algorithm": first}, {"algorithm": "fedavg", "rounds": 3}, {"algorithm": "local"}])
    assert kinds(found) == [first, "calibrate", "fedavg", "local"]
    tuned, own = found.phases[2:]
    assert tuned.algorithm == Guarded(FedAvg()) and own.algorithm == SelfGuarded(Local())
    assert [phase.rates for phase in found.phases] == [None, None, "statistics", "statistics"]
    assert [phase.temperature for phase in found.phases[1:]] == [1.0] * 3
    assert plan_from_table(_table(found), "again", Path()) == found


@pytest.mark.parametrize(
    ("phases", "last"),
    [
        ("Fed3R-RF + FedAvg", Guarded),
        ("FedNCM + FedAvgM", Guarded),
        ("OLL(Fed3R) + FedAvg", Guarded),
        ("Fed3R + SCAFFOLD", Guarded),
        ("Fed3R + FedSim(head)", SelfGuarded),
        ("Fed3R + FedAlt(head)", SelfGuarded),
        ("Fed3R + pFedMe(head)", PFedMe),
        ("Fed3R + FP(all)", SelfGuarded),
        ("OLL(Fed3R + FedAvg) + FP-Ditto(head)", SelfGuarded),
    ],
)
def test_every_way_to_train_on_has_rates_from_statistics(phases: str, last: type) -> None:
    """One model of all has the server's guard, models of one client's own that client's, where its steps are plain."""
    *before, tuned = plan(phases).phases
    assert isinstance(tuned.algorithm, last) and (tuned.rates, tuned.temperature) == ("statistics", 1.0)
    assert sum(isinstance(one.algorithm, Calibrate) for one in before) == 1


def test_the_guard_stands_around_what_trains() -> None:
    def tuned(algorithm: Any) -> Algorithm:
        return plan([{"algorithm": "fed3r"}, {"algorithm": algorithm, "rounds": 2}]).phases[2].algorithm

    assert tuned({"name": "wima", "window": 5}) == Wima(Guarded(FedAvg()), window=5)
    assert tuned("robust") == Robust(Guarded(FedAvg(), by_class=False))
    assert tuned("mime") == Guarded(Mime())
    assert tuned({"name": "robust", "inner": "personal"}) == Robust(SelfGuarded(Personal()))
    assert tuned("pfedme") == PFedMe()


def test_the_last_closed_form_decides_the_papers_values() -> None:
    """Columns of Fed3R and FedCOF have length one; LDA's logits are log posteriors, whatever head was there before."""

    def tuned(*names: str) -> tuple[float | None, float, float | None]:
        tables = [{"algorithm": name} for name in names]
        *_, closed, last = plan([*tables, {"algorithm": "fedavg", "rates": "paper"}]).phases
        assert isinstance(last.algorithm, FedAvg)
        return closed.temperature, last.algorithm.local.lr, last.temperature

    assert tuned("fedcof") == tuned("lda", "fedcof") == tuned("fed3r") == (0.1, 0.01, 0.1)
    assert tuned("lda") == tuned("fed3r", "lda") == tuned("fedcof", "lda") == (1.0, 0.1, 1.0)
    anew = kinds(plan("Fed3R + Calibrate + LDA + FedAvg"))  # the ridge head's calibration says nothing of LDA's
    assert anew[2:] == ["LDA", "calibrate", "FedAvg(all)"]


@pytest.mark.parametrize("closed", [LDA(), FedNCM("euclidean")])
def test_a_class_that_nobody_has_is_no_overflow(closed: LDA | FedNCM) -> None:
    """Its offset is out of reach and decays with all weights, which a guard must not take for a failure."""
    data = replace(drawn(30), y=drawn(30).y.clamp(max=1))
    up, _ = closed.client_step(TASK, {}, {}, data, torch.Generator())
    solved = replace(TASK, start=closed.model(TASK, closed.server_step(TASK, closed.server_init(TASK), up)))
    assert not (solved.forward(solved.params(), data.x).argmax(1) == 2).any()
    tuned = Guarded(FedAvg(LocalTraining(weight_decay=4e-5)))
    server = tuned.server_init(solved)
    down = tuned.broadcast(solved, server, torch.Generator())
    sums = tuned.client_step(solved, down, {}, data, torch.Generator())[0].sums
    assert not sums["guard.worse"][0].any() and bool(sums["model.head.weight"].any())


def _table(found: Plan) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(write_plan(found))


@pytest.mark.parametrize(
    "tuned",
    [
        {"algorithm": "fedavg", "temperature": 0.5},
        {"algorithm": {"name": "fedavg", "local": {"lr": 0.01}}},
        {"algorithm": "fedavg", "rates": "paper"},
        {"algorithm": {"name": "private", "noise": "simulated"}, "unprotected": True},
    ],
    ids=["temperature", "lr", "paper", "private"],
)
def test_what_is_given_is_taken_and_the_rest_is_the_papers(tuned: dict[str, Any]) -> None:
    last = plan([{"algorithm": "fed3r", "unprotected": True}, tuned]).phases
    assert len(last) == 2 and not guarded(last[1].algorithm) and last[1].rates in (None, "paper")
    local = getattr(last[1].algorithm, "inner", last[1].algorithm).local
    assert (local.lr, last[1].temperature) == (0.01, tuned.get("temperature", 0.1))


def test_without_a_guard_or_a_closed_form() -> None:
    for name in ("fedavg", "local"):
        alone = plan([{"algorithm": "fed3r"}, {"algorithm": name, "rates": "unguarded"}])
        assert kinds(alone) == ["fed3r", "calibrate", name] and alone.phases[2].algorithm in (FedAvg(), Local())
    assert kinds(plan([{"algorithm": "fedavg"}])) == ["fedavg"]
    asked = plan([{"algorithm": "fedavg", "rates": "statistics"}])
    assert kinds(asked) == ["calibrate", "fedavg"] and guarded(asked.phases[1].algorithm)


def test_phases_after_one_at_the_papers_temperature_stay_with_it() -> None:
    """Its head was trained at logits over 0.1, and calibrating anew would change what it says."""
    own = [{"algorithm": "fed3r"}, {"algorithm": "fedavg", "rates": "paper"}, {"algorithm": "local"}]
    assert [phase.temperature for phase in plan(own).phases] == [0.1] * 3


def test_what_makes_no_sense_is_told() -> None:
    with pytest.raises(HansaError, match="the temperature is in the head"):
        plan([{"algorithm": "fed3r"}, {"algorithm": "fedavg", "temperature": 0.1, "rates": "statistics"}])
    with pytest.raises(HansaError, match="for what trains"):
        plan([{"algorithm": "fed3r", "rates": "statistics"}])


FAST = {"rounds": 4, "orchestration": {"name": "star", "clients": 4}}


def digits(tmp_path: Path, name: str, engine: str, **more: Any) -> Run:
    phases = [{"algorithm": "fed3r"}, {"algorithm": "fedavg", **FAST, **more}]
    return api.run(plan(phases, engine=engine), out=tmp_path / name)


def test_engines_agree_on_rates_and_pace(tmp_path: Path) -> None:
    alone, together = (digits(tmp_path, engine, engine) for engine in ("serial", "vectorised"))
    metrics = [one.summary["phases"][-1]["metrics"] for one in (alone, together)]
    assert metrics[0]["test_loss"] == pytest.approx(metrics[1]["test_loss"], rel=1e-4)


def test_a_run_shows_what_was_chosen_for_it(tmp_path: Path) -> None:
    shown = digits(tmp_path, "shown", "vectorised").exhibits["phases"]
    titles = [[one["title"] for one in phase["exhibits"]] for phase in shown]
    assert titles == [["ridge λ"], ["temperature", "rates from statistics"], ["learning rates"]]
    bound, trained = shown[1]["exhibits"][1]["columns"], shown[2]["exhibits"][0]["columns"]
    assert 0 < trained["head"][0] <= 4 * bound["head, at most"][0]


def test_a_run_that_continues_another_has_its_rates(tmp_path: Path) -> None:
    whole = digits(tmp_path, "whole", "serial")
    first = api.run(plan([{"algorithm": "fed3r"}, {"algorithm": "calibrate"}], engine="serial"), out=tmp_path / "first")
    rest = plan([{"algorithm": "fedavg", **FAST}], start={"run": str(first.path)}, engine="serial")
    assert kinds(rest) == ["fedavg"] and guarded(rest.phases[0].algorithm)
    again = api.run(rest, out=tmp_path / "rest")
    assert again.summary["phases"][-1]["metrics"] == whole.summary["phases"][-1]["metrics"]


@pytest.mark.parametrize(
    ("first", "tuned"),
    [
        ("fed3r", "fedavg"),
        ("fed3r", {"name": "fedavg", "server": {"name": "sgd", "momentum": 0.9}}),
        ("fed3r", "scaffold"),
        ("fed3r", "mime"),
        ("fed3r", {"name": "wima", "window": 5}),
        ("fed3r", "robust"),
        ("fedncm", "fedavg"),
        ("lda", "fedavg"),
    ],
    ids=["fedavg", "momentum", "scaffold", "mime", "wima", "robust", "after fedncm", "after lda"],
)
def test_fine_tuning_without_any_choice_is_no_worse_than_its_start(first: str, tuned: Any, tmp_path: Path) -> None:
    visits = {"rounds": 12, "evaluate_every": 12, "orchestration": {"name": "star", "clients": 4}}
    phases = [{"algorithm": first}, {"algorithm": tuned, **visits}]
    done = api.run(plan(phases, engine="vectorised"), out=tmp_path / "tuned")
    closed, *_, last = done.summary["phases"]
    assert last["metrics"]["test_accuracy"] >= closed["metrics"]["test_accuracy"] - 0.005


@pytest.mark.parametrize(
    ("file", "partition"),
    [("usps.npz", {"name": "dirichlet", "clients": 40, "alpha": 0.1}), ("femnist110.npz", {"name": "natural"})],
)
def test_fine_tuning_on_real_data_is_no_worse_than_its_start(
    file: str, partition: dict[str, Any], shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """No default was set by looking at USPS."""
    visits = {"rounds": 6, "evaluate_every": 6, "orchestration": {"name": "star", "clients": 10}}
    data = {"source": {"name": "npz", "path": str(shared_data(file))}, "partition": partition}
    phases = [{"algorithm": "fed3r"}, {"algorithm": "fedavg", **visits}]
    table = {"data": data, "model": {"name": "mlp", "hidden": [64]}, "phases": phases, "engine": "vectorised"}
    done = api.run(plan_from_table(table, "real", tmp_path), out=tmp_path / "tuned")
    closed, *_, last = (phase["metrics"]["test_accuracy"] for phase in done.summary["phases"])
    assert last >= closed - 0.005 and last > 0.3
