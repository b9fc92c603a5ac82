"""What clients carry from phase to phase, and on what they are evaluated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hansa
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.local import Local
from hansa.data.federation import Federation, federation_from_clients
from hansa.data.sources.digits import Digits
from hansa.deploy.model import load_model
from hansa.engines.serial import Serial
from hansa.engines.session import EngineSession, EvaluationRequest
from hansa.errors import HansaError
from hansa.io.store import DiskStore, MemoryStore
from hansa.metrics.suite import is_sum, stack_rows
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.star import Star, Sweep
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan
from hansa.running import evaluate as evaluating
from hansa.running import loop
from hansa.running.evaluate import Awaited, ask, evaluate
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from hansa.tree import Tree, equal
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
    return Federation(made.clients, made.target, everyone)


def completed(*phases: Phase, data: Federation | None = None) -> tuple[PhaseRun, ListJournal]:
    data, journal = data or federation(), ListJournal()
    task = Task(MLP((6,)), (3,), CLASSES, len(data.clients))
    run = run_phases(Experiment(task, data, phases, Serial()), MemoryStore(), journal)
    assert run is not None
    return run, journal


PERSONAL = Phase("fedper", FedPer(LocalTraining(lr=0.1)), Sweep(), rounds=3)


def test_a_clients_own_leaves_survive_phases_that_do_not_train_them() -> None:
    """Heads of its own, then two phases of common features: clients still deploy, and are evaluated by, their own."""
    shared = Phase("features", FedAvg(LocalTraining(lr=0.1, train="features")), Star(3), rounds=1)
    before, _ = completed(PERSONAL)
    after, _ = completed(PERSONAL, shared, Phase("features-2", shared.algorithm, Star(3)))
    heads = [after.deployed(name)[1]["head.weight"] for name in after.names]
    kept = [before.deployed(name)[1]["head.weight"] for name in before.names]
    assert all(torch.equal(head, own) for head, own in zip(heads, kept, strict=True))
    assert not torch.equal(heads[0], heads[1])
    with after.experiment.engine.open(after.context) as session:
        rows = evaluate(after, session).rows
    assert rows is not None and rows["client"].tolist() == [0, 1, 2]
    for row, name in enumerate(after.names):
        (task, model), test = after.deployed(name), after.federation.clients[name].test
        assert test is not None
        right = (task.forward(model, test.x).argmax(1) == test.y).sum()
        assert float(rows["accuracy"][row]) == pytest.approx(int(right) / len(test))


def test_personalisation_forgets_classes_that_are_not_the_clients_own() -> None:
    """As Figure 12 of the paper shows, on the common test set or, without one, on everybody's together."""
    first = Phase(
        "fedavg", FedAvg(LocalTraining(lr=0.3, epochs=5, batch_size=5)), Star(3), rounds=20, evaluate_every=20
    )
    then = Phase("fp", Local(LocalTraining(lr=0.3, epochs=2, batch_size=5)), Sweep(), rounds=5, outside=True)
    for test in (False, True):
        _, journal = completed(first, then, data=federation(test=test))
        start, end = journal.records[20]["before"], journal.records[-1]["metrics"]
        assert end["outside_class_accuracy"] < start["outside_class_accuracy"] - 0.2
        assert end["local_class_accuracy"] > 0.5 and "outside_class_accuracy" not in journal.records[19]["metrics"]


# ---------------------------------------------------------------------------------------- which model a phase ends with

CHOSEN = """
model = {{ name = "mlp", hidden = [8] }}
[data]
source = "digits"
partition = {{ name = "dirichlet", clients = 6, alpha = 0.3 }}
test = {{ kind = "both", validation = 0.3 }}
[[phases]]
algorithm = {{ name = "{algorithm}", local = {{ lr = 3.0 }} }}
orchestration = {{ name = "star", clients = 3 }}
rounds = 7
deploy = "{deploy}"
[[phases]]
algorithm = "oll"
"""
VALIDATED = {"fedavg": "validation_accuracy", "fedper": "client_validation_accuracy_weighted"}


def plan_of(folder: Path, algorithm: str, deploy: str = "best-validation") -> Path:
    (folder / f"{deploy}.toml").write_text(CHOSEN.format(algorithm=algorithm, deploy=deploy))
    return folder / f"{deploy}.toml"


def best_round(run: hansa.Run, metric: str) -> int:
    found = [record["metrics"][metric] for record in run.rounds if record["phase"] == 0]
    assert found.index(max(found)) + 1 < len(found), "the test shows nothing where the last round is the best"
    return found.index(max(found)) + 1


@pytest.mark.parametrize("algorithm", VALIDATED)
def test_a_phase_can_end_with_its_best_round_by_validation_samples(algorithm: str, tmp_path: Path) -> None:
    """Global or personal, the models are those of a run that stopped there, and so are the numbers it is known by."""
    run = hansa.run(plan_of(tmp_path, algorithm), out=tmp_path / "run")
    best = best_round(run, VALIDATED[algorithm])
    records = [record for record in run.rounds if record["phase"] == 0]
    assert [record.get("deployed") for record in records] == [None] * 6 + [best]
    summary = run.summary["phases"][0]
    assert (summary["deployed"], summary["evaluated"]) == (best, best)
    assert summary["metrics"] == records[best - 1]["metrics"] != records[-1]["metrics"]
    assert run.rounds[7]["before"] == summary["metrics"]  # what the next phase starts from
    shorter = hansa.run(
        plan_of(tmp_path, algorithm, "last"), out=tmp_path / "short", changes=[f"phases.0.rounds={best}"]
    )
    assert "deployed" not in shorter.rounds[best - 1] and shorter.summary["phases"][0]["deployed"] is None
    x = torch.from_numpy(Digits().load().test.x[:50])
    for client in ("client-000", "client-001", "client-002", "client-003", "client-004", "client-005"):
        assert torch.equal(load_model(run, client).outputs(x), load_model(shorter, client).outputs(x))


@pytest.mark.parametrize("algorithm", VALIDATED)
@pytest.mark.parametrize("stopped", [1, 3, 6])
def test_a_run_resumed_in_the_middle_chooses_the_same_round(algorithm: str, stopped: int, tmp_path: Path) -> None:
    experiment = assemble(read_plan(plan_of(tmp_path, algorithm))).experiment

    def finished(name: str, stop: int) -> tuple[list[dict[str, Any]], Tree]:
        journal, store, calls = ListJournal(), DiskStore(tmp_path / name), iter(range(1, 100))
        if stop:
            assert run_phases(experiment, store, journal, lambda: next(calls) == stop) is None
            store.close()
            store = DiskStore(tmp_path / name)
        run = run_phases(experiment, store, journal)
        assert run is not None and run.previous is not None
        states = {client: store.get("0/client", client) or {} for client in run.names}
        return journal.told(), run.previous.server | {
            f"{c}.{key}": leaf for c, one in states.items() for key, leaf in one.items()
        }

    whole, resumed = finished("whole", 0), finished("resumed", stopped)
    assert resumed[0] == whole[0] and equal(resumed[1], whole[1])


def test_a_phase_that_shall_choose_by_validation_samples_needs_some(tmp_path: Path) -> None:
    with pytest.raises(HansaError, match=r"there are none: set data\.test\.validation, or leave out 'deploy'"):
        hansa.run(plan_of(tmp_path, "fedavg"), out=tmp_path / "run", changes=["data.test.validation=0.0"])


def test_what_a_phase_starts_from_is_not_evaluated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last evaluation of a phase is the first number of the next; only an untrained model is evaluated for it."""
    calls: list[bool] = []

    def counted(run: PhaseRun, session: EngineSession, *, start: bool = False) -> Awaited:
        calls.append(start)
        return ask(run, session, start=start)

    for module in (loop, evaluating):
        monkeypatch.setattr(module, "ask", counted)
    first = Phase("first", FedAvg(LocalTraining(lr=0.1)), Star(2), rounds=4, evaluate_every=2)
    _, journal = completed(first, Phase("second", first.algorithm, Star(2), rounds=3, evaluate_every=3))
    assert calls == [True, False, False, False]
    assert journal.records[4]["before"] == journal.records[3]["metrics"] != journal.records[0]["before"]
    assert ["before" in record for record in journal.records] == [True, *[False] * 3, True, *[False] * 2]


def test_clients_that_were_never_visited_stand_apart() -> None:
    """Two of three are visited: their mean, that of the third, and of all; once all were, there is nothing apart."""
    run, journal = completed(Phase("few", FedAvg(LocalTraining(lr=0.1)), Star(2), rounds=4))
    rows = run.store.get("0/scores/1")
    assert rows is not None and run.names == ["a", "b", "c"]
    visited = {client for leg in run.planner.round(0) for client in leg.chain}
    inside = [float(value) for name, value in zip(run.names, rows["accuracy"], strict=True) if name in visited]
    outside = [float(value) for name, value in zip(run.names, rows["accuracy"], strict=True) if name not in visited]
    found = journal.records[0]["metrics"]
    assert found["client_accuracy_mean_visited"] == pytest.approx(sum(inside) / 2)
    assert found["client_accuracy_mean_unvisited"] == pytest.approx(outside[0])
    assert found["client_accuracy_mean"] == pytest.approx((sum(inside) + outside[0]) / 3)
    assert bool(run.ledger.visited.all()) and "client_accuracy_mean_visited" not in journal.records[-1]["metrics"]


def test_the_summary_takes_the_last_evaluation_and_the_environment_tells_what_was_done(tmp_path: Path) -> None:
    changes = ["phases.0.deploy=last", "phases.0.evaluate_every=3", "phases.0.algorithm.local.lr=0.1"]
    run = hansa.run(plan_of(tmp_path, "fedavg"), out=tmp_path / "run", changes=changes)
    evaluated = {record["round"]: record["metrics"] for record in run.rounds if record["phase"] == 0}
    assert [number for number, found in evaluated.items() if found] == [3, 6, 7]
    phase = run.summary["phases"][0]
    assert (phase["evaluated"], phase["metrics"], phase["rounds"]) == (7, evaluated[7], 7)
    first, second = run.environment["engine"]["phases"]
    counted = Counter[str]()
    for record in run.rounds[:7]:
        counted.update(record["paths"])
        assert sum(record["paths"].values()) == record["clients"] == 3
    assert first["paths"] == dict(counted) and sum(first["paths"].values()) == 21
    assert first["name"] == run.rounds[0]["engine"]["name"] and "engine" not in run.rounds[1]
    assert second["name"] == run.rounds[7]["engine"]["name"]


def test_a_resumed_run_leaves_the_environment_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = hansa.run(plan_of(tmp_path, "fedavg"), out=tmp_path / "whole")
    stopped = hansa.run(plan_of(tmp_path, "fedavg"), out=tmp_path / "stopped")
    (stopped.path / "summary.json").write_text('{"status": "interrupted"}')
    again = hansa.resume(stopped.path)
    assert again.environment["engine"] == whole.environment["engine"] and len(again.rounds) == len(whole.rounds)


# --------------------------------------------------------------------------------------------------------- evaluations


class Backwards:
    """A session whose rows come in another order, as those of several processes may."""

    def __init__(self, session: EngineSession) -> None:
        self.session = session

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        rows = stack_rows(list(self.session.evaluate(request)))
        yield {key: leaf if is_sum(key) else leaf.flip(0) for key, leaf in rows.items()}


def test_rows_are_in_the_clients_order_and_sums_over_classes_stay_as_they_are() -> None:
    """Also where there are as many clients as classes, so that a sum looks like a column."""
    made = federation()
    four = Federation({**made.clients, "d": made.clients["a"]}, made.target)
    run, _ = completed(Phase("fedper", FedPer(LocalTraining(lr=0.1)), Sweep(), rounds=1), data=four)
    with run.experiment.engine.open(run.context) as session:
        straight, turned = evaluate(run, session).rows, evaluate(run, Backwards(session)).rows  # type: ignore[arg-type]
    assert straight is not None and turned is not None and len(straight["class_hits"]) == len(run.names) == CLASSES
    assert len(set(straight["class_totals"].tolist())) > 1 and turned["client"].tolist() == [0, 1, 2, 3]
    assert equal(turned, straight)


def test_real_targets_have_no_temperature() -> None:
    """A phase after Fed3R has one by default, and would predict ten times too much."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=rng)
    y = x @ torch.tensor([[1.0], [2.0], [3.0]])
    clients = {name: (x.numpy(), y.numpy(), x.numpy(), y.numpy()) for name in "ab"}
    data = federation_from_clients(clients, target="real")
    phase = Phase("train", FedAvg(LocalTraining(lr=0.1, epochs=20)), Star(2), rounds=6, temperature=0.1)
    task = Task(Linear(), (3,), 1, 2, real=True)
    run = run_phases(Experiment(task, data, (phase,), Serial()), MemoryStore(), ListJournal())
    assert run is not None and run.task.temperature == 1.0
    weight = run.algorithm.model(run.task, run.server)["head.weight"]
    assert torch.allclose(weight, torch.tensor([[1.0, 2.0, 3.0]]), atol=0.05)
    assert torch.allclose(run.algorithm.outputs(*run.deployed("a"), x), y, atol=0.1)
