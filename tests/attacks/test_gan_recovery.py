"""Recovery with a generator: what the attacker receives, that it changes nothing, and how images are compared."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hansa.attacks.eavesdrop import Eavesdrop, overheard
from hansa.attacks.frechet import frechet_distance
from hansa.attacks.gan_recovery import GanRecovery
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.fedseq import FedSeq
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment
from hansa.running.loop import run_phases
from hansa.task import ClientData, Task
from hansa.tree import equal, nest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "laws"))
from battery import ALGORITHMS, ENGINES, ORCHESTRATIONS, experiment, outcome

from hansa.io.store import DiskStore
from journals import ListJournal

# -------------------------------------------------------------------------------------------------- what is overheard


def listening(made: Experiment, folder: Path, client: str = "c3") -> Experiment:
    return replace(made, engine=Eavesdrop(client, str(folder), made.engine))


@pytest.mark.parametrize("engine", [name for name in ENGINES if name not in ("flower", "ray")])
@pytest.mark.parametrize(("name", "orchestration"), [("fedavg", "star"), ("scaffold", "fedseq")])
def test_listening_changes_nothing(name: str, orchestration: str, engine: str, tmp_path: Path) -> None:
    """Bit for bit, on the same path, in every engine."""
    made = experiment(ALGORITHMS[name], orchestration=ORCHESTRATIONS[orchestration], engine=ENGINES[engine])
    (one, told), (other, plain) = outcome(listening(made, tmp_path)), outcome(made)
    assert equal(one.server, other.server) and told.told() == plain.told()
    assert [record["paths"] for record in told.records] == [record["paths"] for record in plain.records]
    assert told.records[0]["engine"] == {**plain.records[0]["engine"], "eavesdropper": "c3"}
    assert list(overheard(tmp_path))


def test_nobody_listens_at_sites(tmp_path: Path) -> None:
    made = experiment(ALGORITHMS["fedavg"], engine=ENGINES["flower"])
    with pytest.raises(HansaError, match="listens at simulated clients, and states of clients at sites are not here"):
        outcome(listening(made, tmp_path))


def received(made: Experiment, client: str) -> list[tuple[int, torch.Tensor]]:
    """What a client is really handed, round by round, with an algorithm that tells."""
    found: list[tuple[int, torch.Tensor]] = []
    mine = made.federation.clients[client].train

    class Told(type(made.phases[0].algorithm)):  # type: ignore[misc]
        def client_step(self, task, down, state, data, rng):
            if len(data) == len(mine) and data.x.equal(mine.x):
                found.append((task.round + 1, down))
            return super().client_step(task, down, state, data, rng)

    told = Told(**{one.name: getattr(made.phases[0].algorithm, one.name) for one in fields(made.phases[0].algorithm)})
    outcome(replace(made, phases=(replace(made.phases[0], algorithm=told),)))
    return found


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
@pytest.mark.parametrize(
    "orchestration", [Star(4), Chains(4), FedSeq(superclients=2, fraction=1.0, passes=2), ORCHESTRATIONS["fedasyncseq"]]
)
def test_what_is_overheard_is_what_the_client_receives(name: str, orchestration: Orchestration, tmp_path: Path) -> None:
    """To the bit with the serial engine, also at the second visit of a round and where clients have states."""
    made = experiment(ALGORITHMS[name], orchestration=orchestration, rounds=4)
    outcome(listening(made, tmp_path))
    heard, real = list(overheard(tmp_path)), received(made, "c3")
    assert [number for number, _ in heard] == [number for number, _ in real] and heard
    assert all(equal(one, other) for (_, one), (_, other) in zip(heard, real, strict=True))


def test_a_resumed_run_notes_the_same_messages(tmp_path: Path) -> None:
    made = experiment(ALGORITHMS["scaffold"], orchestration=FedSeq(superclients=2, fraction=1.0), rounds=4)
    outcome(listening(made, tmp_path / "whole"))
    halves = listening(made, tmp_path / "halves")
    journal, store = ListJournal(), DiskStore(tmp_path / "state.sqlite")
    run_phases(halves, store, journal, stop=lambda: len(journal.records) >= 2)
    assert run_phases(halves, store, journal)
    first, second = (list(overheard(tmp_path / name)) for name in ("whole", "halves"))
    assert [number for number, _ in first] == [number for number, _ in second] == [1, 2, 3, 4]
    assert all(equal(one, other) for (_, one), (_, other) in zip(first, second, strict=True))


def test_a_client_that_is_not_there_cannot_listen(tmp_path: Path) -> None:
    with pytest.raises(HansaError, match=r"There is no client 'c22' to eavesdrop at\. Did you mean 'c2'\?"):
        outcome(listening(experiment(ALGORITHMS["fedavg"]), tmp_path, "c22"))


def test_who_listens_along_a_chain_needs_simulated_clients(tmp_path: Path) -> None:
    made = experiment(ALGORITHMS["fedavg"], orchestration=Chains(7))
    far = listening(replace(made, federation=made.federation.far()), tmp_path, "c2")
    with pytest.raises(HansaError, match="listens at simulated clients, and the samples of client 'c0' are elsewhere"):
        outcome(far)


# -------------------------------------------------------------------------------------------------------- the distance


def test_the_distance_of_gaussians_by_hand() -> None:
    """One feature: (μ − ν)² + (σ − τ)²; independent features add up."""
    one, other = np.array([[0.0], [2.0]]), np.array([[3.0], [7.0]])  # variances 2 and 8
    assert frechet_distance(one, other) == pytest.approx(16 + 2 + 8 - 2 * 4)
    square = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])  # covariance 4/3 of the identity
    stretched = square * [3.0, 0.5] + [1.0, 0.0]
    assert frechet_distance(square, stretched) == pytest.approx(1 + 4 / 3 * ((3 - 1) ** 2 + (0.5 - 1) ** 2))


def test_the_distance_sees_covariances_that_do_not_commute() -> None:
    """Against the trace of the root of the product, from its eigenvalues, which are the same in any order."""
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(50, 4)) @ rng.normal(size=(4, 4)), rng.normal(size=(60, 4)) @ rng.normal(size=(4, 4))
    first, second = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(first @ second).real).sum()
    expected = ((one.mean(0) - other.mean(0)) ** 2).sum() + np.trace(first) + np.trace(second) - 2 * roots
    assert frechet_distance(one, other) == pytest.approx(expected)
    assert frechet_distance(one, other) == pytest.approx(frechet_distance(other, one))
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(one[:2], one[:2]) == pytest.approx(0, abs=1e-9)  # fewer samples than features


@pytest.mark.parametrize("wrong", [np.ones((1, 3)), np.ones(3), np.full((4, 3), np.nan)])
def test_features_that_cannot_be_compared_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(HansaError, match=r"of two samples or more\. Got the shape"):
        frechet_distance(np.ones((4, 3)), wrong)
    with pytest.raises(HansaError, match=r"the same features\. Got 3 and 2"):
        frechet_distance(np.ones((4, 3)), np.ones((4, 2)))


# --------------------------------------------------------------------------------------------------------- the attack


def victims(shape: tuple[int, ...] = (6,)) -> tuple[Task, dict[str, torch.Tensor], ClientData]:
    """A model that takes bright inputs for class 1, what it receives, and an attacker of class 0."""
    task = Task(MLP((8,)), shape, 2, 2, 0)
    params = {key: torch.zeros_like(leaf) for key, leaf in task.params().items()}
    names = list(params)
    assert len(names) == 4
    params[names[0]] += 1.0  # every hidden unit is the sum of the inputs
    params[names[2]][1] += 1.0
    params[names[3]][0] += 12.0  # class 1 from a mean of 1/4 on
    dark = torch.rand(40, *shape, generator=torch.Generator().manual_seed(0)) * 0.2
    dark[0] = 1.0
    return task, nest("model", params), ClientData(dark, torch.zeros(40, dtype=torch.int64))


def test_the_generator_learns_what_the_received_model_takes_for_the_target() -> None:
    task, down, data = victims()
    attack = GanRecovery(target=1, epochs=30)
    state = attack.begin(task, data, seed=0)
    after = attack.visit(task, down, state, data, torch.Generator().manual_seed(0))
    model = {key.partition(".")[2]: leaf for key, leaf in down.items()}
    images = attack.images(task, after, 100, seed=0)
    assert images.shape == (100, 6) and images.min() >= 0 and images.max() <= 1
    assert (task.forward(model, images).argmax(1) == 1).float().mean() > 0.9
    assert not equal(state, after) and equal(state, attack.begin(task, data, seed=0))  # what was there is untouched


def test_a_visit_is_a_function_of_what_it_is_given() -> None:
    task, down, data = victims()
    attack, before = GanRecovery(target=1, epochs=2), {key: leaf.clone() for key, leaf in down.items()}
    state = attack.begin(task, data, seed=3)
    once, again = (attack.visit(task, down, state, data, torch.Generator().manual_seed(1)) for _ in range(2))
    assert equal(once, again) and equal(down, before)
    assert attack.images(task, once, 5, seed=0).equal(attack.images(task, again, 5, seed=0))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"target": -1}, "The 'target' of a recovery must be a class number ≥ 0. Got -1."),
        ({"epochs": 0}, "The 'epochs' of a recovery must be a whole number ≥ 1. Got 0."),
        ({"lr": 0.0}, "The 'lr' of a recovery must be a number > 0. Got 0.0."),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        GanRecovery(**settings)


def test_a_class_that_is_not_there_and_tokens_are_refused() -> None:
    task, _, data = victims()
    with pytest.raises(HansaError, match="There is no class 2 to recover images of"):
        GanRecovery(target=2).begin(task, data, 0)
    with pytest.raises(HansaError, match="A generator makes images, and the inputs are tokens"):
        GanRecovery(target=1).begin(replace(task, integers=True), data, 0)
