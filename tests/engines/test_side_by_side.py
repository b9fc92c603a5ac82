"""Networks side by side: the short way through known layers is what `vmap` gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from hansa.engines.kernels.side_by_side import known_layers, outputs
from hansa.models.convolutional import LeNet
from hansa.models.dense import MLP, Linear
from hansa.task import Model, Task


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


def test_other_layers_go_the_long_way() -> None:
    assert known_layers(Task(LeNet(), (3, 32, 32), 10).module) is None
    odd = nn.Sequential()
    odd.add_module("features", nn.Sequential(nn.Flatten(), nn.LayerNorm(4)))
    odd.add_module("head", nn.Linear(4, 2))
    assert known_layers(odd) is None
