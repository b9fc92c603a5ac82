"""Networks side by side: the short way through known layers is what `vmap` gives."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from hansa.engines.kernels.side_by_side import known_layers, outputs
from hansa.models.convolutional import CNN, LeafCNN, LeNet
from hansa.models.dense import MLP, Linear
from hansa.task import Model, Task


@dataclass(frozen=True)
class Given:
    """A model that is a module."""

    module: nn.Module

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return self.module


@pytest.mark.parametrize("shared", ["nothing", "features.", "head."])
@pytest.mark.parametrize("model", [Linear(), Linear(bias=False), MLP((7, 4), "tanh"), MLP((6,), "gelu")], ids=str)
def test_known_layers_equal_vmap(model: Model, shared: str) -> None:
    rng, task = torch.Generator().manual_seed(0), Task(model, (5,), 3)
    params = {key: torch.randn(4, *leaf.shape, generator=rng) for key, leaf in task.params().items()}
    common = {key: leaf[0] for key, leaf in params.items() if key.startswith(shared)}
    each = {key: leaf for key, leaf in params.items() if key not in common}
    x = torch.randn(4, 6, 5, generator=rng)
    full = {key: leaf[0].expand_as(leaf) if key in common else leaf for key, leaf in params.items()}
    module = task.module
    expected = vmap(lambda own, samples: functional_call(module, own, (samples,)))(full, x)
    assert known_layers(module) is not None
    assert torch.allclose(outputs(task, common, each, x), expected, atol=1e-6)


@pytest.mark.parametrize("shared", ["nothing", "features.", "features.0.", "head."])
@pytest.mark.parametrize("model", [LeNet(), LeafCNN(), CNN((3, 4), pool=2, hidden=(5,))], ids=str)
def test_convolutions_with_a_group_for_every_client_equal_vmap(model: Model, shared: str) -> None:
    rng, task = torch.Generator().manual_seed(0), Task(model, (3, 20, 18), 3)
    params = {key: torch.randn(3, *leaf.shape, generator=rng) * 0.1 for key, leaf in task.params().items()}
    common = {key: leaf[0] for key, leaf in params.items() if key.startswith(shared)}
    each = {key: leaf.requires_grad_() for key, leaf in params.items() if key not in common}
    x = torch.randn(3, 4, 3, 20, 18, generator=rng)
    full = {key: leaf[0].expand_as(leaf) if key in common else leaf for key, leaf in params.items()}
    module = task.module
    expected = vmap(lambda own, samples: functional_call(module, own, (samples,)))(full, x)
    found = outputs(task, common, each, x)
    assert known_layers(task.module) is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.detach().abs().max()))
    mine, theirs = (torch.autograd.grad(out.square().sum(), list(each.values())) for out in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


@pytest.mark.parametrize("channels", [3, 7])
@pytest.mark.parametrize("bias", [True, False])
def test_strides_and_paddings_equal_vmap(channels: int, bias: bool) -> None:
    rng, module = torch.Generator().manual_seed(0), nn.Sequential()
    convolution = nn.Conv2d(channels, 4, (3, 2), stride=(2, 1), padding=(1, 2), bias=bias)
    module.add_module("features", nn.Sequential(convolution, nn.AvgPool2d(2), nn.Tanh(), nn.Flatten()))
    module.add_module("head", nn.Linear(4 * 2 * 5, 3))
    task = Task(Given(module), (channels, 8, 8), 3)
    each = {k: torch.randn(2, *leaf.shape, generator=rng).requires_grad_() for k, leaf in task.params().items()}
    x = torch.randn(2, 5, channels, 8, 8, generator=rng)
    built = task.module
    expected = vmap(lambda own, samples: functional_call(built, own, (samples,)))(each, x)
    found = outputs(task, {}, each, x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    mine, theirs = (torch.autograd.grad(out.square().sum(), list(each.values())) for out in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize(
    "features",
    [
        nn.Sequential(nn.Flatten(), nn.LayerNorm(4)),
        nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
        nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(4, 4), nn.Flatten()),
    ],
    ids=["layer norm", "reflected", "linear over columns"],
)
def test_other_layers_go_the_long_way(features: nn.Module) -> None:
    odd = nn.Sequential()
    odd.add_module("features", features)
    odd.add_module("head", nn.Linear(4, 2))
    assert known_layers(odd) is None
