"""The guard that every client is to itself: what is kept, what is taken back, and how fast it goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hand_problems import (
    ONE,
    PRODUCT,
    TASK,
    Normed,
    deployed,
    mixed,
    rng,
    run_rounds,
    samples,
    sent,
    trained,
    visit,
    weight,
)

from hansa.algorithms.calibrate import Calibrate
from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedalt import FedAlt
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedbn import FedBN
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.fedsim import FedSim
from hansa.algorithms.local import Local
from hansa.algorithms.pfedme import PFedMe
from hansa.algorithms.self_guarded import PACE, SelfGuarded
from hansa.contract import Algorithm
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Trained, Turn, train
from hansa.training.visits import turn_seed
from hansa.tree import Tree, copy, equal

SMALL = Task(MLP((4,)), (3,), 2, population=4, samples=47)
SLOWED = replace(TASK, rates=(0.01, 0.05))  # by statistics: the head's largest rate, and a factor on the features'
FAST = LocalTraining(lr=300.0, epochs=3, batch_size=4)


def height(params: Tree, data: ClientData, task: Task = SMALL) -> float:
    """The mean loss of some parameters on some samples."""
    return float(F.cross_entropy(task.forward(task.params() | params, data.x), data.y))


def rehearsed(algorithm: SelfGuarded, heights: Sequence[float], state: Tree | None = None) -> tuple[list[Any], Any]:
    """A visit in which training moves w by one and losses are as told: the turns that were asked for, and the end."""
    state = algorithm.client_init(SLOWED, ONE) if state is None else state
    down = sent(algorithm, SLOWED, algorithm.server_init(SLOWED))
    todo, told, asked = algorithm.visit(SLOWED, down, state, ONE, rng()), iter(heights), []
    turn: Turn = next(todo)
    try:
        while True:
            w = weight(turn.start)
            if turn.judges:
                asked.append(("judge", w))
                answer = Trained(turn.start, 0, 0.0, losses=torch.tensor([next(told)]).double())
            else:
                assert turn.training.epochs == 1
                head, features = (turn.training.rate(turn.task, f"{part}.weight") for part in ("head", "features"))
                asked.append(("train", w, round(head, 6), round(features, 6)))
                moved = turn.start | {"head.weight": turn.start["head.weight"] + torch.tensor([[1.0], [-1.0]])}
                answer = Trained(moved, 1, 100.0)
            turn = todo.send(answer)
    except StopIteration as end:
        assert next(told, None) is None
        return asked, end.value


def test_a_visit_by_hand() -> None:
    """Three epochs: the first is kept at once, the second at the second try, the third not at all."""
    algorithm = SelfGuarded(Local(LocalTraining(lr=0.1, epochs=3)), tries=2, grow=2.0, shrink=4.0)
    asked, (up, state) = rehearsed(algorithm, [1.0, 0.9, 0.95, 0.8, 0.85, float("nan")])
    assert asked == [
        ("judge", 0.0),
        *[("train", 0.0, 0.01, 0.005), ("judge", 1.0)],  # kept, so rates double
        *[("train", 1.0, 0.02, 0.01), ("judge", 2.0)],  # it grew: back to w = 1, and a quarter of the rates
        *[("train", 1.0, 0.005, 0.0025), ("judge", 2.0)],  # kept
        *[("train", 2.0, 0.005, 0.0025), ("judge", 3.0)],
        *[("train", 2.0, 0.00125, 0.000625), ("judge", 3.0)],  # no number: nothing is left to try
    ]
    assert weight(state, "own.") == 2.0 and float(state[PACE][0]) == 0.125 / 4
    assert up.flops == 5 * 100 + 6 * (TASK.features_flops + TASK.head_flops)
    assert not up.sums


def test_the_pace_lasts_and_no_rate_is_above_the_plans() -> None:
    """A head that may have a tenth of the plan's rate, and features a twentieth: at pace 20 both have all of it."""
    algorithm, state, seen = SelfGuarded(Local(LocalTraining(lr=0.1))), None, []
    for _ in range(5):
        (_, (_, _, *rates), _), (_, state) = rehearsed(algorithm, [1.0, 0.9], state)
        seen.append((float(state[PACE][0]), *rates))
    assert seen == [(4, 0.01, 0.005), (16, 0.04, 0.02), (20, 0.1, 0.08), (20, 0.1, 0.1), (20, 0.1, 0.1)]
    unknown = replace(SLOWED, rates=())
    _, state = visit(algorithm, unknown, algorithm.server_init(unknown), ONE)
    assert float(state[PACE][0]) == 1.0


@pytest.mark.parametrize(
    ("inner", "hastened"),
    [
        (Local(), ["own"]),
        (FedSim(), ["shared"]),
        (FedSim(keep="features"), ["own"]),
        (FedPer(), ["shared"]),
        (FedBN(), ["shared"]),
        (FedAlt(), ["own", "shared"]),  # a turn of the head alone has no features that could be anybody's
        (Ditto(), ["shared", "own"]),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Algorithm) else "",
)
def test_nobody_hastens_features_that_are_shared(inner: Algorithm, hastened: list[str]) -> None:
    """At a pace of 16 the head has sixteen times its rate, features only where they are the client's own."""
    algorithm, data = SelfGuarded(inner), mixed()["c1"]
    task = replace(Task(Normed() if isinstance(inner, FedBN) else MLP((4,)), (3,), 2, population=4), rates=(1e-4, 1e-3))
    state = algorithm.client_init(task, data)
    assert state[PACE].tolist() == [1.0, 1.0]
    state[PACE] *= 16
    down = copy(sent(algorithm, task, algorithm.server_init(task)))
    visit, seen = algorithm.visit(task, down, state, data, rng()), []
    turn: Turn = next(visit)
    try:
        while True:
            first = math.isclose(turn.training.rate(turn.task, "head.weight"), 16e-4)  # and not tried again
            if not turn.judges and first:
                features = turn.training.rate(turn.task, "features.weight") / turn.training.lr
                seen.append("own" if math.isclose(features, 16e-3) else "shared")
                assert math.isclose(features, 1e-3 if seen[-1] == "shared" else 16e-3)
            turn = visit.send(train(turn, data, 0))
    except StopIteration:
        assert seen == hastened


def test_what_is_taken_back_moves_nothing_at_the_server() -> None:
    algorithm = SelfGuarded(FedSim(LocalTraining(epochs=2)), tries=3)
    asked, (up, state) = rehearsed(algorithm, [1.0, 1.1, 1.2, 1.3])
    assert [turn[0] for turn in asked].count("train") == 3  # and no second epoch
    assert all(not leaf.any() for leaf in up.sums.values()) and weight(state, "own.") == 0.0
    assert float(state[PACE][0]) == 4.0**-3


def test_the_pull_of_an_anchor_is_a_part_of_what_is_judged() -> None:
    """Going from w = 0 to 1 moves two weights by one: a pull of λ = 0.5 costs 0.5, more than the loss falls by."""
    without, (_, free) = rehearsed(SelfGuarded(Local()), [1.0, 0.6])
    pulled, (_, held) = rehearsed(SelfGuarded(Local(strength=0.5), tries=1), [1.0, 0.6])
    assert (weight(free, "own."), weight(held, "own.")) == (1.0, 0.0)
    assert without == pulled


def test_momentum_goes_on_from_epoch_to_epoch() -> None:
    """Where no epoch is taken back it is as if the turn had never been cut, but for the order of samples."""
    data = mixed()["c3"]
    local = LocalTraining(lr=0.001, epochs=3, batch_size=len(data), momentum=0.9)
    algorithm = SelfGuarded(Local(local))
    _, state = visit(algorithm, SMALL, algorithm.server_init(SMALL), data)
    whole = trained(local, SMALL, data)
    assert float(state[PACE][0]) == 1.0
    assert all(torch.allclose(state[f"own.{key}"], leaf, rtol=1e-5) for key, leaf in whole.params.items())


def test_a_turn_of_steps_is_one_piece() -> None:
    data, local = mixed()["c3"], LocalTraining(lr=0.01, steps=7, batch_size=4)
    algorithm = SelfGuarded(Local(local))
    _, state = visit(algorithm, SMALL, algorithm.server_init(SMALL), data)
    whole = trained(local, SMALL, data, seed=turn_seed(0, 1))
    assert all(equal({key: state[f"own.{key}"]}, {key: leaf}) for key, leaf in whole.params.items())


@pytest.mark.parametrize(
    "inner", [Local(FAST), FedSim(FAST), FedAlt(FAST), Ditto(FAST)], ids=lambda one: type(one).__name__
)
def test_no_rate_breaks_a_client(inner: Algorithm) -> None:
    """At a rate of 300 the loss explodes; under the guard no client that trains alone ends above its start."""
    clients = mixed()
    rounds = [list(clients)] * 6

    def worst(algorithm: Algorithm) -> float:
        server, states = run_rounds(algorithm, SMALL, clients, rounds)
        models = {name: deployed(algorithm, SMALL, server, states[name], data) for name, data in clients.items()}
        gaps = [height(models[name], data) - height({}, data) for name, data in clients.items()]
        return max(math.inf if math.isnan(gap) else gap for gap in gaps)

    assert worst(inner) > 1 > 0.3 > worst(SelfGuarded(inner))
    if isinstance(inner, Local):
        assert worst(SelfGuarded(inner)) < 0


def test_a_slow_start_becomes_fast() -> None:
    """A client whose samples are all of one class need not wait for rates that fit all clients together."""
    data, heights = samples(1.0, 8, 0), []
    slowed, local = replace(PRODUCT, rates=(1e-3, 1e-2)), LocalTraining(lr=0.1, epochs=20, batch_size=8)
    for algorithm in (Local(local), SelfGuarded(Local(local))):
        server, states = run_rounds(algorithm, slowed, {"c": data}, [["c"]])
        heights.append(height(deployed(algorithm, slowed, server, states["c"], data), data, slowed))
    assert heights[1] < heights[0] / 2


def test_what_it_cannot_guard_is_told() -> None:
    for inner, says in (
        (FedAvg(), "deploy models of their own; use 'guarded' for one of all. Got FedAvg"),
        (PFedMe(), "PFedMe takes others; leave the guard out"),
        (Calibrate(), "Got Calibrate"),
    ):
        with pytest.raises(HansaError, match=says):
            SelfGuarded(inner)
    for setting, wrong in (("shrink", 1.0), ("grow", 0.5), ("tries", 0)):
        with pytest.raises(HansaError, match=f"The '{setting}' of a client's guard must be a number"):
            SelfGuarded(FedSim(), **{setting: wrong})
