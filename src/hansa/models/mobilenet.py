"""MobileNetV2 with group normalisation: no running statistics that would differ between clients."""

from __future__ import annotations

from dataclasses import dataclass

from hansa.errors import require
from hansa.lazy import nn
from hansa.models import networks
from hansa.models.split import image_shape

# Table 2 of Sandler et al. 2018: expansion t, channels c, repeats n, stride s.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, groups: int, *, active: bool) -> list[nn.Module]:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.GroupNorm(8, outputs),  # every width is a multiple of 8
    ]
    return [*layers, nn.ReLU6()] if active else layers


def _bottleneck(inputs: int, outputs: int, expansion: int, stride: int) -> nn.Module:
    """Widen, filter every channel by itself, narrow without an activation; add the input where the shapes agree."""
    inner = inputs * expansion
    widen = _convolution(inputs, inner, 1, 1, 1, active=True) if expansion > 1 else []
    path = nn.Sequential(
        *widen,
        *_convolution(inner, inner, 3, stride, inner, active=True),
        *_convolution(inner, outputs, 1, 1, 1, active=False),
    )
    return networks.Skip(path) if stride == 1 and inputs == outputs else path


@dataclass(frozen=True)
class MobileNetV2:
    """MobileNetV2; for images of 32 × 32 pixels set `stem_stride` to 1, which keeps them from shrinking away."""

    width: float = 1.0
    stem_stride: int = 2

    def __post_init__(self) -> None:
        require(0 < self.width <= 4, f"The 'width' of MobileNetV2 must be above 0 and at most 4. Got {self.width}.")
        fits = self.stem_stride in (1, 2)
        require(fits, f"The 'stem_stride' of MobileNetV2 must be 1 or 2. Got {self.stem_stride}.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build it for images of 16 × 16 pixels or more."""
        channels = image_shape(self, input_shape, smallest=16)[0]
        before = self._scaled(32)
        layers = _convolution(channels, before, 3, self.stem_stride, 1, active=True)
        for expansion, size, repeats, stride in STAGES:
            for repeat in range(repeats):
                layers.append(_bottleneck(before, self._scaled(size), expansion, stride if repeat == 0 else 1))
                before = self._scaled(size)
        last = max(1280, self._scaled(1280))
        layers += [*_convolution(before, last, 1, 1, 1, active=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return networks.Split(nn.Sequential(*layers), nn.Linear(last, outputs))

    def _scaled(self, channels: int) -> int:
        """Return the nearest multiple of 8, never more than a tenth below what was asked."""
        wanted = channels * self.width
        rounded = max(8, int(wanted + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * wanted else rounded
