"""FedProx, SCAFFOLD and FedDyn: what is added to a gradient, and what is remembered."""

from __future__ import annotations

import pytest
import torch
from hand_problems import (
    ONE,
    SAMPLES,
    SIZES,
    TASK,
    Normed,
    TwoLogits,
    mixed,
    rng,
    run_rounds,
    samples,
    sent,
    slope,
    visit,
    weight,
)

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.personal import Personal
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.data.federation import federation_from_clients
from hansa.engines.serial import Serial
from hansa.errors import HansaError
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP
from hansa.orchestrate.star import Star
from hansa.payload import join, relay
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.seeds import generator
from hansa.task import Task
from hansa.training.averaging import Weights
from hansa.training.local import LocalTraining
from hansa.tree import Tree, add, equal, nbytes, pick, scale, zeros_like
from journals import ListJournal

ROUNDS = [["c0", "c1"], ["c1", "c2"], ["c0"], ["c2", "c1"], ["c0", "c2"]]  # c3 is never visited
LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=4)
SMALL = Task(MLP((4,)), (3,), 2, population=4, samples=SAMPLES)
SHARES = {  # of every client in the population, by what clients count
    "samples": {f"c{k}": size / SAMPLES for k, size in enumerate(SIZES)},
    "uniform": {f"c{k}": 1 / 4 for k in range(4)},
}
THREE, THREE_OF_TWENTY = samples(2.0, 3, 0), Task(TwoLogits(), (1,), 2, population=4, samples=20)


# ---------------------------------------------------------------------------------------------------------- FedProx


def test_fedprox_pulls_in_proportion_to_the_distance() -> None:
    """An unsquared norm would pull with a constant force: 3·w/‖w‖ instead of 3·w."""
    up, _ = visit(algorithm := FedProx(LocalTraining(lr=0.1, epochs=3), mu=3.0), TASK, algorithm.server_init(TASK), ONE)
    w = 0.0
    for _ in range(3):
        w -= 0.1 * (slope(w) + 3.0 * (w - 0.0))
    assert weight(up.sums, "model.") == pytest.approx(w, rel=1e-5)


def test_fedprox_pulls_towards_the_model_received() -> None:
    task = Task(TwoLogits(0.25), (1,), 2)
    algorithm = FedProx(LocalTraining(lr=0.1, epochs=2), mu=2.0)
    up, _ = visit(algorithm, task, algorithm.server_init(task), ONE)
    first = 0.25 - 0.1 * slope(0.25)
    second = first - 0.1 * (slope(first) + 2.0 * (first - 0.25))
    assert weight(up.sums, "model.") == pytest.approx(second - 0.25, rel=1e-5)


def test_fedprox_without_a_pull_is_fedavg() -> None:
    clients = mixed()
    plain = run_rounds(FedAvg(LOCAL), SMALL, clients, ROUNDS)[0]
    assert equal(run_rounds(FedProx(LOCAL, mu=0.0), SMALL, clients, ROUNDS)[0], plain)
    assert not equal(run_rounds(FedProx(LOCAL, mu=0.1), SMALL, clients, ROUNDS)[0], plain)


# --------------------------------------------------------------------------------------------------------- SCAFFOLD


@pytest.mark.parametrize(("weights", "counts", "of"), [("samples", 3, 20), ("uniform", 1, 4)])
def test_scaffold_option_two_by_hand(weights: Weights, counts: int, of: int) -> None:
    """Two visits of one client, of 3 among 20 samples: its control is kept, and shifts the second visit's gradients."""
    algorithm = Scaffold(LocalTraining(lr=0.1, epochs=2), weights=weights)
    server = algorithm.server_init(THREE_OF_TWENTY)
    up, state = visit(algorithm, THREE_OF_TWENTY, server, THREE)
    w = -0.1 * slope(0.0)
    w -= 0.1 * slope(w)
    own = (0.0 - w) / (2 * 0.1)
    assert up.weight == counts and weight(up.sums, "model.") == pytest.approx(counts * w, rel=1e-5)
    assert weight(state, "control.") == pytest.approx(own, rel=1e-5)
    assert weight(up.sums, "control.") == pytest.approx(counts * own, rel=1e-5)
    server = algorithm.server_step(THREE_OF_TWENTY, server, up)
    control = counts * own / of  # the other clients have zero
    assert weight(server, "control.") == pytest.approx(control, rel=1e-5)
    assert weight(server, "model.") == pytest.approx(w, rel=1e-5)
    up, state = visit(algorithm, THREE_OF_TWENTY, server, THREE, state)
    y = w
    for _ in range(2):
        y -= 0.1 * (slope(y) - own + control)
    assert weight(up.sums, "model.") == pytest.approx(counts * (y - w), rel=1e-4)
    new = own - control + (w - y) / (2 * 0.1)
    assert weight(state, "control.") == pytest.approx(new, rel=1e-4)
    assert weight(up.sums, "control.") == pytest.approx(counts * (new - own), rel=1e-3)
    server = algorithm.server_step(THREE_OF_TWENTY, server, up)
    assert weight(server, "control.") == pytest.approx(counts * new / of, rel=1e-4)


def test_scaffold_option_one_takes_the_gradient_where_training_began() -> None:
    task, data = Task(TwoLogits(0.3), (1,), 2, population=2), samples(2.0, 3, 2)
    algorithm = Scaffold(LocalTraining(lr=0.1, epochs=2, batch_size=2, weight_decay=0.5), option="I")
    _, state = visit(algorithm, task, algorithm.server_init(task), data)
    expected = (3 * slope(0.3, 0) + 2 * slope(0.3, 1)) / 5 + 0.5 * 0.3
    assert weight(state, "control.") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("wrap", [False, True], ids=["plain", "personal"])
def test_the_servers_control_is_the_weighted_mean_of_all_clients(option: str, wrap: bool, weights: Weights) -> None:
    scaffold = Scaffold(LOCAL, option=option, weights=weights)  # type: ignore[arg-type]
    algorithm: Algorithm = Personal(scaffold, keep="head") if wrap else scaffold
    server, states = run_rounds(algorithm, SMALL, mixed(), ROUNDS)
    shares = SHARES[weights]
    total = zeros_like(pick("control", server))
    for name, state in states.items():
        total = add(total, scale(pick("control", state), shares[name]))
    assert "c3" not in states and total
    for key, leaf in total.items():
        assert torch.allclose(leaf, server[f"control.{key}"], atol=1e-6), key
        assert leaf.abs().max() > 1e-3
    assert any(key.startswith("head.") for key in total) is not wrap


def test_a_first_control_is_zero_not_the_weights() -> None:
    task = Task(TwoLogits(0.7), (1,), 2, population=4)
    algorithm = Scaffold(LocalTraining(lr=0.1))
    server = algorithm.server_init(task)
    assert weight(server, "control.") == 0.0
    up, _ = visit(algorithm, task, server, ONE)
    assert weight(up.sums, "control.") == pytest.approx(slope(0.7), rel=1e-5)


def test_scaffolds_first_step_is_fedavgs() -> None:
    clients, everyone = mixed(), [["c0", "c1", "c2", "c3"]]
    left, right = (
        run_rounds(Scaffold(LOCAL), SMALL, clients, everyone)[0],
        run_rounds(FedAvg(LOCAL), SMALL, clients, everyone)[0],
    )
    assert equal(pick("model", left), pick("model", right))


def test_personal_leaves_have_no_control_and_train_by_plain_sgd() -> None:
    algorithm = Personal(Scaffold(LOCAL), keep="head")
    server, states = run_rounds(algorithm, SMALL, mixed(), ROUNDS)
    data = mixed()["c1"]
    down = sent(algorithm, SMALL, server)
    up, state = algorithm.client_step(SMALL, down, states["c1"], data, rng())
    assert all(key.split(".")[1] == "features" for tree in (server, down, up.sums) for key in tree)
    assert all(key.startswith("features.") for key in pick("control", state))
    turn = next(algorithm.visit(SMALL, down, states["c1"], data, rng()))
    assert turn.correction.shift and all(key.startswith("features.") for key in turn.correction.shift)
    assert set(pick("own", state)) == {"head.weight", "head.bias"}


def test_scaffold_sends_twice_as_much_and_no_control_of_buffers() -> None:
    algorithm = Scaffold()
    up, _ = visit(algorithm, SMALL, server := algorithm.server_init(SMALL), mixed()["c0"])
    assert nbytes(sent(algorithm, SMALL, server)) == nbytes(up.sums) == 2 * nbytes(SMALL.params())
    normed = Task(Normed(), (3,), 2)
    assert not [key for key in algorithm.server_init(normed) if key.startswith("control.") and "running" in key]


def test_scaffold_refuses_momentum_where_steps_are_not_gradients() -> None:
    with pytest.raises(HansaError, match="momentum to 0"):
        Scaffold(LocalTraining(momentum=0.9))
    Scaffold(LocalTraining(momentum=0.9), option="I")


# ----------------------------------------------------------------------------------------------------------- FedDyn


@pytest.mark.parametrize(("weights", "counts", "of"), [("samples", 3, 20), ("uniform", 1, 4)])
def test_feddyn_by_hand(weights: Weights, counts: int, of: int) -> None:
    """Two visits: the second one's gradients carry the linear term, which a detached one would not."""
    algorithm, alpha = FedDyn(LocalTraining(lr=0.1, epochs=2), alpha=0.5, weights=weights), 0.5
    server = algorithm.server_init(THREE_OF_TWENTY)
    up, state = visit(algorithm, THREE_OF_TWENTY, server, THREE)
    w = -0.1 * slope(0.0)
    w -= 0.1 * (slope(w) + alpha * w)
    dual = -alpha * w
    assert weight(up.sums, "model.") == pytest.approx(counts * w, rel=1e-5)
    assert weight(state, "dual.") == pytest.approx(dual, rel=1e-5)
    server = algorithm.server_step(THREE_OF_TWENTY, server, up)
    assert weight(server, "dual.") == pytest.approx(dual * counts / of, rel=1e-5)
    centre = w - dual * counts / of / alpha
    assert weight(server, "model.") == pytest.approx(centre, rel=1e-5)
    up, _ = visit(algorithm, THREE_OF_TWENTY, server, THREE, state)
    y = centre
    for _ in range(2):
        y -= 0.1 * (slope(y) - dual + alpha * (y - centre))
    assert weight(up.sums, "model.") == pytest.approx(counts * (y - centre), rel=1e-4)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_feddyns_server_term_is_the_weighted_mean_of_all_clients(weights: Weights) -> None:
    server, states = run_rounds(FedDyn(LOCAL, alpha=0.1, weights=weights), SMALL, mixed(), ROUNDS)
    assert "c3" not in states
    for key, leaf in pick("dual", server).items():
        mean = sum(SHARES[weights][name] * state[f"dual.{key}"] for name, state in states.items())
        assert torch.allclose(leaf, torch.as_tensor(mean), atol=1e-6) and leaf.abs().max() > 1e-4


@pytest.mark.parametrize(
    ("weights", "counts"),
    [("samples", {"c0": 5, "c1": 15}), ("uniform", {"c0": 1, "c1": 1})],
    ids=["samples", "uniform"],
)
def test_feddyn_without_alpha_is_fedavg_with_a_momentum_that_never_fades(
    weights: Weights, counts: dict[str, int]
) -> None:
    clients = {"c0": samples(1.0, 4, 1), "c1": samples(2.0, 6, 9)}
    rounds = [["c0", "c1"], ["c0"], ["c0", "c1"], ["c1"]]
    task = Task(TwoLogits(), (1,), 2, population=2, samples=20)
    server, _ = run_rounds(FedDyn(LOCAL, alpha=1e-6, weights=weights), task, clients, rounds)
    average = FedAvg(LOCAL)
    w, velocity = average.server_init(task), 0.0
    for number, names in enumerate(rounds):
        ups = {n: average.client_step(task, w, {}, clients[n], generator(0, number, n))[0].mean() for n in names}
        moved = sum(counts[n] * weight(up, "model.") for n, up in ups.items())
        velocity += moved / sum(counts.values())
        now = weight(w, "model.") + moved / sum(counts[n] for n in names) + velocity
        w = {"model.head.weight": torch.tensor([[now], [-now]])}
    assert weight(server, "model.") == pytest.approx(weight(w, "model."), rel=1e-2)


# --------------------------------------------------------------------------------------------- where they end up


@pytest.mark.parametrize(
    ("algorithm", "right"),
    [
        (FedAvg(LocalTraining(lr=0.05, epochs=8)), False),
        (Scaffold(LocalTraining(lr=0.05, epochs=8)), True),
        (Scaffold(LocalTraining(lr=0.05, epochs=8), option="I"), True),
        (FedDyn(LocalTraining(lr=0.05, epochs=8), alpha=0.3), True),
    ],
    ids=["fedavg", "scaffold-2", "scaffold-1", "feddyn"],
)
def test_drift_is_corrected(algorithm: Algorithm, right: bool) -> None:
    """Many local steps on clients that disagree: FedAvg stops elsewhere, the others where the mean loss is lowest."""
    clients = {"near": samples(0.5, 9, 1), "far": samples(3.0, 4, 6)}
    task = Task(TwoLogits(), (1,), 2, population=2, samples=20)
    server, _ = run_rounds(algorithm, task, clients, [["near", "far"]] * 120)
    w = weight(server, "model.")
    near = 0.9 * slope(w, 0, 0.5) + 0.1 * slope(w, 1, 0.5)
    far = 0.4 * slope(w, 0, 3.0) + 0.6 * slope(w, 1, 3.0)
    assert (abs(near + far) < 1e-3) is right


def test_feddyn_is_right_along_chains_too() -> None:
    """Two chains of two clients that disagree, in changing order: it still ends where the mean loss is lowest."""
    held = {"a": samples(0.5, 9, 1), "b": samples(3.0, 4, 6), "c": samples(1.0, 7, 3), "d": samples(2.0, 2, 8)}
    task = Task(TwoLogits(), (1,), 2, population=4, samples=40)
    ends = {}
    for algorithm in (FedDyn(LocalTraining(lr=0.05, epochs=8), alpha=0.6), FedAvg(LocalTraining(lr=0.05, epochs=8))):
        server, states, uplink = algorithm.server_init(task), dict[str, Tree](), algorithm.uplink
        for number in range(120):
            cohort = None
            for chain in (("a", "b"), ("c", "d")) if number % 2 else (("d", "a"), ("b", "c")):
                down, total = sent(algorithm, task, server), None
                for name in chain:
                    state = states.get(name, {})
                    up, states[name] = algorithm.client_step(task, down, state, held[name], generator(0, number, name))
                    total, down = up if total is None else join(uplink, total, up), relay(uplink, down, up)
                assert total is not None
                cohort = total if cohort is None else cohort + total
            assert cohort is not None
            server = algorithm.server_step(task, server, cohort)
        w = weight(server, "model.")
        ends[type(algorithm)] = sum(
            float((data.y == label).sum()) * slope(w, label, float(data.x[0, 0])) / 40
            for data in held.values()
            for label in (0, 1)
        )
    assert abs(ends[FedDyn]) < 1e-3 < abs(ends[FedAvg])


def test_a_run_knows_how_many_samples_all_clients_have() -> None:
    """A task made by hand may not say; without their number the mean control would be many times too large."""
    clients = {name: (data.x.numpy(), data.y.numpy()) for name, data in mixed().items()}
    task, phase = Task(MLP((4,)), (3,), 2, population=4), Phase("only", Scaffold(LOCAL), Star(2), rounds=3)
    experiment = Experiment(task, federation_from_clients(clients), (phase,), Serial())
    done = run_phases(experiment, MemoryStore(), ListJournal())
    assert done is not None and done.task.samples == SAMPLES
    states = {name: done.store.get("0/client", name) or {} for name in clients}
    for key, leaf in pick("control", done.server).items():
        shares = SHARES["samples"]
        mean = sum(shares[name] * state[f"control.{key}"] for name, state in states.items() if state)
        assert torch.allclose(leaf, torch.as_tensor(mean), atol=1e-6) and leaf.any(), key


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FedProx(mu=-1), "The 'mu' of FedProx must be a number ≥ 0. Got -1."),
        (lambda: FedDyn(alpha=0), "The 'alpha' of FedDyn must be a number > 0. Got 0."),
    ],
)
def test_bad_settings_are_sentences(make: object, says: str) -> None:
    with pytest.raises(HansaError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value) == says
