"""FedAvg-FT, Per-FedAvg, pFedMe, Ditto and L2GD: every client deploys a model of its own."""

from __future__ import annotations

import pytest
import torch
from hand_problems import (
    ONE,
    OTHER,
    SAMPLES,
    SIZES,
    TASK,
    TwoLogits,
    deployed,
    mixed,
    rng,
    run_rounds,
    samples,
    sent,
    sigmoid,
    slope,
    visit,
    weight,
)

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.local import Local
from hansa.algorithms.perfedavg import PerFedAvg
from hansa.algorithms.pfedme import PFedMe
from hansa.contract import Algorithm
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.server.optimisers import SGD
from hansa.task import Task
from hansa.training.averaging import Weights
from hansa.training.local import LocalTraining
from hansa.tree import equal, nbytes, pick

LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=4)
SMALL = Task(MLP((4,)), (3,), 2, population=4, samples=SAMPLES)
ROUNDS = [["c0", "c1"], ["c1", "c2"], ["c0"]]
WARM = Task(TwoLogits(0.2), (1,), 2, population=4)


@pytest.mark.parametrize("kind", [FedAvgFT, Ditto])
def test_the_global_model_is_fedavgs_bit_for_bit(kind: type) -> None:
    """Whatever a client does for itself comes after, from the same stream of random numbers."""
    server, _ = run_rounds(kind(LOCAL, SGD(0.5)), SMALL, mixed(), ROUNDS)
    assert equal(server, run_rounds(FedAvg(LOCAL, SGD(0.5)), SMALL, mixed(), ROUNDS)[0])


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvgFT(LocalTraining(lr=0.1)),
        PerFedAvg(LocalTraining(lr=0.1), alpha=0.1),
        PFedMe(LocalTraining(lr=0.1), strength=1.0),
        Ditto(LocalTraining(lr=0.1)),
        L2GD(LocalTraining(lr=0.1)),
        Local(LocalTraining(lr=0.1)),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_clients_that_disagree_deploy_models_that_disagree(algorithm: Algorithm) -> None:
    """Evaluating the global model would show the same model twice, of weight about 0."""
    clients = {"one": ONE, "other": OTHER}
    server, states = run_rounds(algorithm, TASK, clients, [["one", "other"]] * 3)
    one, other = (weight(deployed(algorithm, TASK, server, states[name], clients[name])) for name in clients)
    assert algorithm.personal and one > 0.01 and other < -0.01


def test_fine_tuning_starts_from_the_current_global_model_also_for_clients_never_visited() -> None:
    algorithm = FedAvgFT(LocalTraining(lr=0.5, epochs=3), tune=LocalTraining(lr=0.1))
    server = algorithm.server_init(WARM)
    up, state = visit(algorithm, WARM, server, ONE)
    after = algorithm.server_step(WARM, server, up)
    now = weight(after, "model.")
    assert weight(algorithm.model(WARM, after)) == now != pytest.approx(0.2)
    tuned = now - 0.1 * slope(now)
    assert state == {} and weight(deployed(algorithm, WARM, after, {}, ONE)) == pytest.approx(tuned, rel=1e-5)
    away = now - 0.1 * slope(now, label=1)
    assert weight(deployed(algorithm, WARM, after, {}, OTHER)) == pytest.approx(away, rel=1e-5)


# ------------------------------------------------------------------------------------------------------- Per-FedAvg


def curvature(w: float) -> float:
    """The second derivative along (1, −1) of the loss of ONE."""
    p = sigmoid(4 * w)
    return 8 * p * (1 - p)


@pytest.mark.parametrize("order", ["fo", "hf"])
def test_per_fedavg_by_hand(order: str) -> None:
    algorithm = PerFedAvg(LocalTraining(lr=0.1, epochs=2), alpha=0.3, order=order)  # type: ignore[arg-type]
    server = algorithm.server_init(WARM)
    up, state = visit(algorithm, WARM, server, ONE)
    w = 0.2
    for _ in range(2):
        meta = slope(w - 0.3 * slope(w))
        w -= 0.1 * (meta if order == "fo" else (1 - 0.3 * curvature(w)) * meta)
    assert 0.2 + weight(up.sums, "model.") == pytest.approx(w, rel=1e-4)
    adapted = deployed(algorithm, WARM, server, state, ONE)
    assert state == {} and weight(adapted) == pytest.approx(0.2 - 0.3 * slope(0.2), rel=1e-5)


def test_hessian_free_differs_from_first_order() -> None:
    first, free = (
        visit(algorithm := PerFedAvg(alpha=0.3, order=order), WARM, algorithm.server_init(WARM), ONE)[0]
        for order in ("fo", "hf")
    )
    assert abs(weight(first.sums, "model.") - weight(free.sums, "model.")) > 1e-3
    assert free.flops / first.flops == pytest.approx(2)


def test_per_fedavg_without_adaptation_is_fedavg() -> None:
    clients, local = mixed(), LocalTraining(lr=0.1, epochs=3, batch_size=100)
    left, _ = run_rounds(PerFedAvg(local, alpha=0.0), SMALL, clients, ROUNDS)
    right, _ = run_rounds(FedAvg(local), SMALL, clients, ROUNDS)
    assert all(torch.allclose(leaf, right[key], atol=1e-5) for key, leaf in left.items())


def test_every_sample_of_a_small_client_trains() -> None:
    """A client of three samples and batches of two still takes two steps an epoch."""
    algorithm = PerFedAvg(LocalTraining(lr=0.1, batch_size=2), alpha=0.0)
    up, _ = visit(algorithm, TASK, algorithm.server_init(TASK), samples(2.0, 3, 0))
    w = -0.1 * slope(0.0)
    assert weight(up.sums, "model.") / 3 == pytest.approx(w - 0.1 * slope(w), rel=1e-5)


# ----------------------------------------------------------------------------------------------------------- pFedMe


def test_pfedmes_proximal_term_carries_gradient() -> None:
    """Detached, θ would follow the loss alone: after five steps it would be further from w."""
    algorithm = PFedMe(LocalTraining(lr=0.1, epochs=2), strength=3.0, inner_steps=5, outer_lr=0.2)
    up, state = visit(algorithm, WARM, algorithm.server_init(WARM), ONE)
    theta, w, loose = 0.2, 0.2, 0.2
    for _ in range(2):
        for _ in range(5):
            theta -= 0.1 * (slope(theta) + 3.0 * (theta - w))
            loose -= 0.1 * slope(loose)
        w -= 0.2 * 3.0 * (w - theta)
    assert weight(state, "own.") == pytest.approx(theta, rel=1e-4)
    assert 0.2 + weight(up.sums, "model.") == pytest.approx(w, rel=1e-4)
    assert weight(state, "own.") < loose - 0.1
    assert up.flops == 2 * 5 * 12


def test_pfedme_solves_its_inner_problem() -> None:
    algorithm = PFedMe(LocalTraining(lr=0.1), strength=3.0, inner_steps=200)
    _, state = visit(algorithm, WARM, algorithm.server_init(WARM), ONE)
    theta = weight(state, "own.")
    assert slope(theta) + 3.0 * (theta - 0.2) == pytest.approx(0.0, abs=1e-5)


def test_one_inner_step_of_full_length_is_fedavg() -> None:
    clients = mixed()
    algorithm = PFedMe(LOCAL, strength=10.0, inner_steps=1, outer_lr=0.1)
    left, right = run_rounds(algorithm, SMALL, clients, ROUNDS)[0], run_rounds(FedAvg(LOCAL), SMALL, clients, ROUNDS)[0]
    assert all(torch.allclose(leaf, right[key], atol=1e-4) for key, leaf in left.items())


def test_pfedmes_personal_part_never_travels_and_is_not_pulled() -> None:
    algorithm = PFedMe(LOCAL, strength=5.0, keep="head")
    server, states = run_rounds(algorithm, SMALL, mixed(), ROUNDS)
    up, _ = visit(algorithm, SMALL, server, mixed()["c0"], states["c0"])
    assert not [key for tree in (server, up.sums) for key in tree if "head." in key]
    assert equal(
        pick("own.head", states["c0"]), pick("head", deployed(algorithm, SMALL, server, states["c0"], mixed()["c0"]))
    )
    alone = PFedMe(LocalTraining(lr=0.1), strength=5.0, inner_steps=3, keep="head")
    _, state = alone.client_step(WARM, {}, alone.client_init(WARM, ONE), ONE, rng())
    w = 0.2
    for _ in range(3):
        w -= 0.1 * slope(w)
    assert weight(state, "own.") == pytest.approx(w, rel=1e-5)


def test_pfedme_refuses_steps_that_diverge() -> None:
    with pytest.raises(HansaError, match="diverges unless"):
        PFedMe(LocalTraining(lr=0.2), strength=15.0)


# ------------------------------------------------------------------------------------------------------------ Ditto


def test_ditto_pulls_its_own_model_towards_the_one_received() -> None:
    algorithm = Ditto(LocalTraining(lr=0.1, epochs=2), strength=2.0, personal_epochs=3)
    server = algorithm.server_init(WARM)
    up, state = visit(algorithm, WARM, server, ONE)
    _, state = visit(algorithm, WARM, server := algorithm.server_step(WARM, server, up), ONE, state)
    v, centre = 0.2, 0.2
    for centre in (0.2, weight(server, "model.")):
        for _ in range(3):
            v -= 0.1 * (slope(v) + 2.0 * (v - centre))
    assert weight(deployed(algorithm, WARM, server, state, ONE)) == pytest.approx(v, rel=1e-4)
    assert up.flops == (2 + 3) * 12


def test_ditto_without_a_pull_trains_locally() -> None:
    local = LocalTraining(lr=0.1, batch_size=100)  # one batch: the order of samples does not matter
    _, ditto = run_rounds(Ditto(local, strength=0.0), SMALL, mixed(), ROUNDS)
    _, alone = run_rounds(Local(local), SMALL, mixed(), ROUNDS)
    assert all(torch.allclose(leaf, alone[name][key], atol=1e-6) for name in alone for key, leaf in ditto[name].items())


# ------------------------------------------------------------------------------------------------------------- L2GD


def test_l2gd_by_hand() -> None:
    """Two averaging steps of ω = 0.1·2·0.5/0.5 = 0.2 and three gradient steps, from x̄ = 0 and x_k = 0.2."""
    algorithm = L2GD(LocalTraining(lr=0.1), strength=2.0, probability=0.5)
    down = {"model.head.weight": torch.zeros(2, 1), "steps": torch.tensor([2, 3])}
    up, state = algorithm.client_step(TASK, down, algorithm.client_init(WARM, ONE), ONE, rng())
    x = 0.2 * (1 - 0.2) ** 2
    for _ in range(3):
        x -= 0.1 * slope(x)
    assert weight(state, "own.") == pytest.approx(x, rel=1e-5) == weight(up.sums, "model.")
    assert up.flops == 3 * 12 and up.weight == 1.0


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_l2gds_server_has_the_weighted_mean_of_the_models(weights: Weights) -> None:
    everyone = [["c0", "c1", "c2", "c3"]] * 3
    server, states = run_rounds(L2GD(LocalTraining(batch_size=4), weights=weights), SMALL, mixed(), everyone)
    counts = torch.tensor(SIZES if weights == "samples" else (1, 1, 1, 1), dtype=torch.float32)
    for key, leaf in pick("model", server).items():
        mean = torch.tensordot(counts / counts.sum(), torch.stack([own[f"own.{key}"] for own in states.values()]), 1)
        assert torch.allclose(leaf, mean, atol=1e-6), key


def test_l2gd_without_a_pull_ignores_the_others() -> None:
    clients = mixed()
    _, among = run_rounds(L2GD(strength=0.0), SMALL, clients, [["c0", "c1"]] * 3)
    _, alone = run_rounds(L2GD(strength=0.0), SMALL, clients, [["c0"]] * 3)
    assert equal(among["c0"], alone["c0"])
    _, pulled = run_rounds(L2GD(strength=0.5), SMALL, clients, [["c0", "c1"]] * 3)
    assert not equal(pulled["c0"], alone["c0"])


def test_l2gd_with_full_averaging_is_fedavg_with_drawn_steps() -> None:
    algorithm = L2GD(LocalTraining(lr=0.1), strength=10.0, probability=0.5)
    assert algorithm.mixing == 1.0
    server = algorithm.server_init(WARM) | {"steps": torch.tensor([1, 4])}
    up, _ = visit(algorithm, WARM, server, ONE, {"own.head.weight": torch.tensor([[9.0], [-9.0]])})
    expected, _ = visit(average := FedAvg(LocalTraining(lr=0.1, epochs=4)), WARM, average.server_init(WARM), ONE)
    assert weight(up.sums, "model.") == pytest.approx(weight(expected.sums, "model."), rel=1e-5)


def test_l2gds_coins_fall_as_often_as_they_should() -> None:
    algorithm = L2GD(LocalTraining(lr=0.1), strength=0.1, probability=0.25)
    runs = torch.stack([algorithm._coins(TASK, number)["steps"] for number in range(2000)]).double()
    assert runs.min() == 1
    assert runs.mean(0).tolist() == pytest.approx([4 / 3, 4.0], rel=0.08)


def test_l2gd_sends_a_model_and_two_numbers() -> None:
    algorithm = L2GD()
    server = algorithm.server_init(SMALL)
    assert nbytes(sent(algorithm, SMALL, server)) == nbytes(SMALL.params()) + 16


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Ditto(strength=-1), "The 'strength' (λ) of Ditto must be a number ≥ 0. Got -1."),
        (lambda: L2GD(probability=1.0), "The 'probability' of L2GD must lie between 0 and 1. Got 1.0."),
        (lambda: PerFedAvg(alpha=-1), "The 'alpha' of Per-FedAvg must be a number ≥ 0. Got -1."),
        (lambda: Local(strength=-1), "The 'strength' (λ) of Local must be a number ≥ 0. Got -1."),
    ],
)
def test_bad_settings_are_sentences(make: object, says: str) -> None:
    with pytest.raises(HansaError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value) == says
