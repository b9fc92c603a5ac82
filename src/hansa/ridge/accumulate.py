"""Sums of products, block by block: float32 products added into float64 sums.

A block's product in float32 runs at full speed; its rounding does not grow with the number of samples, because blocks
are added in float64.  Only the upper triangle is computed, in eight panels: 9/16 of the work of a plain product.
"""

from __future__ import annotations

from hansa.lazy import F, Tensor, torch

PANELS = 8
SMALLEST_PANEL = 128


def block_rows(device: torch.device) -> int:
    """Return the rows of a block: large enough to be fast, small enough to stay a small part of memory."""
    return 4096 if device.type == "cpu" else 32768


def add_products(gram: Tensor, z: Tensor) -> None:
    """Add one block's zᵀz to a float64 sum: the upper panels only, see `mirror`."""
    for start, stop in _panels(len(gram)):
        gram[start:stop, start:].add_(z[:, start:stop].T @ z[:, start:])


def add_class_sums(moment: Tensor, counts: Tensor, z: Tensor, y: Tensor) -> None:
    """Add Σ z and Σ 1 for every class present.  Sums over sorted rows, so that it repeats bit for bit on any device."""
    if not len(y):
        return
    ordered, order = y.long().sort(stable=True)
    present, sizes = torch.unique_consecutive(ordered, return_counts=True)
    sums = F.embedding_bag(order, z.contiguous(), sizes.cumsum(0) - sizes, mode="sum")
    moment.T.index_add_(0, present, sums.to(moment.dtype))
    counts.index_add_(0, present, sizes.to(counts.dtype))


def mirror(gram: Tensor) -> None:
    """Copy the upper triangle onto the lower one, in place."""
    for start, stop in _panels(len(gram)):
        gram[stop:, start:stop] = gram[start:stop, stop:].T
        corner = gram[start:stop, start:stop]
        corner.copy_(corner.triu() + corner.triu(1).T)


def _panels(dimension: int) -> list[tuple[int, int]]:
    width = max(SMALLEST_PANEL, -(-dimension // PANELS))
    return [(start, min(start + width, dimension)) for start in range(0, dimension, width)]
