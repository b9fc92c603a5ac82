"""DeepAFL: against the same computation on all samples in one place, with a solver of its own."""

from __future__ import annotations

import pytest
import torch
from test_closed_forms import CLASSES, WIDTH, clients, samples
from torch import Tensor

from hansa.algorithms.deepafl import DeepAFL, sandwiched
from hansa.data.federation import Federation
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.io.store import MemoryStore
from hansa.models.deep_random_features import DeepRandomFeatures
from hansa.models.dense import Linear
from hansa.orchestrate.star import Sweep
from hansa.plan.shorthand import expand
from hansa.ridge.solve import System
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.task import Task
from hansa.tree import Tree
from journals import ListJournal

MODEL = DeepRandomFeatures(dimension=5, layers=2, seed=3)
TASK = Task(MODEL, (WIDTH,), CLASSES, 1)


def fitted(algorithm: DeepAFL, data: Federation, engine: object = None, layers: int = 2) -> Tree:
    task = Task(MODEL, (WIDTH,), CLASSES, len(data.clients), samples=240)
    phases = tuple(Phase(f"layer-{n}", algorithm, Sweep(), 1) for n in range(layers))
    done = run_phases(Experiment(task, data, phases, engine or Serial()), MemoryStore(), ListJournal())  # type: ignore[arg-type]
    assert done is not None
    return algorithm.model(done.task, done.server)


def matrix(name: str, width: int) -> Tensor:
    """P of a layer, as the model itself applies it."""
    projection = TASK.module.get_submodule(f"features.lift.{name}")
    found: Tensor = projection(torch.eye(width, dtype=torch.float64))
    return found


def centralised(lam: float, gamma: float) -> tuple[list[Tensor], Tensor]:
    """Δ of both layers and the last head, all samples at hand; Δ as one linear system of d² unknowns."""
    x, y = samples()
    hot = torch.nn.functional.one_hot(y, CLASSES).double()
    phi, deltas = (x.double() @ matrix("first", WIDTH)).relu(), []
    eye = torch.eye(5, dtype=torch.float64)
    head = torch.linalg.solve(phi.T @ phi + lam * eye, phi.T @ hot)
    for layer in range(2):
        f = (phi @ matrix(f"layers.{layer}.project", 5)).relu()
        big = torch.kron(f.T @ f, head @ head.T) + gamma * torch.eye(25, dtype=torch.float64)
        delta = torch.linalg.solve(big, (f.T @ (hot - phi @ head) @ head.T).flatten()).reshape(5, 5)
        before = (hot - phi @ head).square().sum() + lam * head.square().sum()
        phi = phi + f @ delta
        head = torch.linalg.solve(phi.T @ phi + lam * eye, phi.T @ hot)
        assert (hot - phi @ head).square().sum() + lam * head.square().sum() < before  # a layer is worth something
        deltas.append(delta)
    return deltas, head


@pytest.mark.parametrize("upload", ["packed", "factor"])
@pytest.mark.parametrize(("count", "by_class"), [(1, False), (9, False), (12, True)])
def test_deepafl_is_the_centralised_computation(upload: str, count: int, by_class: bool) -> None:
    deltas, head = centralised(0.3, 0.2)
    algorithm = DeepAFL(0.3, 0.2, products="float64", wire="float64", upload=upload)  # type: ignore[arg-type]
    found = fitted(algorithm, clients(count, by_class))
    for layer, delta in enumerate(deltas):
        ours = found[f"features.lift.layers.{layer}.delta"].double()
        assert torch.allclose(ours, delta, rtol=1e-4, atol=1e-5), layer  # the second one on a float32 copy of the first
    assert torch.allclose(found["head.weight"].double().T, head, rtol=1e-4, atol=1e-5)


def test_the_sandwich_by_the_whole_system() -> None:
    """To rounding, in float64: (FᵀF ⊗ WWᵀ + γI) vec Δ = vec FᵀRWᵀ."""
    rng = torch.Generator().manual_seed(0)
    f, r, head = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((30, 4), (30, 3), (4, 3)))
    system = System(f.T @ f, f.T @ r, float(r.square().sum()), 30.0)
    big = torch.kron(f.T @ f, head @ head.T) + 0.7 * torch.eye(16, dtype=torch.float64)
    expected = torch.linalg.solve(big, (f.T @ r @ head.T).flatten()).reshape(4, 4)
    assert torch.allclose(sandwiched(system, head, 0.7), expected, atol=1e-12)
    assert not sandwiched(system, torch.zeros(4, 3, dtype=torch.float64), "gcv").any()


def test_chosen_settings_are_the_same_on_every_split_and_engine() -> None:
    algorithm = DeepAFL(products="float64", wire="float64")
    first, *others = (
        fitted(algorithm, data, engine)
        for data, engine in ((clients(2), None), (clients(12, by_class=True), None), (clients(2), Vectorised()))
    )
    for other in others:
        assert all(torch.allclose(leaf, other[key], rtol=1e-4, atol=1e-5) for key, leaf in first.items())


def test_layers_that_are_not_fitted_change_nothing() -> None:
    """With no layer fitted the model is a ridge classifier on random features."""
    x, _ = samples()
    plain = (x @ matrix("first", WIDTH).float()).relu()
    assert torch.allclose(TASK.features(TASK.params(), x), plain, atol=1e-6)
    one = fitted(DeepAFL(), clients(3), layers=1)
    assert one["features.lift.layers.0.delta"].any() and not one["features.lift.layers.1.delta"].any()
    alone = Task(DeepRandomFeatures(dimension=5, layers=1, seed=3), (WIDTH,), CLASSES, 1)
    same = {key: leaf for key, leaf in one.items() if key != "features.lift.layers.1.delta"}
    assert torch.allclose(alone.forward(same, x), TASK.forward(one, x), atol=1e-6)


def test_the_scale_of_features_decides_nothing() -> None:
    x, _ = samples()
    near, far = fitted(DeepAFL(), clients(3)), fitted(DeepAFL(), clients(3, scale=1000.0))
    assert torch.equal(TASK.forward(near, x).argmax(1), TASK.forward(far, 1000 * x).argmax(1))


def test_what_cannot_be_fitted_is_told() -> None:
    with pytest.raises(HansaError, match="deep-random-features"):
        DeepAFL().server_init(Task(Linear(), (WIDTH,), CLASSES, 1))
    with pytest.raises(HansaError, match="All 2 layers of the model are fitted"):
        fitted(DeepAFL(), clients(3), layers=3)
    with pytest.raises(HansaError, match=r"'shrinkage' \(γ\) of DeepAFL .* Got -1"):
        DeepAFL(shrinkage=-1.0)
    with pytest.raises(HansaError, match="'layers' of deep random features must be ≥ 1"):
        DeepRandomFeatures(layers=0)


def test_the_notation_makes_the_model() -> None:
    table = {"phases": "DeepAFL-2 + FedAvg", "model": "mlp"}
    expand(table)
    first, second, tuned = table["phases"]
    assert first == {"name": "DeepAFL 1", "algorithm": "deepafl"} and second["name"] == "DeepAFL 2"
    assert tuned["algorithm"]["name"] == "fedavg"  # type: ignore[index]
    assert table["model"] == {"name": "deep-random-features", "layers": 2, "inner": "mlp"}
