"""Frozen features of EfficientNet-Lite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hansa.data.dataset import Array
from hansa.io.cache import digest, digest_files
from hansa.lazy import Tensor, torch
from hansa.models.backbone import device_of
from hansa.models.efficientnet import check, pooled, pretrained, processor, weights_file
from hansa.models.images import check_images

PREPROCESSING = "1: bilinear, (pixel - 127) / 128, padding of the native size"


@dataclass(frozen=True)
class EfficientNetLite:
    """The 1280 features of an image: the last feature map of EfficientNet-Lite 0, 1 or 2, averaged over positions."""

    variant: int = 0
    size: int = 112  # pixels an image is resized to

    reads: ClassVar[frozenset[str]] = frozenset({"images"})

    def __post_init__(self) -> None:
        check("EfficientNetLite", self.variant, self.size)

    def fingerprint(self) -> str:
        """Return a name made of variant, size, preprocessing and the weights' content."""
        return digest(PREPROCESSING, str(self.variant), str(self.size), digest_files([weights_file(self.variant)]))

    def prepare(self) -> Callable[[Array], Tensor]:
        """Load the weights."""
        return self.network()[1]

    def network(self) -> tuple[torch.nn.Module, Callable[[Array], Tensor]]:
        """Load the weights; return the network itself too, for what looks at its weights."""
        network, prepared = pretrained(self.variant), processor(self.size)

        def features(images: Array) -> Tensor:
            check_images(images, "EfficientNetLite")
            return pooled(network, prepared(images, device_of(network)))

        return network, features
