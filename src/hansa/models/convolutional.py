"""Small convolutional networks that federated learning papers compare on.

The papers pool what a ReLU let through.  A ReLU of what was pooled is the same, to the bit and in its gradients, for a
quarter of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hansa.errors import require
from hansa.lazy import nn
from hansa.models import networks
from hansa.models.split import image_shape


@dataclass(frozen=True)
class CNN:
    """Padded convolutions with a ReLU and a halving each, brought to `pool` × `pool` and then to layers of `hidden`.

    Its leaves do not depend on the size of the images, so clients with images of different sizes can share them.  The
    default is close to the network of the FLIC paper for digits.
    """

    filters: tuple[int, ...] = (32, 20)
    kernel: int = 5
    pool: int = 4
    hidden: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        numbers = (*self.filters, self.kernel, self.pool, *self.hidden)
        fits = bool(self.filters) and bool(self.hidden) and min(numbers) >= 1 and self.kernel % 2 == 1
        require(fits, f"The settings of CNN must be numbers >= 1, with an odd 'kernel'. Got {numbers}.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build it for images of any size from one pixel a halving on."""
        channels, _, _ = image_shape(self, input_shape, smallest=2 ** len(self.filters))
        layers: list[nn.Module] = []
        for before, after in pairwise((channels, *self.filters)):
            layers += [nn.Conv2d(before, after, self.kernel, padding=self.kernel // 2), nn.MaxPool2d(2), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(self.pool), nn.Flatten()]
        for before, after in pairwise((self.filters[-1] * self.pool**2, *self.hidden)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return networks.Split(nn.Sequential(*layers), nn.Linear(self.hidden[-1], outputs))


@dataclass(frozen=True)
class LeNet:
    """The LeNet of the FedSeq paper: two 5 × 5 convolutions of 64 filters, then layers of 384 and 192."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build it for images of 16 × 16 pixels or more, any number of channels."""
        channels, height, width = image_shape(self, input_shape, smallest=16)
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))  # unpadded
        features = nn.Sequential(
            nn.Conv2d(channels, 64, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * rows * columns, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
        )
        return networks.Split(features, nn.Linear(192, outputs))


@dataclass(frozen=True)
class LeafCNN:
    """The FEMNIST network of LEAF: padded 5 × 5 convolutions of 32 and 64 filters, then a layer of 512."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build it for 28 × 28 pixels; other sizes work too."""
        channels, height, width = image_shape(self, input_shape, smallest=4)
        features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 512),
            nn.ReLU(),
        )
        return networks.Split(features, nn.Linear(512, outputs))
