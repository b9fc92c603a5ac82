"""Top-k with error feedback: Stich et al., Sparsified SGD with Memory (2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hansa.channels.channel import MARK, Compression, parted
from hansa.errors import require
from hansa.lazy import torch
from hansa.tree import Tree

LARGEST = 2**31  # numbers of an upload whose places fit into 32 bits


@dataclass(frozen=True)
class TopK(Compression):
    """Sends the largest of what clients trained, a `fraction` of all numbers; a client keeps the rest for later.

    Of `v = Δ + e`, a client's displacement and what it kept, the k numbers of largest size are sent with their places,
    and `e ← v − sent` is kept for its next upload: nothing is lost, it only comes later.
    """

    fraction: float = 0.1

    def __post_init__(self) -> None:
        good = 0 < self.fraction <= 1
        require(good, f"The 'fraction' of top-k must lie above 0 and at most at 1. Got {self.fraction}.")

    @property
    def remembers(self) -> bool:
        """What is not sent must not be lost."""
        return True

    def write(self, leaves: Tree, rng: torch.Generator) -> Tree:
        """Return the largest numbers of all leaves in a row and their places, and of every leaf the shape."""
        row = torch.cat([leaves[key].flatten() for key in sorted(leaves)])
        count = math.ceil(self.fraction * len(row) - 1e-9)  # a tenth of 650 is 65
        places = row.abs().topk(count).indices.sort().values
        shapes = {key: leaf.new_empty(*leaf.shape, 0) for key, leaf in leaves.items()}
        return shapes | {f"values{MARK}": row[places], f"places{MARK}": places.to(torch.int32)}

    def read(self, parts: Tree) -> Tree:
        """Return zeros but for what was sent."""
        shapes, (values, places) = parted(parts, "values", "places")
        sizes = [math.prod(leaf.shape[:-1]) for leaf in shapes.values()]
        good = all(leaf.dim() and leaf.shape[-1] == 0 for leaf in shapes.values()) and sum(sizes) < LARGEST
        good = good and values.dtype == torch.float32 and places.dtype == torch.int32
        good = good and values.shape == places.shape and places.dim() == 1
        good = good and bool(((places >= 0) & (places < sum(sizes))).all())
        require(good, "An upload of top-k needs shapes, and numbers with their places in them.")
        row = torch.zeros(sum(sizes))
        row[places.long()] = values
        return {
            key: part.reshape(shapes[key].shape[:-1]) for key, part in zip(shapes, torch.split(row, sizes), strict=True)
        }
