"""Adding up uploads whose leaves may not be there yet."""

from __future__ import annotations

from typing import cast

from hansa.engines.kernels.lazy_sum import LazySum, dense_tree, total
from hansa.payload import Update
from hansa.tree import Tree, add


class UpdateSum:
    """The sum of a block's uploads.  Tensors are added as they come, blends all together at the end."""

    def __init__(self) -> None:
        self._blends: dict[str, list[LazySum]] = {}
        self._sums: Tree = {}
        self._own: set[str] = set()  # sums that nobody else holds, so that adding to them needs no new memory
        self._each: dict[str, Tree] = {}
        self._weight, self._count, self._flops = 0.0, 0, 0.0

    def add(self, up: Update) -> None:
        """One more upload."""
        self._weight += up.weight
        self._count += up.count
        self._flops += up.flops
        self._each.update({client: dense_tree(own) for client, own in up.each.items()})
        for key, leaf in up.sums.items():
            if isinstance(leaf, LazySum):
                self._blends.setdefault(key, []).append(leaf)
            elif key in self._own:
                self._sums[key].add_(leaf)
            elif key in self._sums:
                self._sums[key] = self._sums[key] + leaf
                self._own.add(key)
            else:
                self._sums[key] = leaf

    def update(self) -> Update | None:
        """The sum so far, if there is anything to add."""
        if not self._count:
            return None
        blended = {key: total(leaves, leaves[0].shape, leaves[0].dtype) for key, leaves in self._blends.items()}
        both = blended.keys() & self._sums.keys()
        mixed = add({key: blended[key] for key in both}, {key: self._sums[key] for key in both})
        return Update(
            cast(Tree, {**self._sums, **blended, **mixed}), self._weight, self._count, self._flops, self._each
        )
