"""Every model: shapes, groups, parameter counts, and the ways a task uses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from hansa.errors import HansaError
from hansa.io.registry import find, name_of
from hansa.models.convolutional import LeafCNN, LeNet
from hansa.models.dense import MLP, Adapter, Linear
from hansa.models.mobilenet import MobileNetV2
from hansa.models.networks.recurrent import LSTMLayer
from hansa.models.recurrent import CharLSTM
from hansa.task import ClientData, Model, Task
from hansa.training.local import LocalTraining, Turn, train

SMALL_MOBILE = MobileNetV2(width=0.25, stem_stride=1)
CASES: list[tuple[Model, tuple[int, ...], int]] = [
    (Linear(), (8, 8), 10),
    (Linear(bias=False), (5,), 2),
    (MLP(), (1, 8, 8), 10),
    (Adapter(3), (7,), 4),
    (MLP((16, 7), "tanh"), (5,), 3),
    (LeNet(), (3, 32, 32), 100),
    (LeNet(), (1, 16, 16), 10),
    (LeNet(), (1, 28, 20), 62),
    (LeafCNN(), (1, 28, 28), 62),
    (LeafCNN(), (3, 32, 30), 10),
    (CharLSTM(), (20,), 31),
    (SMALL_MOBILE, (3, 32, 32), 10),
    (SMALL_MOBILE, (1, 28, 28), 10),
]
every_model = pytest.mark.parametrize(("model", "shape", "classes"), CASES, ids=str)


def samples(model: Model, shape: tuple[int, ...], classes: int, count: int = 3) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    if isinstance(model, CharLSTM):
        return torch.randint(classes, (count, *shape), generator=rng)
    return torch.rand((count, *shape), generator=rng)


def parameters(model: Model, shape: tuple[int, ...], classes: int) -> int:
    return sum(leaf.numel() for leaf in model.build(shape, classes).parameters())


@every_model
def test_two_groups_and_outputs(model: Model, shape: tuple[int, ...], classes: int) -> None:
    module = model.build(shape, classes)
    x = samples(model, shape, classes)
    assert [name for name, _ in module.named_children()] == ["features", "head"]
    assert {key.partition(".")[0] for key in module.state_dict()} <= {"features", "head"}
    assert module(x).shape == (3, classes)
    assert torch.equal(module(x), module.head(module.features(x)))


@every_model
def test_task_gives_what_the_module_gives(model: Model, shape: tuple[int, ...], classes: int) -> None:
    task = Task(model, shape, classes, seed=5, integers=isinstance(model, CharLSTM))
    x = samples(model, shape, classes)
    module = model.build(shape, classes).eval()
    module.load_state_dict(task.params())
    torch.testing.assert_close(task.forward(task.params(), x), module(x))
    torch.testing.assert_close(task.features(task.params(), x), module.features(x).flatten(1))
    assert task.head_flops > 0
    assert (task.features_flops > 0) == (not isinstance(model, Linear))


@every_model
def test_gradients_reach_every_parameter(model: Model, shape: tuple[int, ...], classes: int) -> None:
    module = model.build(shape, classes).requires_grad_(False)
    # Off the initial values: a layer that starts at zero lets nothing through in the first step.
    params = {key: (leaf + 0.01).requires_grad_(True) for key, leaf in module.named_parameters()}
    x = samples(model, shape, classes)
    y = torch.arange(3) % classes
    torch.nn.functional.cross_entropy(functional_call(module, params, (x,)), y).backward()
    lifeless = [key for key, leaf in params.items() if leaf.grad is None or not leaf.grad.abs().sum() > 0]
    assert lifeless == []


@every_model
def test_initial_weights_come_from_torchs_generator(model: Model, shape: tuple[int, ...], classes: int) -> None:
    first, again, other = (Task(model, shape, classes, seed=seed).params() for seed in (1, 1, 2))
    built = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            built.append(model.build(shape, classes).state_dict())
    assert all(torch.equal(built[0][key], built[1][key]) for key in built[0])
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_parameter_counts() -> None:
    assert parameters(Linear(), (8, 8), 10) == 64 * 10 + 10
    assert parameters(Linear(bias=False), (8, 8), 10) == 640
    assert parameters(MLP((16, 7)), (5,), 3) == (5 * 16 + 16) + (16 * 7 + 7) + (7 * 3 + 3)
    leaf = (25 * 32 + 32) + (32 * 25 * 64 + 64) + (7 * 7 * 64 * 512 + 512) + (512 * 62 + 62)
    assert parameters(LeafCNN(), (1, 28, 28), 62) == leaf == 1_690_046
    lenet = (75 * 64 + 64) + (64 * 25 * 64 + 64) + (1600 * 384 + 384) + (384 * 192 + 192) + (192 * 10 + 10)
    assert parameters(LeNet(), (3, 32, 32), 10) == lenet == 797_962
    lstm = 80 * 8 + 4 * 100 * (8 + 100 + 2) + 4 * 100 * (100 + 100 + 2) + 100 * 80 + 80
    assert parameters(CharLSTM(), (80,), 80) == lstm


@pytest.mark.parametrize(("model", "shape"), [(LeNet(), (3, 32, 32)), (LeafCNN(), (1, 28, 28))], ids=str)
def test_pooling_before_a_relu_is_pooling_after_it(model: Model, shape: tuple[int, ...]) -> None:
    """Logits and gradients of the papers' order, bit for bit; inputs with many equal pixels, so that maxima tie."""
    torch.manual_seed(0)
    ours, papers = model.build(shape, 10), model.build(shape, 10)
    papers.load_state_dict(ours.state_dict())
    layers = papers.get_submodule("features")
    pools = [place for place, layer in enumerate(layers) if isinstance(layer, torch.nn.MaxPool2d)]
    for place in pools:
        layers[place], layers[place + 1] = layers[place + 1], layers[place]
    assert len(pools) == 2 and all(isinstance(layers[place], torch.nn.ReLU) for place in pools)
    x, y = torch.randint(0, 3, (20, *shape)) / 2, torch.arange(20) % 10
    both = [(net(x), net) for net in (ours, papers)]
    results = [(z, *torch.autograd.grad(cross_entropy(z, y), list(net.parameters()))) for z, net in both]
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_mobilenet_has_the_papers_size() -> None:
    # 3,504,872 parameters at width 1 with 1000 classes, as the reference implementations count them.
    assert parameters(MobileNetV2(), (3, 224, 224), 1000) == 3_504_872
    assert parameters(MobileNetV2(width=0.5), (3, 224, 224), 1000) < 2_000_000
    assert MobileNetV2().build((3, 224, 224), 1000).head.in_features == 1280  # type: ignore[union-attr]


def test_stem_stride_keeps_more_of_a_small_image() -> None:
    x = torch.rand(1, 3, 32, 32)
    maps = [MobileNetV2(0.25, stride).build((3, 32, 32), 10).features[:-2](x) for stride in (1, 2)]  # type: ignore[index]
    assert [tuple(found.shape[2:]) for found in maps] == [(2, 2), (1, 1)]


def test_lstm_is_the_lstm_of_torch() -> None:
    module = CharLSTM().build((7,), 9)
    reference = torch.nn.LSTM(8, 100, 2, batch_first=True)
    names = {"input.weight": "weight_ih", "input.bias": "bias_ih", "state.weight": "weight_hh", "state.bias": "bias_hh"}
    layers = module.get_submodule("features.layers")
    reference.load_state_dict(
        {f"{names[key[2:]]}_l{key[0]}": leaf for key, leaf in layers.state_dict().items()}, strict=True
    )
    x = torch.rand(3, 7, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layers(x), reference(x)[0])
    assert Task(CharLSTM(), (7,), 9, integers=True).features_flops == 7 * 2 * 4 * 100 * (8 + 100 + 100 + 100)


def test_lstm_reads_the_last_character_and_the_first() -> None:
    module = CharLSTM().build((6,), 9).eval()
    base = torch.zeros(1, 6, dtype=torch.long)
    first, last = base.clone(), base.clone()
    first[0, 0] = last[0, 5] = 4
    assert not torch.equal(module(base), module(first))
    assert not torch.equal(module(base), module(last))


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (LeafCNN(), (13,), ["LeafCNN", "(13,)", "channels × height × width"]),
        (LeNet(), (3, 12, 32), ["LeNet", "(3, 12, 32)", "16 × 16"]),
        (MobileNetV2(), (1, 8, 8), ["MobileNetV2", "(1, 8, 8)", "16 × 16"]),
        (CharLSTM(), (3, 8, 8), ["CharLSTM", "(3, 8, 8)", "tokens"]),
    ],
)
def test_wrong_input_is_one_sentence(model: Model, shape: tuple[int, ...], words: list[str]) -> None:
    with pytest.raises(HansaError) as caught:
        model.build(shape, 10)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("piece", "settings", "words"),
    [
        (MLP, {"hidden": ()}, "'hidden' of MLP"),
        (Adapter, {"bottleneck": 0}, "'bottleneck' of Adapter must be at least 1. Got 0."),
        (MLP, {"hidden": (4, 0)}, "(4, 0)"),
        (MLP, {"activation": "rellu"}, "Did you mean 'relu'?"),
        (CharLSTM, {"hidden": 0}, "'hidden' of CharLSTM"),
        (MobileNetV2, {"width": 0.0}, "'width' of MobileNetV2"),
        (MobileNetV2, {"stem_stride": 3}, "Got 3."),
    ],
)
def test_settings_are_checked(piece: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(HansaError) as caught:
        piece(**settings)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["linear", "mlp", "lenet", "leaf-cnn", "char-lstm", "mobilenetv2"])
def test_catalogue_names(name: str) -> None:
    piece = find("model", name)()
    assert name_of("model", piece) == name
    assert hash(piece) == hash(find("model", name)())


def test_an_adapter_starts_as_the_features_it_is_given_and_can_leave_them() -> None:
    """So a classifier made on the backbone's features fits; and gradients reach what starts at zero."""
    task = Task(Adapter(3), (7,), 4)
    x, y = torch.randn(6, 7, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4
    assert torch.equal(task.features(task.params(), x), x)
    turn = Turn(LocalTraining(lr=0.5, train="features"), task, task.params())
    trained = train(turn, ClientData(x, y), seed=0).params
    assert not torch.allclose(task.features(trained, x), x)


def test_one_opaque_operation_gives_the_states_of_plain_products() -> None:
    layer = LSTMLayer(3, 5)
    x = torch.randn(4, 7, 3, generator=torch.Generator().manual_seed(0))
    found, expected = layer._whole(x), layer._products(x)
    torch.testing.assert_close(found, expected)
    mine, theirs = (torch.autograd.grad(out.square().sum(), list(layer.parameters())) for out in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)
