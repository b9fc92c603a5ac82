"""What clients carry from phase to phase, and on what they are judged."""

from __future__ import annotations

import numpy as np
import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.local import Local
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines.serial import Serial
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP
from hansa.orchestrate.star import Star, Sweep
from hansa.running.loop import run_phases
from hansa.running.phase_run import Experiment, Phase, PhaseRun
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from journals import ListJournal

CLASSES = 4


def federation(*, test: bool = False) -> Federation:
    rng = np.random.default_rng(0)
    centres = 2 * np.random.default_rng(1).standard_normal((CLASSES, 3))

    def draw(classes: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.resize(classes, count)
        return (centres[y] + rng.standard_normal((count, 3))).astype(np.float32), y

    holds = {"a": (0, 1), "b": (1, 2), "c": (2, 3)}
    made = federation_from_clients({name: (*draw(own, 20), *draw(own, 10)) for name, own in holds.items()})
    x, y = draw((0, 1, 2, 3), 40)
    everyone = ClientData(torch.from_numpy(x), torch.from_numpy(y)) if test else None
    return Federation(made.clients, made.class_names, everyone)


def played(*phases: Phase, data: Federation | None = None) -> tuple[PhaseRun, ListJournal]:
    data, journal = data or federation(), ListJournal()
    task = Task(MLP((6,)), (3,), CLASSES, len(data.clients))
    stage = run_phases(Experiment(task, data, phases, Serial()), MemoryStore(), journal)
    assert stage is not None
    return stage, journal


PERSONAL = Phase("fedper", FedPer(LocalTraining(lr=0.1)), Sweep(), rounds=3)


def test_a_clients_own_leaves_survive_phases_that_do_not_train_them() -> None:
    """Heads of its own, then two phases of common features: clients still deploy, and are judged by, their own."""
    shared = Phase("features", FedAvg(LocalTraining(lr=0.1, train="features")), Star(3), rounds=1)
    before, _ = played(PERSONAL)
    after, _ = played(PERSONAL, shared, Phase("features-2", shared.algorithm, Star(3)))
    heads = [after.deployed(name)["head.weight"] for name in after.names]
    assert all(
        torch.equal(head, before.deployed(name)["head.weight"]) for head, name in zip(heads, before.names, strict=True)
    )
    assert not torch.equal(heads[0], heads[1])
    scores = after.evaluate().scores
    assert scores is not None
    for row, name in enumerate(after.names):
        test = after.federation.clients[name].test
        assert test is not None
        said = after.task.forward(after.deployed(name), test.x).argmax(1)
        assert int(scores.correct[row]) == int((said == test.y).sum())


def test_personalisation_forgets_classes_that_are_not_the_clients_own() -> None:
    """As Figure 12 of the paper shows, on the common test set or, without one, on everybody's together."""
    first = Phase(
        "fedavg", FedAvg(LocalTraining(lr=0.3, epochs=5, batch_size=5)), Star(3), rounds=20, evaluate_every=20
    )
    then = Phase("fp", Local(LocalTraining(lr=0.3, epochs=2, batch_size=5)), Sweep(), rounds=5, outside=True)
    for test in (False, True):
        _, journal = played(first, then, data=federation(test=test))
        start, end = journal.records[20]["before"], journal.records[-1]["metrics"]
        assert end["outside_class_accuracy"] < start["outside_class_accuracy"] - 0.2
        assert end["local_class_accuracy"] > 0.5 and "outside_class_accuracy" not in journal.records[19]["metrics"]
