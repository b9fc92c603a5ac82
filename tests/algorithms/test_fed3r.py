"""The Fed3R family: exact, one round, and against what it should equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hansa.algorithms.feature_scale import SIGMA, FeatureScale
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fed3r_ft import Fed3RFT
from hansa.algorithms.fed3r_select import Fed3RSelect
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedncm import FedNCM
from hansa.algorithms.wima import Wima
from hansa.contract import Algorithm
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines.serial import Serial
from hansa.errors import HansaError
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP, Linear
from hansa.models.random_features import RandomFeaturesModel
from hansa.orchestrate.star import Star, Sweep
from hansa.payload import Update
from hansa.ridge import GaussianMechanism, RandomFeatures, RidgeStatistics, gcv, median_distance
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.running.round_book import RoundBook
from hansa.task import Model, Task
from hansa.training.local import LocalTraining
from hansa.tree import equal, nbytes
from journals import ListJournal

WIDTH, CLASSES = 6, 4


def samples(n: int = 240, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(99))
    y = torch.arange(n) % CLASSES
    return 1.5 * centres[y] + torch.randn(n, WIDTH, generator=rng), y


def clients(count: int, by_class: bool = False) -> Federation:
    x, y = samples()
    order = torch.argsort(y, stable=True) if by_class else torch.arange(len(y))
    xt, yt = samples(80, 1)
    parts = zip(x[order].chunk(count), y[order].chunk(count), strict=True)
    made = {f"c{i:02d}": (a.numpy(), b.numpy()) for i, (a, b) in enumerate(parts)}
    made["c00"] = (*made["c00"], xt.numpy(), yt.numpy())
    return federation_from_clients(made)


def run(data: Federation, model: Model, *phases: tuple[Algorithm, object, int]) -> PhaseRun:
    task = Task(model, (WIDTH,), CLASSES, len(data.clients), samples=sum(data.sizes().values()))
    made = tuple(Phase(f"p{i}", a, o, r) for i, (a, o, r) in enumerate(phases))  # type: ignore[arg-type]
    done = run_phases(Experiment(task, data, made, Serial()), MemoryStore(), ListJournal())
    assert done is not None
    return done


def deployed(done: PhaseRun) -> dict[str, Tensor]:
    return done.algorithm.model(done.task, done.server)


def accuracy(done: PhaseRun) -> float:
    x, y = samples(400, 2)
    return float((done.algorithm.outputs(done.task, deployed(done), x).argmax(1) == y).double().mean())


@pytest.mark.parametrize("normalize", ["column", "gamma", "none"])
def test_the_head_is_the_ridge_solution(normalize: str) -> None:
    done = run(clients(7), Linear(), (Fed3R(0.01, normalize, products="float64"), Sweep(), 1))
    x, y = samples()
    expected = RidgeStatistics.from_features(x.double(), y, CLASSES).solve(0.01, normalize)  # type: ignore[arg-type]
    head = deployed(done)
    assert torch.allclose(head["head.weight"].double().T, expected, rtol=1e-5)
    assert not head["head.bias"].any()


def test_the_intercept_goes_into_the_bias() -> None:
    done = run(clients(3), Linear(), (Fed3R(0.01, intercept=True), Sweep(), 1))
    x, y = samples()
    expected = RidgeStatistics.from_features(x, y, CLASSES).solve(0.01, intercept=True)
    assert torch.allclose(deployed(done)["head.bias"].double(), expected[-1], rtol=1e-4)
    with pytest.raises(HansaError, match="needs a head with a bias"):
        run(clients(3), Linear(bias=False), (Fed3R(intercept=True), Sweep(), 1))


def test_both_uploads_give_the_same_classifier() -> None:
    packed, full = (
        run(clients(5), Linear(), (Fed3R(upload=upload), Sweep(), 1))  # type: ignore[arg-type]
        for upload in ("packed", "full")
    )
    assert torch.allclose(deployed(packed)["head.weight"], deployed(full)["head.weight"], rtol=1e-5)
    up, _ = Fed3R().client_step(packed.task, {}, {}, packed.federation.clients["c01"].train, torch.Generator())
    sizes = [nbytes(Fed3R(upload=upload).encode(up.sums)) for upload in ("packed", "full")]  # type: ignore[arg-type]
    assert sizes == [4 * (21 + WIDTH * CLASSES) + 12 * CLASSES, 4 * (WIDTH**2 + WIDTH * CLASSES + CLASSES)]


def test_splits_do_not_matter_where_fedavg_moves() -> None:
    """One class a client or the same mix for all: the same classifier; FedAvg's differs."""

    def heads(algorithm: Algorithm, orchestration: object, rounds: int) -> list[Tensor]:
        splits = (clients(4), clients(12), clients(12, by_class=True))
        return [deployed(run(s, Linear(), (algorithm, orchestration, rounds)))["head.weight"] for s in splits]

    ours = heads(Fed3R(products="float64", wire="float64"), Sweep(), 1)
    assert all(torch.allclose(ours[0], other, rtol=1e-6) for other in ours[1:])
    theirs = heads(FedAvg(LocalTraining(lr=0.1, epochs=10)), Star(fraction=1.0), 3)  # one step would be a plain sum
    assert (theirs[1] - theirs[2]).norm() > 0.1 * theirs[1].norm()


def test_random_features_travel_as_a_seed() -> None:
    lifted = RandomFeaturesModel(Linear(), dimension=40, sigma=3.0, seed=5)
    done = run(clients(4), lifted, (Fed3R(0.01, "none"), Sweep(), 1))
    x, y = samples()
    omega = RandomFeatures(WIDTH, 40, 3.0, 5)
    expected = RidgeStatistics.from_features(omega(x), y, CLASSES).solve(0.01, "none")
    assert torch.allclose(deployed(done)["head.weight"].double().T, expected, atol=1e-3)
    assert set(done.task.params()) == {SIGMA, "head.weight", "head.bias"}  # neither ω nor u is a leaf


def test_the_kernel_width_comes_from_the_data() -> None:
    lifted = RandomFeaturesModel(Linear(), dimension=200)
    split = clients(12, by_class=True)
    done = run(split, lifted, (FeatureScale(), Sweep(), 1), (Fed3R(), Sweep(), 1))
    x, _ = samples()
    exact = float((torch.pdist(x.double()) ** 2).mean().sqrt())
    assert float(deployed(done)[SIGMA]) == pytest.approx(exact, rel=1e-5)
    assert exact == pytest.approx(median_distance(x), rel=0.1)
    assert done.setup_bytes > 0  # σ must be told to the clients of the next phase
    assert accuracy(done) > accuracy(run(split, lifted, (Fed3R(), Sweep(), 1)))  # σ = 1000 is far too wide


def test_feature_scale_needs_random_features() -> None:
    with pytest.raises(HansaError, match="random-features"):
        run(clients(2), Linear(), (FeatureScale(), Sweep(), 1))


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_fedncm_is_the_nearest_class_mean(distance: str) -> None:
    done = run(clients(5, by_class=True), Linear(), (FedNCM(distance), Sweep(), 1))  # type: ignore[arg-type]
    x, y = samples()
    means = torch.stack([x[y == c].mean(0) for c in range(CLASSES)])
    z, _ = samples(50, 9)
    got = done.algorithm.outputs(done.task, deployed(done), z).argmax(1)
    near = torch.cdist(z, means).argmin(1)
    direction = (z @ torch.nn.functional.normalize(means).T).argmax(1)
    assert torch.equal(got, near if distance == "euclidean" else direction)


def test_a_class_nobody_holds() -> None:
    """The nearest mean never predicts it; where directions decide, its column is zero and nothing becomes NaN."""
    x, y = samples()
    keep = y != 2
    data = federation_from_clients(
        {"a": (x[keep].numpy(), y[keep].numpy(), x[:9].numpy(), y[:9].numpy())}, class_names=("0", "1", "2", "3")
    )
    near = run(data, Linear(), (FedNCM("euclidean"), Sweep(), 1))
    assert not (near.algorithm.outputs(near.task, deployed(near), x).argmax(1) == 2).any()
    for algorithm in (FedNCM("cosine"), Fed3R(), Fed3R(normalize="gamma")):
        weights = deployed(run(data, Linear(), (algorithm, Sweep(), 1)))["head.weight"]
        assert torch.isfinite(weights).all()
        assert not weights[2].any() and all(weights[c].any() for c in (0, 1, 3))


def test_ft_sums_hold_everyones_latest_statistics() -> None:
    """While features move, the server's sums are those of each client's last visit."""
    algorithm = Fed3RFT(FedAvg(LocalTraining(lr=0.1)), products="float64", wire="float64")
    data = clients(6)
    done = run(data, MLP((8,)), (algorithm, Star(3), 5))
    total = None
    for name in done.names:
        state = done.store.get("0/client", name)
        if state is not None:
            mine = {key: leaf for key, leaf in state.items() if key.startswith("ridge.")}
            total = mine if total is None else {key: total[key] + mine[key] for key in mine}
    assert total is not None
    for key, leaf in total.items():
        assert torch.allclose(done.server[key], leaf, rtol=1e-9, atol=1e-9)
    visited = [n for n, v in zip(done.names, done.ledger.tree()["visits"].tolist(), strict=True) if v]
    samples_seen = sum(len(data.clients[name].train) for name in visited)
    assert float(done.server["ridge.counts"].sum()) == samples_seen  # counts come once


def test_ft_with_still_features_is_fed3r() -> None:
    still = Fed3RFT(FedAvg(LocalTraining(lr=1e-12)), normalize="column", products="float64", wire="float64")
    a = run(clients(6), MLP((8,)), (still, Star(fraction=1.0), 3))
    b = run(clients(6), MLP((8,)), (Fed3R(products="float64", wire="float64"), Sweep(), 1))
    assert torch.allclose(deployed(a)["head.weight"], deployed(b)["head.weight"], rtol=1e-4, atol=1e-6)


def test_ft_under_wima_classifies_the_averaged_features() -> None:
    """The workshop paper's Appendix J: features are the mean over a window, the classifier is the ridge solution."""
    window = Wima(Fed3RFT(FedAvg(LocalTraining(lr=0.1))), window=3)
    done = run(clients(6), MLP((8,)), (window, Star(3), 5))
    key = "features.1.weight"
    mean = torch.stack([done.server[f"window.{row}.{key}"] for row in range(3)]).mean(0)
    got = deployed(done)
    assert torch.allclose(got[key], mean) and not torch.allclose(mean, done.server[f"inner.model.{key}"])
    ridge = RidgeStatistics(*(done.server[f"inner.ridge.{part}"] for part in ("gram", "moment", "counts")))
    assert torch.allclose(got["head.weight"].double().T, ridge.solve(gcv(ridge).lam, "gamma", 0.8), rtol=1e-4)


def test_selection_finds_what_a_grid_on_held_out_data_finds() -> None:
    ridges = (1e-3, 1.0, 1e3, 1e5)
    algorithm = Fed3RSelect(ridges=ridges, held_out=0.4, normalize="none", products="float64", wire="float64")
    done = run(clients(12), Linear(), (algorithm, Sweep(), 1))
    groups: dict[str, list[str]] = {"train": [], "held": []}
    for name in done.names:
        lot = torch.rand((), generator=torch.Generator().manual_seed(RoundBook(done).seed(name, 0))) < 0.4
        groups["held" if lot else "train"].append(name)
    pooled = {
        group: tuple(torch.cat([getattr(done.federation.clients[n].train, part) for n in names]) for part in ("x", "y"))
        for group, names in groups.items()
    }
    (x, y), (xh, yh) = pooled["train"], pooled["held"]
    errors = []
    for ridge in ridges:
        weights = RidgeStatistics.from_features(x.double(), y, CLASSES).solve(ridge, "none")
        errors.append(float((torch.nn.functional.one_hot(yh, CLASSES) - xh.double() @ weights).square().sum()))
    best = ridges[int(np.argmin(errors))]
    whole = RidgeStatistics.from_features(torch.cat([x, xh]).double(), torch.cat([y, yh]), CLASSES)
    assert torch.allclose(deployed(done)["head.weight"].double().T, whole.solve(best, "none"), rtol=1e-5)


def test_selection_among_widths_and_dimensions() -> None:
    lifted = RandomFeaturesModel(Linear(), dimension=120, sigma=4.0)
    algorithm = Fed3RSelect(ridges=(0.1, 1.0), sigmas=(1e-3, 1.0, 1e3), dimensions=(5, 120), held_out=0.4)
    done = run(clients(12), lifted, (algorithm, Sweep(), 1))
    chosen = deployed(done)
    assert float(chosen[SIGMA]) == pytest.approx(4.0)  # the other two are absurd
    assert chosen["head.weight"][:, 5:].any()  # and five random features are too few
    assert accuracy(done) > 0.7


def test_fewer_random_features_are_a_corner_of_more() -> None:
    from hansa.algorithms.fed3r_select import corner

    x, y = samples()
    big = RandomFeatures(WIDTH, 50, 3.0)(x)
    first = RidgeStatistics.from_features(big[:, :20] * (50 / 20) ** 0.5, y, CLASSES)
    cut = corner(RidgeStatistics.from_features(big, y, CLASSES), 20)
    assert torch.allclose(cut.gram, first.gram, rtol=1e-5, atol=1e-5)
    assert torch.allclose(cut.moment, first.moment, rtol=1e-5, atol=1e-5)


def test_privacy_costs_accuracy_only_where_epsilon_is_small() -> None:
    def at(epsilon: float, trust: str) -> float:
        private = Fed3R(ridge=1.0, normalize="none", privacy=GaussianMechanism(epsilon, clip=6.0), trust=trust)  # type: ignore[arg-type]
        draws = (accuracy(run(clients(6), Linear(), (private, Sweep(), 1))) for _ in range(10))
        return float(np.mean(list(draws)))  # of noise from the operating system, which no seed repeats

    plain = accuracy(run(clients(6), Linear(), (Fed3R(ridge=1.0, normalize="none"), Sweep(), 1)))
    assert at(1e4, "central") == pytest.approx(plain, abs=0.02)
    assert at(0.01, "central") < plain - 0.2
    assert at(2.0, "local") < at(2.0, "central")  # every client's noise adds up


def test_one_release_however_often_one_asks() -> None:
    private = Fed3R(privacy=GaussianMechanism(1.0))
    done = run(clients(6), Linear(), (private, Sweep(), 1))
    assert equal(deployed(done), deployed(done))


def test_forgetting_equals_never_having_seen() -> None:
    data = clients(6)
    algorithm = Fed3R()
    done = run(data, Linear(), (algorithm, Sweep(), 1))
    down: dict[str, Tensor] = {}
    gone, _ = algorithm.client_step(done.task, down, {}, data.clients["c03"].train, torch.Generator())
    sent = Update(algorithm.decode(done.task, algorithm.encode(gone.sums)))
    without = algorithm.model(done.task, algorithm.forget(done.task, done.server, sent))
    others = replace(data, clients={name: c for name, c in data.clients.items() if name != "c03"})
    fresh = deployed(run(others, Linear(), (algorithm, Sweep(), 1)))
    assert torch.allclose(without["head.weight"], fresh["head.weight"], rtol=1e-6)
    with pytest.raises(HansaError, match="never added"):
        algorithm.forget(done.task, algorithm.server_init(done.task), sent)


def test_a_closed_form_needs_one_linear_layer_to_replace() -> None:
    from law_models import TwoLayerHead

    with pytest.raises(HansaError, match="one linear layer"):
        run(clients(2), TwoLayerHead(), (Fed3R(), Sweep(), 1))


@pytest.mark.parametrize(("wrong", "says"), [(-1.0, "λ"), (0.0, "unique solution")])
def test_lambda_must_be_positive(wrong: float, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        Fed3R(ridge=wrong)
