"""The guard of fine-tuning: what clients report, when the server goes back, and what is deployed."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace

import hand_problems
import pytest
import torch
import torch.nn.functional as F
from hand_problems import ONE, SAMPLES, mixed, rng, run_rounds, sent, slope, visit, weight

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.guarded import WORST, Guarded
from hansa.algorithms.mime import Mime
from hansa.algorithms.private import Private
from hansa.algorithms.robust import Robust
from hansa.algorithms.scaffold import Scaffold
from hansa.algorithms.wima import Wima
from hansa.contract import Algorithm
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.payload import Update, set_apart
from hansa.server import strata
from hansa.server.optimisers import SGD
from hansa.task import Task
from hansa.training.local import LocalTraining
from hansa.tree import Tree, equal, nest, pick, zeros_like

LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=4)
COUNTS = sum(torch.bincount(data.y, minlength=2) for data in mixed().values()).double()
SMALL = Task(MLP((4,)), (3,), 2, population=4, samples=SAMPLES, shares=tuple((COUNTS / COUNTS.sum()).tolist()))
TASK = replace(hand_problems.TASK, shares=(0.5, 0.5))
EVERYONE = ["c0", "c1", "c2", "c3"]


def told(*gaps: float, expected: float = 0.0) -> Tree:
    """What clients of weight 1 report that found these changes of loss, the same in both classes."""
    beyond = [gap - expected for gap in gaps]
    surprise = torch.tensor([sum(beyond), sum(one**2 for one in beyond)], dtype=torch.float64)
    halves = torch.tensor([[sum(gaps)] * 2, [len(gaps)] * 2], dtype=torch.float64) / 2
    return {"guard.worse": halves, "guard.surprise": surprise}


def judged(algorithm: Guarded, server: Tree, gap: float) -> Tree:
    """A round of one client of weight 2 that moves w by one and reports this loss."""
    expected = float(strata.expected(pick("classes", server))[0])
    up = Update({"model.head.weight": torch.tensor([[2.0], [-2.0]]), **told(gap, gap, expected=expected)}, 2.0)
    return algorithm.server_step(TASK, server, up)


def test_the_server_by_hand() -> None:
    """w moves by one a round; a loss above three quarters of the lowest takes it back to where that was.

    A round counts 0.8 of the one after it: the second score is −4/1.8, the third (−3.2 − 4)/2.44.
    """
    algorithm = Guarded(FedAvg(), memory=0.0, slack=0.5, patience=2)
    server = algorithm.server_init(TASK)
    seen = []
    for gap in (0.0, -4.0, -4.0, 1.0, -1.0, 9.0):
        server = judged(algorithm, server, gap)
        pace, patience, score, low = (float(server[f"guard.{key}"]) for key in ("pace", "patience", "score", "low"))
        sent, deployed = weight(server, "inner.model."), weight(algorithm.model(TASK, server))
        seen.append((sent, deployed, pace, patience, score, low))
    second, third = -4 / 1.8, -7.2 / 2.44
    again = (0.8 * 1.476 * third - 1) / (0.8 * 1.476 + 1)  # of the best model; what had been said of it counts half
    by_hand = [
        (1.0, 0.0, 1.0, 2, 0.0, 0.0),
        (
            2.0,
            1.0,
            2.0,
            2,
            second,
            second,
        ),  # the first round had surely moved nothing, and this one found a better model
        (3.0, 2.0, 2.0, 2, third, third),
        (2.0, 2.0, 1.0, 4, third, third),  # −4.76/2.952 = −1.61 is above −2.21 by 0.5: the growth is taken back
        (3.0, 2.0, 1.0, 4, again, again),
        (2.0, 2.0, 0.25, 4, again, again),
    ]
    #       sent next, deployed, pace, patience, s, lowest
    assert torch.allclose(torch.tensor(seen), torch.tensor(by_hand), atol=1e-6)


def test_the_mean_of_models_is_judged_and_deployed() -> None:
    """w = 0, 1, 2 … count half of the next one each: 2/3, 10/7, 34/15; from a return on the mean begins anew."""
    algorithm, many = Guarded(FedAvg(), memory=0.5, slack=0.1), replace(TASK, population=9)
    server, seen = algorithm.server_init(many), []
    for gap in (0.0, -1.0, -2.0, 9.0, -1.0):
        up = Update({"model.head.weight": torch.tensor([[2.0], [-2.0]]), **told(gap, gap)}, 2.0, 2)
        server = algorithm.server_step(many, server, up)
        sent = algorithm.broadcast(many, server, rng())
        seen.append((weight(sent, "model."), weight(sent, "guard.mean."), weight(algorithm.model(many, server))))
    #       trained from next, judged next, deployed
    by_hand = [
        (1, 2 / 3, 0),
        (2, 10 / 7, 2 / 3),
        (3, 34 / 15, 10 / 7),
        (10 / 7, 10 / 7, 10 / 7),
        (17 / 7, 44 / 21, 10 / 7),
    ]
    assert torch.allclose(torch.tensor(seen), torch.tensor(by_hand), atol=1e-6)


def test_where_everybody_takes_part_the_mean_is_the_newest_model() -> None:
    algorithm, clients = Guarded(FedAvg(LOCAL), memory=0.9), mixed()
    without = Guarded(FedAvg(LOCAL), memory=0.0)
    servers = [run_rounds(one, SMALL, clients, [EVERYONE] * 5)[0] for one in (algorithm, without)]
    assert equal(pick("mean", servers[0]), pick("inner.model", servers[0])) and not pick("mean", servers[1])
    assert equal(*(one.model(SMALL, server) for one, server in zip((algorithm, without), servers, strict=True)))


def test_rates_grow_where_models_become_better_and_where_nothing_moves() -> None:
    algorithm = Guarded(FedAvg(), memory=0.0, slack=0.1, patience=3)
    server, good = algorithm.server_init(TASK), []
    for gap in (0.05, -1.0, -1.0, -0.7, -2.0):
        server = judged(algorithm, server, gap)
        good.append(tuple(float(server[f"guard.{key}"]) for key in ("good", "stale", "pace")))
    #      s = 0.05, −0.53, −0.72, −0.72, −1.1
    assert good == [(1, 0, 1), (2, 0, 1), (0, 0, 2), (0, 1, 2), (1, 0, 2)]


@pytest.mark.parametrize(
    ("patience", "later", "by_hand"),
    [  # pace, patience, deployed
        (1, (-0.9, -0.99), [(2, 1, 0), (2, 1, 0), (1, 2, 2)]),  # the growth is taken back; the last is as good
        (1, (-0.9, -0.9), [(2, 1, 0), (2, 1, 0), (1, 2, 0)]),  # the last clients do not say so
        (2, (-0.9, -0.9, -0.9, -0.99), [(1, 2, 0), (1, 2, 0), (1, 2, 0), (1, 2, 0), (0.5, 2, 4)]),  # −1 was luck
        (2, (-0.5,) * 4, [(1, 2, 0), (1, 2, 0), (1, 2, 0), (1, 2, 0), (0.25, 2, 0)]),  # too little is left
    ],
)
def test_rates_fall_where_no_model_is_better_for_long(
    patience: int, later: tuple[float, ...], by_hand: list[tuple[float, ...]]
) -> None:
    algorithm = Guarded(FedAvg(), memory=0.0, patience=patience, slack=0.4)
    server, seen = algorithm.server_init(TASK), []
    for gap in (-1.0, *later):
        server = judged(algorithm, server, gap)
        pace, waited = float(server["guard.pace"]), float(server["guard.patience"])
        seen.append((pace, waited, weight(algorithm.model(TASK, server))))
    assert seen == by_hand


def test_the_mean_over_classes_by_hand() -> None:
    """Class 0 has lost 0.4 and class 1 gained 0.1 in the mean; of the third class, a fifth of all, nobody has heard."""
    known = strata.heard(strata.unheard(3), torch.tensor([[12.0, -1.0, 0.0], [30.0, 10.0, 0.0]]).double(), 0.5)
    expected = strata.expected(known)
    assert expected.tolist() == pytest.approx([0.4, -0.1, 0.0])
    assert strata.mean(known, torch.tensor([0.6, 0.2, 0.2]).double()) == pytest.approx(0.6 * 0.4 - 0.2 * 0.1)
    counted = torch.tensor([2.0, 2.0, 4.0]).double()
    assert strata.surprise(expected, torch.tensor([0.8, -0.2, 0.0]).double(), counted) == pytest.approx(0.0, abs=1e-8)
    assert strata.surprise(expected, torch.tensor([0.8, -0.2, 4.0]).double(), counted) == pytest.approx(0.5)
    later = strata.heard(known, torch.tensor([[0.0, 1.0, 0.0], [0.0, 5.0, 0.0]]).double(), 0.5)
    assert later["recent"].tolist() == [[6.0, 0.5, 0.0], [15.0, 10.0, 0.0]]  # class 0 is known as before


def test_clients_of_one_class_each_tell_the_mean_over_all_whoever_came_last() -> None:
    """A model that is better for half of the classes and worse for the others: by class s stays, without it moves.

    By class it stays also where one client is visited far more often than the others.
    """
    changes, sizes = (1.0, -1.0, -2.0, 0.5), (10, 20, 30, 40)
    truth = sum(change * size for change, size in zip(changes, sizes, strict=True)) / 100
    shares = tuple(size / 100 for size in sizes)
    task = Task(MLP((4,)), (3,), 4, population=4, samples=100, shares=shares)
    seen: dict[bool, list[float]] = {True: [], False: []}
    for by_class, scores in seen.items():
        algorithm = Guarded(FedAvg(), memory=0.0, by_class=by_class, slack=9.0, patience=99)
        server = algorithm.server_init(task)
        for place in (0, 1, 2, 3, *[2] * 48, 3, 0, 1):
            counted = torch.zeros(4, dtype=torch.float64)
            counted[place] = sizes[place]
            summed = torch.stack([changes[place] * counted, counted])
            summed = summed if by_class else summed.sum(1, keepdim=True)
            surprise = strata.surprise(strata.expected(pick("classes", server)), *summed)
            squares = sizes[place] * torch.tensor([surprise, surprise**2], dtype=torch.float64)
            told = {"guard.worse": summed, "guard.surprise": squares}
            server = algorithm.server_step(task, server, Update(standing(server) | told, sizes[place]))
            scores.append(float(server["guard.score"]))
    assert all(score == pytest.approx(truth, abs=1e-3) for score in seen[True][50:])
    assert max(abs(score - truth) for score in seen[False][20:]) > 0.5


def test_a_cohorts_estimate_has_no_bias_whatever_was_told_before() -> None:
    """Over all clients that the next round may visit the estimates' mean is the truth, from any former means."""
    changes, sizes, former = (1.0, -1.0, -2.0, 0.5), (10, 20, 30, 40), (0.3, 0.0, 5.0, -2.0)
    shares = torch.tensor(sizes).double() / 100
    counts = torch.tensor([5.0, 0.0, 50.0, 2.0]).double()
    known = {"recent": torch.stack([torch.tensor(former).double() * counts, counts])}
    estimates = []
    for place, size in enumerate(sizes):
        counted = torch.zeros(4).double()
        counted[place] = size
        told = strata.surprise(strata.expected(known), changes[place] * counted, counted)
        estimates.append(strata.mean(known, shares) + told)
    truth = sum(change * size for change, size in zip(changes, sizes, strict=True)) / 100
    assert float(shares @ torch.tensor(estimates).double()) == pytest.approx(truth)


def test_without_shares_and_where_clients_count_the_same_a_cohort_is_taken_as_it_is() -> None:
    for algorithm, task in ((Guarded(), replace(TASK, shares=())), (Guarded(FedAvg(weights="uniform")), TASK)):
        server = algorithm.server_init(task)
        up, _ = visit(algorithm, task, server, ONE)
        assert server["classes.recent"].shape == up.sums["guard.worse"].shape == (2, 1)


def test_a_best_model_that_was_a_cohorts_luck_is_given_up_for_the_start() -> None:
    """One cohort finds w = 1 better by 1, all others worse by 0.6: judged again it is given up."""
    algorithm = Guarded(FedAvg(), memory=0.0, slack=0.1)
    server, deployed = algorithm.server_init(TASK), []
    for gap in (0.0, -1.0, 0.6, 0.6, 0.6):
        server = judged(algorithm, server, gap)
        deployed.append((weight(algorithm.model(TASK, server)), float(server["guard.low"])))
    low = -1 / 1.8
    by_hand = [(0.0, 0.0), (1.0, low), (1.0, low), (0.0, 0.0), (0.0, 0.0)]
    assert torch.allclose(torch.tensor(deployed), torch.tensor(by_hand), atol=1e-6)


def test_momentum_begins_anew_when_the_model_goes_back() -> None:
    algorithm = Guarded(FedAvg(server=SGD(momentum=0.9)))
    server = algorithm.server_init(TASK)
    for gap, moving in ((0.0, True), (-1.0, True), (9.0, False)):
        server = judged(algorithm, server, gap)
        assert any(leaf.any() for leaf in pick("inner.optimiser", server).values()) == moving


def test_the_pace_grows_to_a_limit_and_falls() -> None:
    """A growth is taken back to the pace before it; what had not grown, or was at its limit, is divided by 8."""
    algorithm = Guarded(FedAvg(), memory=0.0, shrink=8.0, grow=3.0, patience=1, most=7.0)
    server, seen = algorithm.server_init(TASK), []
    for gap in (-1.0, -2.0, 9.0, -8.0, 9.0):
        server = judged(algorithm, server, gap)
        seen.append((float(server["guard.pace"]), float(server["guard.patience"])))
    assert seen == [(3, 1), (7, 1), (3, 2), (3, 2), (3 / 8, 2)]
    for gap, pace in ((-1.0, 3.0), (-2.0, 7.0), (-3.0, 7.0), (9.0, 7 / 8)):
        server = judged(algorithm, algorithm.server_init(TASK) if gap == -1.0 else server, gap)
        assert float(server["guard.pace"]) == pace


def test_features_that_a_calibration_slowed_down_may_grow_beyond_the_head() -> None:
    """Largest rate of the head 0.02, a hundredth for the features: pace 4 for the head, 100 for the features."""
    local, task = LocalTraining(lr=0.1), replace(SMALL, rates=(0.02, 0.01))
    algorithm = Guarded(FedAvg(local), grow=10.0, patience=1, most=4.0)
    server, seen = algorithm.server_init(task), []
    for gap in (-1.0, -2.0, -3.0, -4.0):
        paced = algorithm.at_pace(task, float(server["guard.pace"]))
        seen.append((local.rate(paced, "head.weight"), local.rate(paced, "features.0.weight")))
        up = Update({**standing(server), **told(gap)}, 1.0)
        server = algorithm.server_step(task, server, up)
    assert torch.allclose(torch.tensor(seen), torch.tensor([(0.02, 0.001), (0.08, 0.01), (0.08, 0.1), (0.08, 0.1)]))


def standing(server: Tree) -> Tree:
    """Steps of no length for every leaf of the model."""
    return zeros_like(nest("model", pick("inner.model", server)))


def test_a_client_reports_the_paired_loss_and_trains_at_the_pace_told() -> None:
    inner = FedAvg(LOCAL)
    algorithm, clients = Guarded(inner), mixed()
    server = run_rounds(algorithm, SMALL, clients, [EVERYONE] * 2)[0] | {"guard.pace": torch.tensor(0.25).double()}
    data = clients["c3"]
    up, _ = visit(algorithm, SMALL, server, data)
    now, start = (SMALL.params() | pick("mean", server), SMALL.params())
    gap = float(
        F.cross_entropy(SMALL.forward(now, data.x).double(), data.y)
        - F.cross_entropy(SMALL.forward(start, data.x).double(), data.y)
    )
    changed, counted = up.sums["guard.worse"]
    assert counted.tolist() == torch.bincount(data.y, minlength=2).tolist()
    for label in (0, 1):
        of = data.y == label
        every = [F.cross_entropy(SMALL.forward(one, data.x[of]).double(), data.y[of]) for one in (now, start)]
        assert float(changed[label]) == pytest.approx(float(of.sum() * (every[0] - every[1])), rel=1e-6)
    assert float(changed.sum()) == pytest.approx(20 * gap, rel=1e-9)
    expected = strata.expected(pick("classes", server))
    surprise = gap - float(counted @ expected) / 20
    assert up.sums["guard.surprise"].tolist() == pytest.approx([20 * surprise, 20 * surprise**2], rel=1e-9)
    slow = FedAvg(replace(LOCAL, lr=0.025))
    alone, _ = slow.client_step(SMALL, sent(slow, SMALL, pick("inner", server)), {}, data, rng())
    assert equal(pick("model", up.sums), pick("model", alone.sums)) and up.flops > alone.flops


def test_one_step_at_a_quarter_of_the_rate_by_hand() -> None:
    algorithm = Guarded(FedAvg(LocalTraining(lr=0.4)))
    server = algorithm.server_init(TASK) | {"guard.pace": torch.tensor(0.25).double()}
    up, _ = visit(algorithm, TASK, server, ONE)
    assert weight(up.sums, "model.") == pytest.approx(-0.1 * slope(0.0), rel=1e-6)


def test_the_rates_of_the_next_round_are_shown() -> None:
    """A quarter of what the statistics allow; features that do not train have no rate."""
    task = replace(SMALL, rates=(0.02, 0.5))
    for train, expected in (("all", {"features": [0.0125], "head": [0.005]}), ("head", {"head": [0.005]})):
        algorithm = Guarded(FedAvg(LocalTraining(lr=0.1, train=train)))
        server = algorithm.server_init(task) | {"guard.pace": torch.tensor(0.25).double()}
        (shown,) = algorithm.exhibits(task, server, {})
        assert shown.columns == {part: pytest.approx(rate) for part, rate in expected.items()}
        assert "pace of 0.25," in shown.note


def test_a_client_whose_training_overflows_stays_where_it_was() -> None:
    algorithm = Guarded(Scaffold(replace(LOCAL, lr=1e30)))
    data = mixed()["c0"]
    up, state = visit(algorithm, SMALL, algorithm.server_init(SMALL), data, {})
    assert torch.equal(up.sums["guard.worse"][0], WORST * torch.bincount(data.y, minlength=2))
    moved = {key: leaf for key, leaf in up.sums.items() if not key.startswith("guard.")}
    assert moved and not any(leaf.any() for leaf in moved.values()) and state == {}


@pytest.mark.parametrize("make", [FedAvg, Scaffold])
@pytest.mark.parametrize("lr", [0.1, 30.0])
def test_what_is_deployed_is_never_worse_than_the_start(make: Callable[..., Algorithm], lr: float) -> None:
    """With everyone in every round the loss that is judged is the whole training loss."""
    clients = mixed()
    algorithm = Guarded(make(replace(LOCAL, lr=lr)))
    server, _ = run_rounds(algorithm, SMALL, clients, [EVERYONE] * 12)

    def loss(params: Tree) -> float:
        every = [F.cross_entropy(SMALL.forward(params, data.x), data.y, reduction="sum") for data in clients.values()]
        return float(sum(every)) / SAMPLES

    assert loss(algorithm.model(SMALL, server)) < loss(SMALL.params())
    assert (float(server["guard.pace"]) < 1) == (lr > 1)  # it went back where the rate was far too high


def test_controls_stay_the_mean_of_the_clients_own_when_the_model_goes_back() -> None:
    """SCAFFOLD's server control is the weighted mean of the clients', whatever becomes of the model."""
    clients, algorithm = mixed(), Guarded(Scaffold(replace(LOCAL, lr=3.0)))
    server, states = run_rounds(algorithm, SMALL, clients, [EVERYONE] * 6)
    assert float(server["guard.pace"]) < 1
    for key, leaf in pick("inner.control", server).items():
        mean = sum(len(clients[name]) * states[name][f"control.{key}"] for name in EVERYONE) / SAMPLES
        assert torch.allclose(leaf, torch.as_tensor(mean), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Guarded(Fed3R()), "trains one model for all"),
        (lambda: Guarded(Ditto()), "trains one model for all"),
        (lambda: Guarded(Robust(FedAvg())), "trains one model for all"),
        (lambda: Guarded(Private(FedAvg())), "nothing would protect"),
        (lambda: Guarded(Guarded()), "a second guard"),
        (lambda: Guarded(Wima(FedAvg())), "stands inside WIMA"),
        (lambda: Guarded(memory=1.0), "'memory'"),
        (lambda: Guarded(slack=-0.1), "'slack'"),
        (lambda: Guarded(doubt=-0.1), "'doubt'"),
        (lambda: Guarded(shrink=1.0), "'shrink'"),
        (lambda: Guarded(patience=0), "'patience'"),
    ],
)
def test_what_cannot_be_guarded_is_told(make: Callable[[], object], why: str) -> None:
    with pytest.raises(HansaError, match=why):
        make()


def test_a_loss_that_nobody_can_have_is_refused() -> None:
    algorithm = Guarded()
    up, _ = visit(algorithm, TASK, algorithm.server_init(TASK), ONE)
    assert algorithm.check(TASK, up) == ""
    wrong = [  # out of reach, no square, a class that lost too much, more than its samples, fewer than none
        {"guard.surprise": torch.tensor([-1e9, 1e18])},
        {"guard.surprise": torch.tensor([0.1, 0.5])},
        {"guard.worse": torch.tensor([[1e9, 0.0], [1.0, 0.0]])},
        {"guard.worse": torch.tensor([[0.0, 0.0], [3.0, 0.0]])},
        {"guard.worse": torch.tensor([[0.0, 0.0], [2.0, -1.0]])},
    ]
    for one in wrong:
        sums = up.sums | {key: leaf.double() for key, leaf in one.items()}
        assert "beyond" in algorithm.check(TASK, replace(up, sums=sums))


def test_what_may_be_chance_is_not_deployed() -> None:
    """Two of eight report −0.1 and 0.06: a mean of −0.02 with a standard error of 0.08·√(¾/2), which proves nothing."""
    many = replace(TASK, population=8)

    def deployed(doubt: float, *gaps: float) -> float:
        algorithm = Guarded(FedAvg(), memory=0.0, doubt=doubt)
        server = judged(algorithm, algorithm.server_init(TASK), 0.0)  # w = 1, of which nobody knows anything yet
        step = {"model.head.weight": torch.tensor([[2.0], [-2.0]])}
        server = algorithm.server_step(many, server, Update(step | told(*gaps), 2.0, 2))
        error = float(server["guard.error"])
        assert error == pytest.approx((max(gaps) - min(gaps)) / 2 * (0.75 / 2) ** 0.5 / 1.8)
        return weight(algorithm.model(TASK, server))

    assert deployed(2.0, -0.1, 0.06) == 0.0 and deployed(0.0, -0.1, 0.06) == 1.0
    assert deployed(2.0, -0.1, -0.08) == 1.0


def test_what_may_be_chance_does_not_take_a_model_back() -> None:
    """Two of eight report −0.6 and 0.9: s = 0.045 is above the slack, and within 2 · 0.3 · 0.75 · √(¾/2) of zero."""
    many = replace(TASK, population=8)

    def pace(doubt: float, *gaps: float) -> float:
        algorithm = Guarded(FedAvg(), memory=0.0, doubt=doubt)
        server = judged(algorithm, algorithm.server_init(TASK), 0.0)
        step = {"model.head.weight": torch.tensor([[2.0], [-2.0]])}
        server = algorithm.server_step(many, server, Update(step | told(*gaps), 2.0, 2))
        return float(server["guard.pace"])

    assert pace(2.0, -0.6, 0.9) == 1.0 and pace(0.0, -0.6, 0.9) == 0.25
    assert pace(2.0, 0.1, 0.2) == 0.25


def test_several_exchanges_are_judged_where_models_move() -> None:
    """Mime's first exchange collects a gradient and its second trains: one judgement for both, and no momentum back."""
    clients, algorithm = mixed(), Guarded(Mime(replace(LOCAL, lr=30.0), 0.5))
    server = algorithm.server_init(SMALL)
    for number in range(12):
        task = replace(SMALL, round=number, rounds=12)
        before = server
        ups = [visit(algorithm, task, server, data)[0] for data in clients.values()]
        server = algorithm.server_step(task, server, functools.reduce(operator.add, ups))
        if number % 2 == 0:
            assert equal(pick("guard", before), pick("guard", server)) and pick("inner.gradient", server)
    assert float(server["guard.pace"]) < 1  # such a rate takes it back

    def loss(params: Tree) -> float:
        every = [F.cross_entropy(SMALL.forward(params, data.x), data.y, reduction="sum") for data in clients.values()]
        return float(sum(every))

    assert loss(algorithm.model(SMALL, server)) <= loss(SMALL.params())


def test_wima_averages_the_best_models() -> None:
    algorithm = Wima(Guarded(FedAvg(), memory=0.0, doubt=0.0), window=2)
    server = algorithm.server_init(TASK)
    step = {"model.head.weight": torch.tensor([[2.0], [-2.0]])}
    for gap in (0.0, -1.0, -2.0):  # the best so far are w = 0, 1 and 2
        server = algorithm.server_step(TASK, server, Update(step | told(gap, gap), 2.0))
    assert weight(algorithm.model(TASK, server)) == pytest.approx(1.5)


def test_a_false_report_decides_nothing_under_a_robust_rule() -> None:
    """Of five reports four are of progress and one is as bad as can be: the median's guard goes on, the mean's back."""
    step = {"model.head.weight": torch.tensor([[1.0], [-1.0]])}

    def ups(role: bool) -> Update:
        made = []
        for place, gap in enumerate((-1.0, -1.0, -1.0, -1.0, WORST)):
            up = Update(step | told(gap), 1.0)
            made.append(set_apart(robust.uplink, f"c{place}", up) if role else up)
        return functools.reduce(operator.add, made)

    robust, plain = Robust(Guarded(by_class=False)), Guarded(memory=0.0)
    after = robust.server_step(TASK, robust.server_init(TASK), ups(True))
    assert float(after["guard.pace"]) == 1 and float(after["guard.low"]) == -1
    assert float(plain.server_step(TASK, plain.server_init(TASK), ups(False))["guard.pace"]) == 0.25
