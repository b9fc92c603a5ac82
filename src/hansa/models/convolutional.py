"""Small convolutional networks that federated learning papers compare on.

The papers pool what a ReLU let through.  A ReLU of what was pooled is the same, to the bit and in its gradients, for a
quarter of the work.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hansa.models.split import Split, image_shape


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
        return Split(features, nn.Linear(192, outputs))


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
        return Split(features, nn.Linear(512, outputs))
