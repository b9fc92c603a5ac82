"""Mime, MimeLite and WIMA: what the server remembers of gradients and of models."""

from __future__ import annotations

import itertools

import pytest
import torch
from hand_problems import ONE, OTHER, SAMPLES, TASK, deployed, mixed, run_rounds, samples, sent, slope, visit, weight

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.mime import Mime
from hansa.algorithms.mimelite import MimeLite
from hansa.algorithms.personal import Personal
from hansa.algorithms.scaffold import Scaffold
from hansa.algorithms.wima import Wima
from hansa.contract import Algorithm
from hansa.data.federation import federation_from_clients
from hansa.engines.serial import Serial
from hansa.errors import HansaError
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.task import Task
from hansa.training.local import LocalTraining
from hansa.training.objectives import CrossEntropy
from hansa.tree import Tree, equal, nbytes, pick
from journals import ListJournal

LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=4)
SMALL = Task(MLP((4,)), (3,), 2, population=4, samples=SAMPLES)
EVERYONE = ["c0", "c1", "c2", "c3"]


def test_mimelite_by_hand() -> None:
    algorithm, beta = MimeLite(LocalTraining(lr=0.1, epochs=2), beta=0.6), 0.6
    server = algorithm.server_init(TASK)
    w, momentum = 0.0, 0.0
    for _ in range(3):
        up, _ = visit(algorithm, TASK, server, ONE)
        server = algorithm.server_step(TASK, server, up)
        y = w
        for _ in range(2):
            y -= 0.1 * ((1 - beta) * slope(y) + beta * momentum)
        w, momentum = y, (1 - beta) * slope(w) + beta * momentum
        assert weight(server, "momentum.") == pytest.approx(momentum, rel=1e-4)
        assert weight(server, "model.") == pytest.approx(w, rel=1e-4)


def test_mimelite_without_momentum_is_fedavg() -> None:
    clients, rounds = mixed(), [EVERYONE, ["c0", "c2"], ["c1"]]
    left = run_rounds(MimeLite(LOCAL, beta=0.0), SMALL, clients, rounds)[0]
    assert equal(pick("model", left), pick("model", run_rounds(FedAvg(LOCAL), SMALL, clients, rounds)[0]))


def test_mimes_batches_are_corrected_by_their_own_gradient() -> None:
    """Two clients that disagree: every local step of either follows `∇f_k(y) − ∇f_k(x) + c`."""
    algorithm, beta = Mime(LocalTraining(lr=0.1, epochs=2), beta=0.5), 0.5
    clients = {"one": ONE, "other": OTHER}
    server, _ = run_rounds(algorithm, TASK, clients, [["one"]])
    assert weight(server, "model.") == 0.0 and weight(server, "gradient.") == pytest.approx(slope(0.0))
    up, _ = visit(algorithm, TASK, server, OTHER)
    y = 0.0
    for _ in range(2):
        y -= 0.1 * ((1 - beta) * (slope(y, 1) - slope(0.0, 1) + slope(0.0, 0)) + beta * 0.0)
    assert weight(up.sums, "model.") == pytest.approx(y, rel=1e-4)
    after = algorithm.server_step(TASK, server, up)
    assert weight(after, "momentum.") == pytest.approx(0.5 * slope(0.0))
    assert not pick("gradient", after)


def test_mime_with_full_batches_of_everyone_is_centralised_momentum() -> None:
    clients = mixed()
    whole = torch.cat([data.x for data in clients.values()]), torch.cat([data.y for data in clients.values()])
    server, _ = run_rounds(Mime(LocalTraining(lr=0.2, batch_size=1000), beta=0.8), SMALL, clients, [EVERYONE] * 8)
    params = {key: leaf.clone().requires_grad_() for key, leaf in SMALL.params().items()}
    momentum = {key: torch.zeros_like(leaf) for key, leaf in params.items()}
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(SMALL.forward(params, whole[0]), whole[1])
        for (key, leaf), found in zip(params.items(), torch.autograd.grad(loss, list(params.values())), strict=True):
            momentum[key] = 0.8 * momentum[key] + 0.2 * found
            leaf.data -= 0.2 * momentum[key]
    for key, leaf in params.items():
        assert torch.allclose(leaf, server[f"model.{key}"], atol=1e-5), key


def test_mime_of_one_client_with_full_batches_is_fedavg() -> None:
    data, local = {"c": samples(2.0, 3, 1)}, LocalTraining(lr=0.1, epochs=3)
    task = Task(TASK.model, (1,), 2)
    mime = run_rounds(Mime(local, beta=0.0), task, data, [["c"]] * 6)[0]
    assert weight(mime, "model.") == pytest.approx(
        weight(run_rounds(FedAvg(local), task, data, [["c"]] * 3)[0], "model.")
    )


def test_what_mime_sends() -> None:
    """First the model down and a gradient up, then the model with two statistics down and the step up."""
    algorithm, data, size = Mime(LOCAL), mixed()["c0"], nbytes(SMALL.params())
    server = algorithm.server_init(SMALL)
    for down in (1, 3):
        up, _ = visit(algorithm, SMALL, server, data)
        assert (nbytes(sent(algorithm, SMALL, server)), nbytes(up.sums)) == (down * size, size)
        server = algorithm.server_step(SMALL, server, up)
    lite = MimeLite(LOCAL)
    up, _ = visit(lite, SMALL, server := lite.server_init(SMALL), data)
    assert (nbytes(sent(lite, SMALL, server)), nbytes(up.sums)) == (2 * size, 2 * size)


@pytest.mark.parametrize("algorithm", [Mime(LOCAL), Wima(Mime(LOCAL), 3)], ids=["mime", "wima"])
def test_both_exchanges_of_a_step_visit_the_same_clients(algorithm: Algorithm) -> None:
    """Rounds 2k and 2k + 1; other steps visit others."""
    clients = {f"c{k}": (data.x.numpy(), data.y.numpy()) for k, data in enumerate(mixed(sizes=(5,) * 9).values())}
    visits = []
    for rounds in range(1, 5):
        phase = Phase("only", algorithm, Star(2), rounds)
        experiment = Experiment(SMALL, federation_from_clients(clients), (phase,), Serial())
        done = run_phases(experiment, MemoryStore(), ListJournal())
        assert done is not None
        visits.append(done.ledger.tree()["visits"])
    each = [visits[0], *(after - before for before, after in itertools.pairwise(visits))]
    assert algorithm.exchanges == 2 and all(int(one.sum()) == 2 for one in each)
    assert torch.equal(each[0], each[1]) and torch.equal(each[2], each[3]) and not torch.equal(each[1], each[2])


@pytest.mark.parametrize("objective", [CrossEntropy(class_weights=(0.5, 2.0)), CrossEntropy(0.2)], ids=repr)
def test_mime_knows_its_reference_point_from_what_the_objective_is_given(objective: CrossEntropy) -> None:
    """With one client, full batches and no momentum a training round is FedAvg's, whatever the objective."""
    data, local = {"c": mixed()["c3"]}, LocalTraining(lr=0.1, epochs=3, batch_size=100, objective=objective)
    mime = run_rounds(Mime(local, beta=0.0), SMALL, data, [["c"]] * 2)[0]
    plain = run_rounds(FedAvg(local), SMALL, data, [["c"]])[0]
    for key, leaf in pick("model", plain).items():
        assert torch.allclose(mime[f"model.{key}"], leaf, atol=1e-6), key


@pytest.mark.parametrize("kind", [Mime, MimeLite])
def test_a_second_momentum_is_refused(kind: type) -> None:
    with pytest.raises(HansaError, match=f"{kind.__name__} applies the server's momentum"):
        kind(LocalTraining(momentum=0.5))
    with pytest.raises(HansaError, match="'beta'"):
        kind(beta=1.0)


# ------------------------------------------------------------------------------------------------------------- WIMA


def models(algorithm: FedAvg, rounds: list[list[str]]) -> list[Tree]:
    return [
        pick("model", run_rounds(algorithm, SMALL, mixed(), rounds[:count])[0]) for count in range(1, len(rounds) + 1)
    ]


@pytest.mark.parametrize(("window", "block", "spans"), [(3, 1, 3), (1, 1, 1), (10, 1, 7), (4, 2, 3), (6, 3, 4)])
def test_wima_is_the_mean_of_the_last_models(window: int, block: int, spans: int) -> None:
    """After seven rounds; in blocks of two a window of four has one full block and the newest, begun, one."""
    rounds = [["c0"], ["c1"], ["c2"], ["c3"], ["c0"], ["c1"], ["c2"]]
    algorithm = Wima(FedAvg(LOCAL), window, block)
    server, _ = run_rounds(algorithm, SMALL, mixed(), rounds)
    last = models(FedAvg(LOCAL), rounds)[-spans:]
    for key, leaf in algorithm.model(SMALL, server).items():
        assert torch.allclose(leaf, torch.stack([model[key] for model in last]).mean(0), atol=1e-6), key
    assert equal(pick("inner.model", server), last[-1])


def test_wimas_memory_is_bounded_and_starts_empty() -> None:
    algorithm = Wima(FedAvg(LOCAL), window=4, block=2)
    first = algorithm.server_init(SMALL)
    assert equal(algorithm.model(SMALL, first), SMALL.params())
    sizes = [nbytes(run_rounds(algorithm, SMALL, mixed(), [["c0"]] * count)[0]) for count in (0, 2, 4, 9, 12)]
    model = nbytes(SMALL.params())
    assert sizes == [model + 8, 2 * model + 8, 3 * model + 8, 3 * model + 8, 3 * model + 8]


def test_wima_changes_neither_training_nor_messages() -> None:
    inner, rounds = Scaffold(LOCAL), [["c0", "c1"], ["c1", "c2"]]
    alone, states = run_rounds(inner, SMALL, mixed(), rounds)
    wrapped, others = run_rounds(Wima(inner, 2), SMALL, mixed(), rounds)
    assert equal(pick("inner", wrapped), alone) and all(equal(states[name], others[name]) for name in states)
    assert equal(sent(Wima(inner, 2), SMALL, wrapped), sent(inner, SMALL, alone))


def test_wima_averages_the_shared_part_of_personal_models() -> None:
    algorithm = Wima(Personal(FedAvg(LOCAL), keep="head"), 2)
    server, states = run_rounds(algorithm, SMALL, mixed(), [["c0"], ["c1"]])
    model = deployed(algorithm, SMALL, server, states["c0"], mixed()["c0"])
    assert algorithm.personal and torch.equal(model["head.weight"], states["c0"]["own.head.weight"])
    first, second = (
        run_rounds(Personal(FedAvg(LOCAL), keep="head"), SMALL, mixed(), r)[0] for r in ([["c0"]], [["c0"], ["c1"]])
    )
    key = "features.1.weight"
    assert torch.allclose(model[key], (first[f"model.{key}"] + second[f"model.{key}"]) / 2, atol=1e-6)
    assert not torch.equal(model[key], server[f"inner.model.{key}"])


def test_wima_refuses_what_it_cannot_average() -> None:
    with pytest.raises(HansaError, match="WIMA averages the server's models, and Fed3R keeps none"):
        Wima(Fed3R()).server_init(SMALL)
    with pytest.raises(HansaError, match="divide the window 4"):
        Wima(window=4, block=3)
