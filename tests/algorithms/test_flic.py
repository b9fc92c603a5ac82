"""FLIC and its kin: equations by hand, what travels, and what holds on small problems."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hand_problems import rng
from torch import Tensor

from hansa import DataPlan, PhasePlan, Plan, federation_from_clients
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.algorithms.fedhenn import FedHeNN
from hansa.algorithms.flic import Alignment, Flic
from hansa.algorithms.flic_class import FlicClass
from hansa.algorithms.flic_hl import FlicHL
from hansa.algorithms.flic_s3 import FlicS3
from hansa.algorithms.hetfedrep import HetFedRep
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.local import Local
from hansa.algorithms.personal import Personal
from hansa.algorithms.private import Private
from hansa.algorithms.robust import Robust
from hansa.contract import Algorithm
from hansa.data.partitions.natural import Natural
from hansa.data.sources.digits import Digits
from hansa.errors import HansaError
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP, Linear
from hansa.models.latent import Latent
from hansa.models.recurrent import CharLSTM
from hansa.orchestrate.star import Sweep
from hansa.payload import Update
from hansa.plan.assemble import assemble
from hansa.running.loop import run_phases
from hansa.task import ClientData, Task
from hansa.training.alignment import DRAWN, MEAN, NOISE, ROOT, AnchorDistance, Anchored, gram
from hansa.training.distances import barycentre, cka, w2, w2_by_class
from hansa.training.local import LocalTraining
from hansa.tree import Tree, equal, pick
from journals import ListJournal

LOCAL = LocalTraining(lr=0.05, epochs=2, batch_size=100)
PLAIN: dict[str, Any] = {"pretrain_epochs": 0, "calibration": 0.0}
TASK = Task(Latent(MLP((5,)), 3, hidden=4), (4,), 3, population=4)
REAL = Task(Latent(MLP((5,)), 3), (4,), 2, real=True)


def clients(width: int = 4, count: int = 3) -> list[ClientData]:
    """Clients of which the first lacks class 2 and the last has a single sample of class 0."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(8) % 3
    made = [ClientData(torch.randn(8, width, generator=draws), labels.clone()) for _ in range(count)]
    made[0].y[made[0].y == 2] = 1
    made[-1].y[made[-1].y == 0], made[-1].y[0] = 1, 0
    return made


def visited(algorithm: Algorithm, task: Task, data: ClientData, down: Tree, seed: int = 0) -> tuple[Update, Tree]:
    view = task.view(data, {})
    return algorithm.client_step(view, down, algorithm.client_init(view, data), data, rng(seed))


def begun(algorithm: Algorithm, task: Task) -> Tree:
    return algorithm.broadcast(task, algorithm.server_init(task), rng(0))


def features(task: Task, params: Tree, x: Tensor) -> Tensor:
    return task.features(params, x).detach()


# ---------------------------------------------------------------------------------------------------------- equations


def test_the_objective_is_equation_3() -> None:
    """`f_i + λ₁·Σ_c W2² + λ₂·Σ_c mean_j ℓ(c, g(Z_c^j))`, term by term; the client holds classes 0 and 1 of three."""
    data, params, mean = clients()[0], TASK.params(), torch.randn(3, 3, generator=rng(3))
    given = Alignment(draws=4).given(TASK, data, mean, rng(4))
    got = Anchored(0.2, 0.3).loss(TASK, params, {MEAN: mean, **given}, data.x, data.y, None)
    z = features(TASK, params, data.x)

    def head(z: Tensor) -> Tensor:
        hidden = F.leaky_relu(z @ params["head.0.weight"].T + params["head.0.bias"])
        return hidden @ params["head.2.weight"].T + params["head.2.bias"]

    noise = given[NOISE].reshape(3, 4, 3)
    third = sum(F.cross_entropy(head(mean[c] + noise[c]), torch.full((4,), c)) for c in (0, 1))
    expected = F.cross_entropy(head(z), data.y) + 0.2 * w2_by_class(z, data.y, mean) + 0.3 * third
    assert torch.allclose(got, expected, rtol=1e-5)


def test_the_anchors_take_one_step_and_are_averaged_over_who_holds_the_class() -> None:
    """With λ₂ = 0 a client's step is `v_c − η·λ₁·2·(v_c − m̂_c)`, and the server's the barycentre of the clients'."""
    algorithm = FlicHL(LOCAL, anchors=Alignment(strength=0.5, lr=0.1, **PLAIN), weights="uniform")
    down, made = begun(algorithm, TASK), clients()
    ups, moved = [], dict[int, list[Tensor]]()
    for data in made:
        up, state = visited(algorithm, TASK, data, down)
        z = features(TASK, TASK.params() | pick("own", state), data.x)
        for c in data.y.unique().tolist():
            v = down[f"anchors.{c}.mean"]
            step = v - 0.1 * 0.5 * 2 * (v - z[data.y == c].mean(0))
            assert torch.allclose(v + up.sums[f"anchors.{c}.mean"] / up.weight, step, atol=1e-5)
            moved.setdefault(c, []).append(step)
        ups.append(up)
    assert "anchors.2.mean" not in ups[0].sums and len(moved[2]) == 2 and len(moved[0]) == 3
    server = algorithm.server_step(TASK, algorithm.server_init(TASK), sum(ups[1:], start=ups[0]))
    for c, each in moved.items():
        roots, weights = torch.eye(3).expand(len(each), 3, 3), torch.ones(len(each))
        assert torch.allclose(server[f"anchors.{c}.mean"], barycentre(torch.stack(each), roots, weights)[0], atol=1e-5)
    alone = algorithm.server_step(TASK, algorithm.server_init(TASK), ups[0])  # nobody in this round holds class 2
    assert torch.equal(alone["anchors.2.mean"], down["anchors.2.mean"])
    assert not torch.equal(alone["anchors.0.mean"], down["anchors.0.mean"])


def test_a_learnt_covariance_steps_along_the_slope_of_the_bures_distance() -> None:
    algorithm = FlicClass(LOCAL, Alignment(covariance="learnt", strength=0.5, lr=0.1, **PLAIN))
    down, data = begun(algorithm, TASK), ClientData(clients()[1].x, torch.zeros(8, dtype=torch.long))
    up, state = visited(algorithm, TASK, data, down)
    z = features(TASK, TASK.params() | pick("own", state), data.x).double()
    own, root, change = torch.cov(z.T), torch.eye(3, dtype=torch.float64), 1e-5

    def bures(root: Tensor) -> float:
        values = torch.linalg.eigvals(root @ root.T @ own).real.clamp(min=0)
        return float(torch.trace(root @ root.T + own) - 2 * values.sqrt().sum())

    step = up.sums["anchors.0.root"] / up.weight
    for i in range(3):
        for j in range(i + 1):
            ahead, back = root.clone(), root.clone()
            ahead[i, j], back[i, j] = ahead[i, j] + change, back[i, j] - change
            slope = (bures(ahead) - bures(back)) / (2 * change)
            assert float(step[i, j]) == pytest.approx(-0.1 * 0.5 * slope, rel=1e-5, abs=1e-6)
    assert step.tril().abs().max() > 1e-3 and not step.triu(1).any()  # it stays a Cholesky factor


def test_learnt_covariances_are_seen_shrunk_to_the_mean_of_all_classes() -> None:
    """Clients see `(1 − s)·L_c + s·mean_c L_c`; the server keeps L_c, and adds the clients' steps to it."""
    plain, shrunk = (Alignment(covariance="learnt", shrinkage=shrinkage) for shrinkage in (0.0, 0.25))
    roots = {f"{c}.root": torch.randn(3, 3, generator=rng(c)).tril() for c in range(3)}
    sent = plain.server_init(TASK) | roots
    mean = sum(roots.values(), start=torch.zeros(3, 3)) / 3
    for c, seen in enumerate(shrunk.stacked(sent)[ROOT]):
        assert torch.allclose(seen, 0.75 * roots[f"{c}.root"] + 0.25 * mean, atol=1e-6)
    assert torch.equal(plain.stacked(sent)[ROOT][1], roots["1.root"])
    with pytest.raises(HansaError, match='set covariance = "learnt"'):
        Alignment(shrinkage=0.5)
    with pytest.raises(HansaError, match="between 0 and 1"):
        Alignment(covariance="learnt", shrinkage=1.5)


@pytest.mark.parametrize("inner", [HetFedRep(LOCAL), FedAvg(LOCAL)], ids=["own features", "shared features"])
def test_anchors_may_start_at_the_means_of_classes(inner: Algorithm) -> None:
    """After a first round as the wrapped algorithm has it, `v_c` is the clients' mean of class c; then it is FLIC."""
    algorithm, plain = (
        Flic(inner, Alignment(start="means", pretrain_epochs=1)),
        Flic(inner, Alignment(pretrain_epochs=1)),
    )
    down, made = begun(algorithm, TASK), clients()
    visits = [visited(algorithm, TASK, data, down) for data in made]
    features_of = []
    for data, (up, state) in zip(made, visits, strict=True):
        alone, kept = visited(inner, TASK, data, begun(inner, TASK))
        assert equal({key: leaf for key, leaf in up.sums.items() if not key.startswith("anchors.")}, alone.sums)
        assert equal(state, kept)  # not yet pre-trained
        features_of.append(features(TASK, TASK.params() | pick("own", kept), data.x))
    ups = [up for up, _ in visits]
    server = algorithm.server_step(TASK, algorithm.server_init(TASK), sum(ups[1:], start=ups[0]))
    assert "anchors.2.mean" not in ups[0].sums
    for c in range(3):
        means = [
            (z[data.y == c].mean(0), len(data))
            for z, data in zip(features_of, made, strict=True)
            if (data.y == c).any()
        ]
        expected = sum(mean * weight for mean, weight in means) / sum(weight for _, weight in means)
        assert torch.allclose(server[f"anchors.{c}.mean"], expected, atol=1e-5)
    later, down = replace(TASK, round=1), algorithm.broadcast(TASK, server, rng(0))
    assert equal(visited(algorithm, later, made[1], down)[0].sums, visited(plain, later, made[1], down)[0].sums)
    with pytest.raises(HansaError, match="start from 'means' of classes"):
        algorithm.anchors.server_init(REAL)


NAMES = ["hetfedrep", "local", "personal"]


@pytest.mark.parametrize("inner", [HetFedRep(LOCAL), Local(LOCAL), Personal(FedAvg(LOCAL), "features")], ids=NAMES)
def test_without_its_terms_flic_is_what_it_wraps(inner: Algorithm) -> None:
    neutral = Flic(inner, Alignment(strength=0.0, **PLAIN))
    data = clients()[1]
    up, state = visited(neutral, TASK, data, begun(neutral, TASK))
    plain, kept = visited(inner, TASK, data, begun(inner, TASK))
    assert equal({key: leaf for key, leaf in up.sums.items() if not key.startswith("anchors.")}, plain.sums)
    assert equal(pick("own", state), pick("own", kept))


def test_features_come_closer_to_the_anchors() -> None:
    """Pre-training attracts samples: the mean W2² falls, also with one sample of a class; other distances fall too."""
    data = clients()[-1]
    for distance in ("w2", "w2-sampled", "mmd"):
        settings = Alignment(distance=distance, pretrain_epochs=60, spread=2.0, strength=0.0, calibration=0.0)
        algorithm = FlicClass(replace(LOCAL, optimiser="adam", lr=0.02, epochs=1), settings)
        down = begun(algorithm, TASK)
        _, state = visited(algorithm, TASK, data, down)
        anchors = settings.stacked(pick("anchors", down))

        def far(params: Tree, given: Tree = anchors) -> float:
            return float(AnchorDistance().loss(TASK, params, given, data.x, data.y, None))

        assert far(TASK.params() | pick("own", state)) < 0.5 * far(TASK.params()), distance


def test_anchors_of_real_targets_lie_on_a_line() -> None:
    data, params = ClientData(torch.randn(6, 4, generator=rng(1)), torch.rand(6, 2, generator=rng(2))), REAL.params()
    ends = torch.randn(4, 3, generator=rng(3))
    got = AnchorDistance().loss(REAL, params, {MEAN: ends}, data.x, data.y, None)
    z, expected = features(REAL, params, data.x), 0.0
    for i in range(6):
        line = sum(data.y[i, t] * ends[t] + (1 - data.y[i, t]) * ends[2 + t] for t in range(2))
        expected += float((z[i] - line).square().sum()) / 6
    assert float(got) == pytest.approx(expected, rel=1e-5)
    algorithm = FlicClass(LOCAL, Alignment(pretrain_epochs=1))
    up, _ = visited(algorithm, REAL, data, begun(algorithm, REAL))
    assert set(up.sums) == {"anchors.ends"} and up.sums["anchors.ends"].any()


def test_classes_of_a_meta_class_share_an_anchor() -> None:
    algorithm = FlicClass(LOCAL, Alignment(meta_classes=(0, 1, 1), pretrain_epochs=1, lr=0.1))
    down = begun(algorithm, TASK)
    assert sorted(down) == ["anchors.0.mean", "anchors.1.mean"]
    data = clients()[1]
    params, mean = TASK.params(), torch.stack([down["anchors.0.mean"], down["anchors.1.mean"]])
    given = algorithm.anchors.given(TASK, data, mean, rng(0))
    found = AnchorDistance().loss(TASK, params, {MEAN: mean, **given}, data.x, data.y, None)
    expected = w2_by_class(features(TASK, params, data.x), data.y.clamp(max=1), mean)
    assert torch.allclose(found, expected) and set(given[DRAWN][10:].tolist()) == {1, 2}
    only = ClientData(data.x[data.y == 2], data.y[data.y == 2])
    assert set(visited(algorithm, TASK, only, down)[0].sums) == {"anchors.1.mean"}


# ---------------------------------------------------------------------------------------------------- what it is around


def test_what_travels_is_the_shared_layer_and_the_anchors() -> None:
    algorithm = FlicHL(LOCAL, anchors=Alignment(pretrain_epochs=1))
    down, data = begun(algorithm, TASK), clients(width=7)[1]  # wider than the server's own view
    up, state = visited(algorithm, TASK, data, down)
    shared = {"model.head.0.weight", "model.head.0.bias"}
    assert set(up.sums) == shared | {f"anchors.{c}.mean" for c in range(3)}
    assert {key for key in down if not key.startswith("anchors.")} == shared
    own = pick("own", state)
    assert own["features.0.1.weight"].shape == (5, 7) and "head.2.weight" in own and "head.0.weight" not in own
    again, after = algorithm.client_step(TASK.view(data, {}), down, state, data, rng(1))
    assert again.flops < up.flops and set(after) == set(state)  # features are pre-trained once


def test_the_shared_layer_may_wait() -> None:
    waiting, data = HetFedRep(LOCAL, shared_from=2), clients()[1]
    down = begun(waiting, TASK)
    early, kept = visited(waiting, replace(TASK, round=1), data, down)
    late, same = visited(waiting, replace(TASK, round=2), data, down)
    assert set(early.sums) == set(late.sums) and equal(kept, same)
    assert not any(leaf.any() for leaf in early.sums.values()) and all(leaf.any() for leaf in late.sums.values())


@pytest.mark.parametrize(
    "inner",
    [L2GD(LocalTraining(lr=0.05), keep="features"), Personal(FedAvgFT(LOCAL, tune=LOCAL), "features")],
    ids=["l2gd", "fedavg-ft"],
)
def test_table_2_with_features_of_clients_own(inner: Algorithm) -> None:
    """θ is shared by other algorithms too; features of any width stay with the client, and are deployed."""
    algorithm = Flic(inner, Alignment(pretrain_epochs=1))
    down = begun(algorithm, TASK)
    for width in (4, 6):
        data = clients(width)[1]
        up, state = visited(algorithm, TASK, data, down)
        names = {key for key in up.sums if key.startswith("model.")}
        assert names == {f"model.{key}" for key in TASK.params() if key.startswith("head.")}
        view = TASK.view(data, {})
        deployed = algorithm.deploy(view, algorithm.serve(TASK, algorithm.server_init(TASK)), state, data, rng(0))
        start = view.params()
        assert deployed.keys() == start.keys() and deployed["features.0.1.weight"].shape == (5, width)
        assert not torch.equal(deployed["features.0.1.weight"], start["features.0.1.weight"])


def test_fedhenn_maximises_the_similarity() -> None:
    """The stronger the pull, the more alike the Gram of the common samples becomes to the mean one."""
    data, found = clients()[1], []
    for strength in (0.0, 5.0):
        algorithm = FedHeNN(replace(LOCAL, epochs=30), strength, samples=12)
        goal = torch.randn(12, 2, generator=rng(5))
        up, state = visited(algorithm, TASK, data, {"gram": goal @ goal.T})
        own = TASK.params() | pick("own", state)
        assert torch.allclose(up.sums["gram"] / up.weight, gram(TASK, own, algorithm._common(TASK)), rtol=1e-4)
        found.append(float(cka(up.sums["gram"], goal @ goal.T)))
    assert found[1] > found[0] + 0.1


def test_narrow_clients_have_the_common_samples_of_wide_ones_pruned() -> None:
    wide, narrow = (FedHeNN(samples=6)._common(replace(TASK, input_shape=(width,))) for width in (40, 7))
    assert torch.equal(wide[:, :7], narrow) and 0.8 < float(wide.std()) < 1.2


# -------------------------------------------------------------------------------------------------------- Algorithm S3


def exactly_white(samples: int, width: int, draws: torch.Generator) -> Tensor:
    """Samples whose mean is 0 and whose covariance is I, exactly."""
    z = torch.randn(samples, width, generator=draws, dtype=torch.float64)
    z -= z.mean(0)
    return z @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(z.T))).T


def linear_client(mix: Tensor, beta: Tensor, width: int, draws: torch.Generator) -> ClientData:
    """Gaussian inputs of any width, of which the directions of most variance say everything about the target."""
    z, k = exactly_white(40, width, draws), len(mix)
    axes = torch.linalg.qr(torch.randn(width, width, generator=draws, dtype=torch.float64))[0]
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    scales = torch.linspace(3.0, 1.0, width, dtype=torch.float64)
    x = z * scales @ axes.T + torch.randn(width, generator=draws, dtype=torch.float64)
    return ClientData(x, (z[:, :k] @ mix @ beta)[:, None])


def apart(left: Tensor, right: Tensor) -> float:
    """The principal angle distance of two spaces with orthonormal bases."""
    rest = torch.eye(len(left), dtype=torch.float64) - left @ left.T
    return float(torch.linalg.matrix_norm(rest @ right, 2))


def test_s3_converges_geometrically() -> None:
    """Theorem 1 and Figure 2: `dist(Aᵗ, A*)` falls by `√(1−κ)` in every round, and in the end by `1 − η·σ²_min`."""
    draws, k, d, eta = torch.Generator().manual_seed(1), 6, 2, 0.25
    mix = torch.linalg.qr(torch.randn(k, d, generator=draws, dtype=torch.float64))[0]
    betas = F.normalize(torch.randn(12, d, generator=draws, dtype=torch.float64)) * d**0.5  # ‖β‖ = √d
    made = [linear_client(mix, beta, 6 + i % 4, draws) for i, beta in enumerate(betas)]
    algorithm, task = FlicS3(k, d, eta), Task(Linear(), (6,), 1, real=True)
    server, distance = algorithm.server_init(task), []
    for _ in range(90):
        down = algorithm.broadcast(task, server, rng(0))
        ups = [algorithm.client_step(task.view(data, {}), down, {}, data, rng(0))[0] for data in made]
        server = algorithm.server_step(task, server, sum(ups[1:], start=ups[0]))
        distance.append(apart(mix, server["map"]))
    assert torch.allclose(server["map"].T @ server["map"], torch.eye(d, dtype=torch.float64))
    least = float(torch.linalg.eigvalsh(betas.T @ betas / len(betas))[0])
    kappa = eta * (1 - distance[0] ** 2) * least / 2
    assert 0.02 < distance[0] < 0.9 and distance[-1] < 1e-5 * distance[0]
    assert all(after <= (1 - kappa) ** 0.5 * before for before, after in pairwise(distance))
    assert distance[-1] / distance[-2] == pytest.approx(1 - eta * least * 39 / 40, rel=1e-3)  # covariances have n − 1
    view = task.view(made[3], {})
    served = algorithm.serve(task, server)
    deployed = algorithm.deploy(view, served, {}, made[3], rng(0))
    assert torch.allclose(view.forward(deployed, made[3].x), made[3].y.float(), atol=1e-3)


# ------------------------------------------------------------------------------------------------------------ bad input


def test_bad_settings_are_told() -> None:
    with pytest.raises(HansaError, match="'meta_classes' of FLIC must be numbers from 0 on without a gap"):
        Alignment(meta_classes=(0, 2))
    with pytest.raises(HansaError, match=r"must have a number for each of 3 classes. Got 2"):
        FlicClass(anchors=Alignment(meta_classes=(0, 1))).server_init(TASK)
    with pytest.raises(HansaError, match=r"'spread' of FLIC's anchors must be a number ≥ 0. Got -1"):
        Alignment(spread=-1.0)
    with pytest.raises(HansaError, match="anchors of real targets have covariance 'identity'"):
        FlicClass(anchors=Alignment(covariance="learnt")).server_init(REAL)
    with pytest.raises(
        HansaError, match=r"no layer that matches shared = 'head\.0\.\*': use the model 'latent' with 'hidden'"
    ):
        FlicHL().server_init(Task(Latent(), (4,), 3))  # a head without a layer to share
    with pytest.raises(HansaError, match="FLIC-S3 is linear regression: use the model 'linear'"):
        FlicS3().server_init(TASK)
    with pytest.raises(HansaError, match=r"needs inputs of at least 'width' = 5 columns. Got 4"):
        visited(FlicS3(), Task(Linear(), (4,), 3), clients()[0], {})
    with pytest.raises(HansaError, match="inputs are token ids"):
        FedHeNN().server_init(Task(CharLSTM(), (9,), 3, integers=True))
    with pytest.raises(HansaError, match="Private needs the same leaves of every client, and of FlicHL some may not"):
        Private(FlicHL())
    with pytest.raises(HansaError, match="Robust needs the same leaves of every client, and of FlicClass some may not"):
        Robust(FlicClass())
    with pytest.raises(HansaError, match=r"FLIC wraps algorithms that train locally. Got FlicS3"):
        Flic(FlicS3())


def test_the_latent_space_ends_every_encoder_alike() -> None:
    for encoder, shape in ((MLP((7,)), (3,)), (Linear(), (2, 2))):
        params = Task(Latent(encoder, 5), shape, 3).params()
        assert params["head.weight"].shape == (3, 5)
    with pytest.raises(HansaError, match="'encoder' of Latent must be a model whose head is one linear layer"):
        Latent(Latent(hidden=2)).build((3,), 2)


def test_exhibits_show_how_far_classes_are_from_their_anchors() -> None:
    algorithm = FlicClass(LOCAL, Alignment(spread=2.0, meta_classes=(0, 1, 0)))
    server = algorithm.server_init(TASK)
    people = {"a": clients()[0], "b": clients()[-1]}
    model = TASK.params()
    observed = {name: algorithm.observe(TASK, model, data) for name, data in people.items()}
    curve, scatter = algorithm.exhibits(TASK, server, observed)
    far, whole = [], []
    for data in people.values():
        for label in data.y.unique().tolist():
            anchor = server[f"anchors.{(0, 1, 0)[label]}.mean"]
            z = TASK.features(model, data.x[data.y == label]).detach()
            far.append(float((z.mean(0) - anchor).norm()))
            whole.append(float(w2(z, anchor).sqrt()))
    told = {"mean": sum(far) / len(far), "largest": max(far), "mean W2": sum(whole) / len(whole)}
    assert curve.numbers == {name: [pytest.approx(value, rel=1e-5)] for name, value in told.items()}
    learnt = FlicClass(LOCAL, Alignment(covariance="learnt"))
    seen = {name: learnt.observe(TASK, model, data) for name, data in people.items()}
    assert set(learnt.exhibits(TASK, learnt.server_init(TASK), seen)[0].numbers) == {"mean", "largest"}
    assert scatter.texts["name"] == ["anchor"] * 3 + ["a"] * 2 + ["b"] * 3
    assert scatter.texts["group"] == [f"class {number}" for number in (0, 1, 2, 0, 1, 0, 1, 2)]
    assert scatter.numbers["PC 1"][0] == scatter.numbers["PC 1"][2] != scatter.numbers["PC 1"][1]  # classes 0 and 2
    assert FlicClass(LOCAL).exhibits(REAL, FlicClass(LOCAL).server_init(REAL), {}) == ()
    both = FlicClass(LOCAL, Alignment(spread=2.0, meta_classes=(0, 1, 0), neighbours=True))
    *same, near = both.exhibits(TASK, server, observed)
    assert tuple(same) == (curve, scatter) and near.texts == scatter.texts and len(near.numbers["t-SNE 1"]) == 8


def test_a_phase_after_flic_starts_from_clients_networks_and_not_from_the_anchors() -> None:
    names = dict(zip("abc", clients(), strict=True))
    sites = federation_from_clients({name: (own.x, own.y, own.x, own.y) for name, own in names.items()})
    first = PhasePlan(FlicHL(LOCAL, anchors=Alignment(0.1, pretrain_epochs=1, lr=0.1)), 2)
    still = replace(LOCAL, lr=1e-12)

    def alike(one: Tree, other: Tree) -> bool:
        return one.keys() == other.keys() and all(torch.allclose(one[key], other[key], atol=1e-6) for key in one)

    flic = FlicHL(still, anchors=Alignment(0.1, pretrain_epochs=0, lr=1e-12))
    for algorithm in (Local(still), flic):
        phases = (first, PhasePlan(algorithm, orchestration=Sweep()))
        plan = Plan(DataPlan(Digits(), Natural()), phases, Latent(MLP((5,)), 3, hidden=4), name="flic", seed=0)
        run = run_phases(assemble(plan, sites).experiment, MemoryStore(), ListJournal())
        assert run is not None and run.previous is not None
        for name in names:
            own, before = (one.deployed(name)[1] for one in (run, run.previous))
            assert alike(own, before)
    anchors, moved = (pick("anchors", one.server) for one in (run, run.previous))
    assert alike(anchors, Alignment().server_init(run.task))
    assert not alike(anchors, moved)
