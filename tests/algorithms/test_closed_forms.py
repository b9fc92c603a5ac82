"""Closed forms beyond Fed3R's own: against equations by hand, scikit-learn, and what other papers compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from hansa import api
from hansa.algorithms.deepafl import DeepAFL
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fed3r_ft import Fed3RFT
from hansa.algorithms.fed3r_select import Fed3RSelect
from hansa.algorithms.fedcof import FedCOF
from hansa.algorithms.fedncm import FedNCM
from hansa.algorithms.lda import LDA, discriminant
from hansa.algorithms.statistics import from_tree
from hansa.contract import Algorithm
from hansa.data.federation import Federation, federation_from_clients
from hansa.deploy.forget import forget
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError, HansaWarning
from hansa.io.store import MemoryStore
from hansa.models.deep_random_features import DeepRandomFeatures
from hansa.models.dense import Linear
from hansa.models.random_features import RandomFeaturesModel
from hansa.models.random_projection import RandomProjection
from hansa.orchestrate.star import Sweep
from hansa.payload import Update, set_apart
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan
from hansa.ridge import GaussianMechanism, RidgeStatistics, adassp, gcv, project_positive
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.task import Model, Task
from journals import ListJournal

WIDTH, CLASSES = 6, 4


def samples(n: int = 240, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes of a Gaussian each, unequally many; the fourth is nobody's."""
    rng = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(99)
    centres, mix = torch.randn(CLASSES, WIDTH, generator=fixed), torch.randn(WIDTH, WIDTH, generator=fixed)
    y = torch.tensor([0, 0, 0, 1, 1, 2])[torch.arange(n) % 6]
    return centres[y] + 1.0 + torch.randn(n, WIDTH, generator=rng) @ mix, y


def clients(count: int, by_class: bool = False, scale: float = 1.0) -> Federation:
    x, y = samples()
    order = torch.argsort(y, stable=True) if by_class else torch.arange(len(y))
    parts = zip((scale * x[order]).chunk(count), y[order].chunk(count), strict=True)
    return federation_from_clients(
        {f"c{i:02d}": (a.numpy(), b.numpy(), a.numpy(), b.numpy()) for i, (a, b) in enumerate(parts)}
    )


def run(
    algorithm: Algorithm,
    data: Federation,
    engine: Any = None,
    model: Model | None = None,
    phase: Phase | None = None,
) -> tuple[PhaseRun, ListJournal]:
    task = Task(model or Linear(), (WIDTH,), CLASSES, len(data.clients), samples=sum(data.sizes().values()))
    phases = (phase or Phase("one", algorithm, Sweep(), 1),)
    made, journal = Experiment(task, data, phases, engine or Serial()), ListJournal()
    done = run_phases(made, MemoryStore(), journal)
    assert done is not None
    return done, journal


def head(algorithm: Algorithm, data: Federation) -> tuple[Tensor, Tensor]:
    done, _ = run(algorithm, data)
    model = algorithm.model(done.task, done.server)
    return model["head.weight"].double(), model["head.bias"].double()


def whole(scale: float = 1.0) -> RidgeStatistics:
    x, y = samples()
    return RidgeStatistics.from_features(scale * x.double(), y, CLASSES)


# -------------------------------------------------------------------------------------------------------- λ from sums


def test_the_ridge_of_gcv_is_on_record_and_the_same_on_every_split() -> None:
    algorithm, sums = Fed3R(), whole(10.0)
    chosen = gcv(sums).lam
    assert chosen == 100.0  # neither the papers' 0.01 nor what is taken without samples
    for data in (clients(1, scale=10.0), clients(12, scale=10.0), clients(12, by_class=True, scale=10.0)):
        done, _ = run(algorithm, data)
        (shown,) = algorithm.exhibits(done.task, done.server, {})
        assert shown.columns == {"λ": [chosen]}
        weight = algorithm.model(done.task, done.server)["head.weight"].double()
        assert torch.allclose(weight.T, sums.solve(chosen), atol=1e-5)
    assert Fed3R(0.01).exhibits(done.task, done.server, {}) == ()


def test_candidates_follow_the_scale_of_features() -> None:
    """Features a thousand times as long have a λ a million times as large, and the same classifier."""
    short, long = whole(), whole(1000.0)
    assert gcv(long).lam == pytest.approx(1e6 * gcv(short).lam)
    assert torch.allclose(long.solve(gcv(long).lam), short.solve(gcv(short).lam), atol=1e-9)


def test_rounding_below_zero_leaves_candidates_that_can_be_solved() -> None:
    """A of float32 products need not be positive; the least λ tried is beyond what they are below 0."""
    shaken = whole()
    shaken.gram[0, 0] -= shaken.gram[0, 0] + 5.0
    lowest = float(torch.linalg.eigvalsh(shaken.gram)[0])
    assert lowest < 0 and min(gcv(shaken).errors) >= -10 * lowest


def test_a_ridge_that_cannot_be_is_refused() -> None:
    with pytest.raises(HansaError, match=r"number > 0, .* or 'gcv'. Got 0"):
        Fed3R(ridge=0.0)
    with pytest.raises(HansaError, match=r"or 'gcv'\. Got 'loo'"):
        LDA(ridge="loo")  # type: ignore[arg-type]
    with pytest.raises(HansaError, match="for sums with noise"):
        Fed3R(ridge="adassp")
    assert Fed3R(privacy=GaussianMechanism(5.0)).ridge == "adassp"  # cross-validation would fit the noise


def test_adassp_by_hand() -> None:
    """A = 4·I of two features and no noise drawn: κ = σ_A·√(2·log(8/0.05)), and λ_min − κ is room that λ leaves out."""
    sums = RidgeStatistics(4.0 * torch.eye(2).double(), torch.zeros(2, 3).double(), torch.ones(3).double())
    mechanism = GaussianMechanism(8.0)
    kappa = mechanism.deviations[0] * math.sqrt(2 * math.log(160))
    assert 2 < kappa < 4
    assert adassp(sums, mechanism) == pytest.approx(kappa - (4 - kappa))
    assert adassp(sums, mechanism, draws=4) == pytest.approx(2 * kappa)  # where nothing is sure of λ_min
    assert 0 < adassp(sums + sums.copy() + sums.copy(), mechanism) < 1e-9  # noise is small beside A


@pytest.mark.parametrize("trust", ["central", "local"])
def test_the_ridge_of_noised_sums_is_on_record_and_as_large_as_the_noise(trust: Any) -> None:
    mechanism = GaussianMechanism(2.0, noise="simulated")
    algorithm = Fed3R(privacy=mechanism, trust=trust)
    done, _ = run(algorithm, clients(9))
    (shown,) = algorithm.exhibits(done.task, done.server, {})
    sums = from_tree(done.server, "release" if trust == "central" else "ridge")
    lam = adassp(sums, mechanism, 1 if trust == "central" else 9)
    assert shown.columns == {"λ": [lam]} and "AdaSSP" in shown.note
    found = algorithm.model(done.task, done.server)["head.weight"].double()
    assert torch.allclose(found.T, project_positive(sums).solve(lam), atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ factors


@pytest.mark.parametrize("kind", [Fed3R, LDA])
def test_factors_give_the_classifier_of_packed_sums(kind: type[Any]) -> None:
    data = clients(120)  # of two samples each, and six features
    packed, factor = (
        run(kind(upload=upload, products="float64", wire="float64"), data) for upload in ("packed", "factor")
    )
    for key, leaf in packed[0].server.items():
        assert float((factor[0].server[key] - leaf).norm() / leaf.norm()) < 1e-14, key
    assert factor[0].ledger.totals()["bytes_up"] < packed[0].ledger.totals()["bytes_up"]


def test_pooled_factors_are_charged_what_single_ones_are() -> None:
    data = clients(7)
    serial, pooled = (run(Fed3R(upload="factor"), data, engine)[0] for engine in (Serial(), Vectorised()))
    assert serial.ledger.totals()["bytes_up"] == pooled.ledger.totals()["bytes_up"]


def test_factors_are_refused_where_there_is_none() -> None:
    with pytest.raises(HansaError, match="have no factor"):
        Fed3R(upload="factor", privacy=GaussianMechanism(5.0))
    real = Task(Linear(), (WIDTH,), 1, 2, real=True)
    with pytest.raises(HansaError, match="is for classes"):
        Fed3R(upload="factor").server_init(real)


# ---------------------------------------------------------------------------------------------------------------- LDA


def test_lda_is_that_of_scikit_learn() -> None:
    """Covariances with n in the denominator; a class that nobody has is one that scikit-learn is not told of."""
    x, y = samples()
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(x.double().numpy(), y.numpy())
    weights, offsets = head(LDA(ridge=1e-9, products="float64", wire="float64"), clients(9))
    assert np.allclose(weights[:3], theirs.coef_, rtol=1e-5)
    assert np.allclose(offsets[:3], theirs.intercept_, rtol=1e-5)
    assert offsets[3] < -1e11
    assert not x[:5].double().matmul(weights.T).add(offsets).softmax(1)[:, 3].any()  # never predicted


def test_lda_by_hand_with_shrinkage() -> None:
    """Two classes on a line: means 1 and 4, scatter within (1 + 1) + 0 = 2, λ = 1, n = 3: Σ = 1."""
    z, y = torch.tensor([[0.0], [2.0], [4.0]], dtype=torch.float64), torch.tensor([0, 0, 1])
    sums = RidgeStatistics.from_features(z, y, 2)
    expected = [[1.0, 4.0], [-0.5 + math.log(2 / 3), -8.0 + math.log(1 / 3)]]
    assert torch.allclose(discriminant(sums, 1.0, prior=True), torch.tensor(expected, dtype=torch.float64))
    even = [[1.0, 4.0], [-0.5, -8.0]]
    assert torch.allclose(discriminant(sums, 1.0, prior=False), torch.tensor(even, dtype=torch.float64))


def test_lda_does_not_depend_on_the_split() -> None:
    algorithm = LDA(products="float64", wire="float64")
    heads = [head(algorithm, data)[0] for data in (clients(2), clients(12), clients(12, by_class=True))]
    assert all(torch.allclose(heads[0], other, rtol=1e-6) for other in heads[1:])


# ------------------------------------------------------------------------------------------------------------- FedCOF


def cof(parts: Sequence[tuple[Tensor, Tensor]], gamma: float) -> Tensor:
    """W of the paper, class by class and client by client."""
    d = parts[0][0].shape[1]
    gram, b = np.zeros((d, d)), np.zeros((d, CLASSES))
    everything = np.concatenate([x.numpy() for x, _ in parts])
    for c in range(CLASSES):
        means = [(int((y == c).sum()), x[y == c].numpy().mean(0)) for x, y in parts if (y == c).any()]
        n = sum(count for count, _ in means)
        if not means:
            continue
        mu = sum(count * mean for count, mean in means) / n
        covariance = gamma * np.eye(d)
        if len(means) > 1:
            covariance += sum(k * np.outer(m - mu, m - mu) for k, m in means) / (len(means) - 1)
        gram += (n - 1) * covariance
        b[:, c] = n * mu
    middle = everything.mean(0)
    weights = np.linalg.solve(gram + len(everything) * np.outer(middle, middle), b)
    return torch.from_numpy(weights / np.maximum(np.linalg.norm(weights, axis=0), 1e-300))


@pytest.mark.parametrize("by_class", [False, True])
def test_fedcof_is_the_papers_estimate(by_class: bool) -> None:
    data = clients(5, by_class)
    parts = [(one.train.x.double(), one.train.y) for one in data.clients.values()]
    weights, offsets = head(FedCOF(gamma=0.3), data)
    assert torch.allclose(weights.T, cof(parts, 0.3), atol=1e-5) and not offsets.any()


def test_the_shrinkage_of_fedcof_follows_the_features_scale() -> None:
    """γ = tr Σ/d, by the mean over classes weighted by n_c − 1; where no class is on two clients nothing tells it."""
    data = clients(5)
    parts, variance = [(one.train.x.double(), one.train.y) for one in data.clients.values()], 0.0
    for c in range(3):
        own = [(int((y == c).sum()), x[y == c].mean(0)) for x, y in parts]
        n, mu = sum(k for k, _ in own), sum(k * m for k, m in own) / sum(k for k, _ in own)
        variance += (n - 1) * sum(k * float((m - mu).square().mean()) for k, m in own) / 4 / (240 - 3)
    assert torch.allclose(head(FedCOF(), data)[0], head(FedCOF(gamma=variance), data)[0], atol=1e-6)
    assert torch.allclose(head(FedCOF(), clients(5, scale=50.0))[0], head(FedCOF(), data)[0], atol=1e-5)
    alone = head(FedCOF(), clients(1))[0]
    assert torch.equal(alone, head(FedCOF(gamma=1.0), clients(1))[0]) and alone.any()


def test_fedcof_sends_means_alone() -> None:
    (done, _), (ridge, _) = run(FedCOF(), clients(5)), run(Fed3R(), clients(5))
    up, _ = FedCOF().client_step(done.task, {}, {}, done.federation.clients["c00"].train, torch.Generator())
    sent = FedCOF().encode(up.sums)
    assert {key: tuple(leaf.shape) for key, leaf in sent.items()} == {
        "means": (3, WIDTH),
        "counts": (3,),
        "classes": (3,),
    }
    assert done.ledger.totals()["bytes_up"] < ridge.ledger.totals()["bytes_up"]


def test_a_mean_of_one_sample_is_warned_of_or_kept_back() -> None:
    data = clients(60)  # of four samples: most have some class once
    with pytest.warns(HansaWarning, match=r"\d+ of the class means .* are of one sample, .* least = 2"):
        told, _ = run(FedCOF(), data)
    kept, _ = run(FedCOF(least=2), data)
    counts = [leaf for key, leaf in kept.server.items() if key.startswith("counts.")]
    assert len(counts) == 60 and not any((one == 1).any() for one in counts)
    assert any((leaf == 1).any() for key, leaf in told.server.items() if key.startswith("counts."))


@pytest.mark.parametrize("damage", ["negative", "fraction", "more", "long"])
def test_means_that_nobody_has_are_refused(damage: str) -> None:
    done, _ = run(FedCOF(), clients(5))
    up, _ = FedCOF().client_step(done.task, {}, {}, done.federation.clients["c00"].train, torch.Generator())
    means, counts = up.sums["means"], up.sums["counts"]
    ways = {
        "negative": (means, -counts),
        "fraction": (means, counts / 7),
        "more": (means, 2 * counts),
        "long": (1e9 * means, counts),
    }
    assert FedCOF().check(done.task, up) == ""
    bad = Update(dict(zip(("means", "counts"), ways[damage], strict=True)), up.weight)
    assert FedCOF().check(done.task, bad)


# ---------------------------------------------------------------------------------------------------------------- AFL


def test_afl_is_fed3r() -> None:
    """He et al. (2025): clients send solutions W_k and A_k + γI, the server merges two at a time and takes Kγ off.

    Their absolute aggregation law: W = 𝒲_a W_a + 𝒲_b W_b with 𝒲_a = I − C_a⁻¹C_b (I − (C_a + C_b)⁻¹C_b) and
    𝒲_b = I − C_b⁻¹C_a (I − (C_a + C_b)⁻¹C_a).
    """
    gamma, lam, inverse = 0.7, 0.01, torch.linalg.inv
    eye, sites = torch.eye(WIDTH, dtype=torch.float64), clients(8).clients.values()
    parts = [RidgeStatistics.from_features(one.train.x.double(), one.train.y, CLASSES) for one in sites]
    grams = [one.gram + gamma * eye for one in parts]
    heads = [inverse(gram) @ one.moment for gram, one in zip(grams, parts, strict=True)]
    gram, weights = grams[0], heads[0]
    for other, own in zip(grams[1:], heads[1:], strict=True):
        both = inverse(gram + other)
        mine = eye - inverse(gram) @ other @ (eye - both @ other)
        theirs = eye - inverse(other) @ gram @ (eye - both @ gram)
        gram, weights = gram + other, mine @ weights + theirs @ own
    restored = inverse(gram - (len(parts) * gamma - lam) * eye) @ gram @ weights
    found, _ = head(Fed3R(ridge=lam, normalize="none", products="float64", wire="float64"), clients(8))
    assert torch.allclose(found.T, restored, atol=1e-6)
    assert torch.allclose(whole().solve(lam, "none"), restored, atol=1e-10)


# -------------------------------------------------------------------------------------------------- random projections


def test_a_projection_travels_as_a_seed() -> None:
    done, _ = run(Fed3R(0.01, "none", products="float64"), clients(3), model=RandomProjection(dimension=4, seed=5))
    assert set(done.task.params()) == {"head.weight", "head.bias"}  # the projection is no leaf
    matrix = done.task.features(done.task.params(), torch.eye(WIDTH))
    x, y = samples()
    expected = RidgeStatistics.from_features((x @ matrix).double(), y, CLASSES).solve(0.01, "none")
    found = done.algorithm.model(done.task, done.server)["head.weight"].double()
    assert torch.allclose(found.T, expected, rtol=1e-4)


def test_projections_keep_lengths_and_follow_their_seed() -> None:
    def rows(seed: int) -> Tensor:
        task = Task(RandomProjection(dimension=4000, seed=seed), (WIDTH,), CLASSES, 1)
        return task.features(task.params(), torch.eye(WIDTH))

    products = rows(0) @ rows(0).T
    assert torch.allclose(products, torch.eye(WIDTH), atol=0.1)
    assert torch.equal(rows(0), rows(0)) and (rows(0) - rows(1)).abs().max() > 0.01


# ------------------------------------------------------------------------------------------- streaming and forgetting

CLOSED: dict[str, tuple[Algorithm, Model]] = {
    "fed3r": (Fed3R(products="float64", wire="float64"), Linear()),
    "factor": (Fed3R(wire="float64", upload="factor"), Linear()),
    "fed3r-rf": (Fed3R(products="float64", wire="float64"), RandomFeaturesModel(dimension=8, sigma=5.0)),
    "random-projection": (LDA(products="float64", wire="float64"), RandomProjection(dimension=4)),
    "lda": (LDA(products="float64", wire="float64"), Linear()),
    "fedncm": (FedNCM(), Linear()),
    "fedcof": (FedCOF(), Linear()),
    "deepafl": (DeepAFL(products="float64", wire="float64"), DeepRandomFeatures(dimension=5, layers=1)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_clients_may_come_late_and_leave(name: str) -> None:
    """Two clients a round, in four rounds, and one that leaves again, are those that are left, in one round."""
    algorithm, model = CLOSED[name]
    data = clients(8)
    streamed = run(algorithm, data, model=model, phase=Phase("one", algorithm, Sweep(2), 4))[0]
    gone = data.clients["c05"].train
    up, _ = algorithm.client_step(streamed.task, {}, {}, gone, torch.Generator())
    sent = algorithm.decode(streamed.task, algorithm.encode(up.sums))
    left = algorithm.forget(streamed.task, streamed.server, set_apart(algorithm.uplink, "c05", replace(up, sums=sent)))
    others = replace(data, clients={name: one for name, one in data.clients.items() if name != "c05"})
    expected = run(algorithm, others, model=model)[0]
    found, wanted = (algorithm.model(expected.task, server) for server in (left, expected.server))
    assert all(torch.allclose(found[key], leaf, rtol=1e-3, atol=1e-4) for key, leaf in wanted.items())
    before = algorithm.model(streamed.task, streamed.server)["head.weight"]
    assert not torch.allclose(before, wanted["head.weight"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("algorithm", [Fed3RSelect(), Fed3RFT()], ids=["fed3r-select", "fed3r-ft"])
def test_who_cannot_forget_says_so(algorithm: Algorithm) -> None:
    with pytest.raises(HansaError, match="cannot be taken out exactly; run again without it"):
        algorithm.forget(Task(Linear(), (WIDTH,), CLASSES, 3), {}, Update({}))


PLAN = """
[data]
source = "digits"
partition = {{ name = "dirichlet", clients = 6, alpha = 0.5 }}
[model]
{model}
[[phases]]
algorithm = {algorithm}
remember = "uploads"
"""


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        ('{ name = "fed3r", upload = "factor" }', 'name = "random-projection"\ndimension = 30'),
        ('"lda"', 'name = "linear"'),
        ('{ name = "fedcof", least = 2 }', 'name = "linear"'),
        ('"deepafl"', 'name = "deep-random-features"\ndimension = 30\nlayers = 1'),
    ],
)
def test_a_client_can_be_forgotten(algorithm: str, model: str, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.format(algorithm=algorithm, model=model))
    done = api.run(tmp_path / "plan.toml", out=tmp_path / "run").path
    before = load_file(done / "model.safetensors")["head.weight"]
    record = forget(done, "client-003")
    assert record["exact"] is True and record["difference_of_sums"] < 1e-9
    plan = read_plan(tmp_path / "plan.toml")
    federation = assemble(plan).experiment.federation
    rest = {name: held for name, held in federation.clients.items() if name != "client-003"}
    without = api.run(plan, out=tmp_path / "without", data=replace(federation, clients=rest)).path
    after, expected = (load_file(path / "model.safetensors")["head.weight"] for path in (done, without))
    assert float((after - expected).norm() / expected.norm()) < 1e-5
    assert float((after - before).norm() / before.norm()) > 1e-4


def test_earlier_layers_still_depend_on_a_client_that_left(tmp_path: Path) -> None:
    """The sums of the last layer are without it, and the record says what is not."""
    table = PLAN.format(algorithm='"deepafl"', model='name = "deep-random-features"\ndimension = 20\nlayers = 2')
    (tmp_path / "plan.toml").write_text(table + '[[phases]]\nalgorithm = "deepafl"\nremember = "uploads"\n')
    done = api.run(tmp_path / "plan.toml", out=tmp_path / "run").path
    record = forget(done, "client-003")
    assert record["exact"] is False and record["difference_of_sums"] < 1e-9
    assert any("layers.0.delta" in one["what"] and one["learnt"] for one in record["remains"])
