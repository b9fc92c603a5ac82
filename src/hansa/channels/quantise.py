"""Quantisation: Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding (2017)."""

from __future__ import annotations

from dataclasses import dataclass

from hansa.channels.channel import MARK, Compression, parted
from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.tree import Tree

STEPS = 127  # on either side of zero, in 8 bits


@dataclass(frozen=True)
class Quantise(Compression):
    """Sends what clients trained in 8 bits a number: multiples of a 127th of a leaf's largest, rounded at random.

    A number x between two multiples of `s = max|x|/127` becomes the upper one with probability (x mod s)/s, so errors
    are zero on average, and those of a cohort cancel.  Draws follow the visit's seed.
    """

    @property
    def remembers(self) -> bool:
        """Rounding at random forgets nothing on average."""
        return False

    def write(self, leaves: Tree, rng: torch.Generator) -> Tree:
        """Return multiples under the leaves' keys, and what they are multiples of."""
        scales = {key: _largest(leaves[key]) / STEPS for key in sorted(leaves)}
        steps = {key: _rounded(leaves[key], scale, rng) for key, scale in scales.items()}
        return steps | {f"scales{MARK}": torch.stack(list(scales.values()))}

    def read(self, parts: Tree) -> Tree:
        """Multiply again."""
        steps, (scales,) = parted(parts, "scales")
        good = scales.dtype == torch.float32 and scales.shape == (len(steps),)
        good = good and all(leaf.dtype == torch.int8 for leaf in steps.values())
        require(good, "A quantised upload needs steps in 8 bits, and a scale for every leaf.")
        return {key: leaf.float() * scale for (key, leaf), scale in zip(steps.items(), scales, strict=True)}


def _largest(leaf: Tensor) -> Tensor:
    return leaf.abs().amax() if leaf.numel() else torch.zeros(())


def _rounded(leaf: Tensor, scale: Tensor, rng: torch.Generator) -> Tensor:
    """Return the multiples of a scale that numbers are rounded to; a leaf of zeros has none, and is all zeros."""
    exact = leaf / scale if scale != 0 else torch.zeros_like(leaf)
    lower = exact.floor()
    up = torch.rand(leaf.shape, generator=rng) < exact - lower
    return (lower + up).clamp(-STEPS, STEPS).to(torch.int8)
