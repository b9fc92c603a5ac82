"""Adding up uploads whose leaves may be lazy."""

from __future__ import annotations

from hansa.engines.kernels.lazy_sum import LazySum, dense_tree, total
from hansa.payload import Update
from hansa.tree import Tree, union


class UpdateSum:
    """The sum of a block's uploads.  Tensors are added as they come, lazy sums all together at the end."""

    def __init__(self) -> None:
        self._lazy: dict[str, list[LazySum]] = {}
        self._sums: Tree = {}
        self._own: set[str] = set()  # sums that nobody else holds, so that adding to them needs no new memory
        self._each: dict[str, Tree] = {}
        self._sent: dict[tuple[str, ...], float] = {}  # by the leaves of an upload: the weight of those who sent them
        self._without: dict[str, float] = {}
        self._weight, self._count, self._flops = 0.0, 0, 0.0

    def add(self, up: Update) -> None:
        """Add one more upload."""
        self._weight += up.weight
        self._count += up.count
        self._flops += up.flops
        self._each.update({client: dense_tree(own) for client, own in up.each.items()})
        leaves = tuple(up.sums)
        self._sent[leaves] = self._sent.get(leaves, 0.0) + up.weight
        for key, weight in up.without.items():
            self._without[key] = self._without.get(key, 0.0) + weight
        for key, leaf in up.sums.items():
            self._leaf(key, leaf)

    def _leaf(self, key: str, leaf: object) -> None:
        if isinstance(leaf, LazySum):
            self._lazy.setdefault(key, []).append(leaf)
        elif key in self._own:
            self._sums[key].add_(leaf)  # type: ignore[arg-type]
        elif key in self._sums:
            self._sums[key] = self._sums[key] + leaf  # type: ignore[operator]
            self._own.add(key)
        else:
            self._sums[key] = leaf  # type: ignore[assignment]

    def update(self) -> Update | None:
        """Return the sum so far, if there is anything to add."""
        if not self._count:
            return None
        made = {key: total(leaves, leaves[0].shape, leaves[0].dtype) for key, leaves in self._lazy.items()}
        sums = union(self._sums, made)
        return Update(sums, self._weight, self._count, self._flops, self._each, self._lacking(sums))

    def _lacking(self, sums: Tree) -> dict[str, float]:
        """Return, for every leaf that some lack, the weight of those who did not send it."""
        if len(self._sent) < 2:
            return self._without
        found = dict(self._without)
        for leaves, weight in self._sent.items():
            for key in sums.keys() - set(leaves):
                found[key] = found.get(key, 0.0) + weight
        return found
