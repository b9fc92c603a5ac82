"""Only Local Labels: a client's classifier has the columns of its own classes, and no others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hand_problems import trained

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.local import Local
from hansa.algorithms.oll import OLL
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.star import Star, Sweep
from hansa.running.evaluate import Evaluation, evaluate
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from journals import ListJournal

CLASSES, WIDTH = 6, 4
LOCAL = LocalTraining(lr=0.05, epochs=2, batch_size=5, weight_decay=0.01)


def clients(rng: np.random.Generator, own: tuple[int, ...], test: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Training and test samples around class centres, of these classes only."""
    centres = np.random.default_rng(9).standard_normal((CLASSES, WIDTH))

    def draw(classes: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.resize(classes, count)
        return (centres[y] + 0.8 * rng.standard_normal((count, WIDTH))).astype(np.float32), y

    return (*draw(own, 12), *draw(test, 20))


def federation(*, strange: bool = False) -> Federation:
    """Clients of two or three classes; with `strange` the first is tested on a class it has never seen."""
    rng = np.random.default_rng(0)
    holds = {"a": (0, 1), "b": (1, 2, 3), "c": (3, 4), "d": (4, 5, 0)}
    return federation_from_clients(
        {name: clients(rng, own, (*own, 5) if strange and name == "a" else own) for name, own in holds.items()}
    )


def run(*phases: Phase, data: Federation | None = None, engine: Engine | None = None) -> tuple[PhaseRun, ListJournal]:
    data, journal = data or federation(), ListJournal()
    task = Task(Linear(), (WIDTH,), CLASSES, len(data.clients), samples=sum(data.sizes().values()))
    done = run_phases(Experiment(task, data, phases, engine or Serial()), MemoryStore(), journal)
    assert done is not None
    return done, journal


INIT = Phase("fed3r", Fed3R(), Sweep())
PRUNE = Phase("oll", OLL(), Sweep())
FULL = Phase("fp", Local(LOCAL), Sweep(), rounds=3, temperature=0.1)


def test_predictions_are_those_of_the_pruned_classifier() -> None:
    done, _ = run(INIT, PRUNE)
    weight = done.task.params()["head.weight"]
    for name, holds in {"a": [0, 1], "b": [1, 2, 3], "c": [3, 4], "d": [0, 4, 5]}.items():
        data = done.federation.clients[name]
        assert data.test is not None
        view, model = done.deployed(name)
        found = view.forward(model, data.test.x)
        small = data.test.x @ weight[holds].T
        assert torch.equal(found.argmax(1), torch.tensor(holds)[small.argmax(1)])
        torch.testing.assert_close(found.softmax(1)[:, holds], small.softmax(1))
        others = [label for label in range(CLASSES) if label not in holds]
        assert (found.softmax(1)[:, others] == 0).all()


def test_training_after_oll_is_training_of_the_pruned_classifier() -> None:
    """Against a loop that really has only the client's own columns and its own numbering of labels."""
    data = ClientData(*(torch.from_numpy(part) for part in clients(np.random.default_rng(1), (1, 4), (1,))[:2]))
    task = Task(Linear(), (WIDTH,), CLASSES, temperature=0.5, local_labels=True).view(data, {})
    start = task.params()
    whole = LocalTraining(lr=0.05, epochs=4, batch_size=100, weight_decay=0.01)
    found = trained(whole, task, data, start).params
    weight, bias = (start[key][[1, 4]].clone().requires_grad_() for key in ("head.weight", "head.bias"))
    labels = (data.y == 4).long()
    for _ in range(4):
        loss = F.cross_entropy((data.x @ weight.T + bias) / 0.5, labels)
        slopes = torch.autograd.grad(loss, (weight, bias))
        with torch.no_grad():
            for leaf, slope in zip((weight, bias), slopes, strict=True):
                leaf -= 0.05 * (slope + 0.01 * leaf)
    torch.testing.assert_close(found["head.weight"][[1, 4]], weight.detach())
    torch.testing.assert_close(found["head.bias"][[1, 4]], bias.detach())


def evaluation(*phases: Phase, data: Federation | None = None) -> Evaluation:
    done, _ = run(*phases, data=data)
    with done.experiment.engine.open(done.context) as session:
        return evaluate(done, session)


def test_a_class_seen_in_the_test_only_is_an_error_and_nothing_else() -> None:
    found = evaluation(INIT, PRUNE, data=federation(strange=True))
    known = evaluation(INIT, PRUNE, data=federation())
    assert found.rows is not None and known.rows is not None
    test = federation(strange=True).clients["a"].test
    assert test is not None
    outside = int((test.y == 5).sum())
    assert outside > 0
    assert float(found.rows["accuracy"][0]) <= 1 - outside / int(found.rows["samples"][0])
    assert torch.equal(found.rows["accuracy"][1:], known.rows["accuracy"][1:])
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert bool(found.rows["loss"].isfinite().all())


def test_oll_never_loses_where_clients_are_tested_on_their_own_classes() -> None:
    before, after = evaluation(INIT).rows, evaluation(INIT, PRUNE).rows
    assert before is not None and after is not None
    assert bool((after["accuracy"] >= before["accuracy"]).all())
    assert float(after["accuracy"].sum()) > float(before["accuracy"].sum())


@pytest.mark.parametrize("engine", [Vectorised(), Processes(2)], ids=["vectorised", "processes"])
def test_engines_agree_on_training_after_oll(engine: Engine) -> None:
    expected, found = run(INIT, PRUNE, FULL)[0], run(INIT, PRUNE, FULL, engine=engine)[0]
    for name in expected.names:
        torch.testing.assert_close(found.deployed(name)[1], expected.deployed(name)[1], rtol=1e-4, atol=1e-5)
    moved = expected.deployed("a")[1]["head.weight"] - expected.task.params()["head.weight"]
    assert float(moved[[0, 1]].abs().max()) > 1e-3


def test_oll_lasts() -> None:
    """A phase later clients still know only their own classes, and train nothing of the others but their decay."""
    done, _ = run(INIT, PRUNE, Phase("fp", Local(LocalTraining(lr=0.05)), Sweep(), temperature=0.1))
    assert done.task.local_labels
    start, own = done.task.params()["head.weight"], done.deployed("a")[1]["head.weight"]
    assert torch.equal(own[2:], start[2:]) and not torch.equal(own[:2], start[:2])


def test_oll_sends_the_model_once_and_computes_nothing() -> None:
    _, journal = run(INIT, PRUNE, FULL)
    fed3r, oll, first, *_ = journal.records
    assert fed3r["bytes_up"] > 0 and (oll["bytes_up"], oll["flops"]) == (0, 0)
    assert oll["bytes_down"] > 4 * 4 * CLASSES * WIDTH and first["bytes_down"] == 0
    assert first["before"] == oll["metrics"] and oll["before"] == fed3r["metrics"]


def test_columns_left_out_cost_nothing() -> None:
    data = ClientData(torch.zeros(3, WIDTH), torch.tensor([0, 4, 4]))
    task = Task(Linear(), (WIDTH,), CLASSES, local_labels=True)
    assert task.view(data, {}).head_flops == task.head_flops * 2 / CLASSES
    deep = Task(MLP((8,)), (WIDTH,), CLASSES, local_labels=True)
    assert deep.view(data, {}).features_flops == deep.features_flops


def test_a_client_never_sampled_is_pruned_too() -> None:
    done, _ = run(INIT, PRUNE, Phase("fp", Local(LOCAL), Star(1), rounds=1))
    unvisited = [name for name in done.names if done.store.get("2/client", name) is None]
    assert len(unvisited) == 3
    for name in unvisited:
        view, model = done.deployed(name)
        assert view.forward(model, done.federation.clients[name].train.x).isinf().any()
