"""Statistics as they arrive: in any order, twice, late, after a restart, or already summed by another server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from hansa.errors import require
from hansa.io.store import DiskStore, MemoryStore, Store, fingerprint
from hansa.lazy import torch
from hansa.ridge import RegressionStatistics, RidgeStatistics
from hansa.ridge.additive import AdditiveStatistics
from hansa.tree import Tree, is_finite

Statistics = TypeVar("Statistics", bound=AdditiveStatistics)
Where = str | Path | None


class Collector(Generic[Statistics]):
    """A server of ridge statistics that outlives its process: of classes, or of real targets.

    Every client counts once: a repeated upload is recognised and ignored, a different one under the same name refused.
    `keep` stores single uploads, so that a client can be forgotten without asking it; without it only a fingerprint is
    stored, and the client must send its statistics again to be forgotten.
    """

    @overload
    def __init__(
        self: Collector[RidgeStatistics], dimension: int, num_classes: int, path: Where = None, *, keep: bool = False
    ) -> None: ...

    @overload
    def __init__(
        self: Collector[RegressionStatistics],
        dimension: int,
        *,
        num_targets: int,
        path: Where = None,
        keep: bool = False,
    ) -> None: ...

    def __init__(
        self,
        dimension: int,
        num_classes: int | None = None,
        path: Where = None,
        *,
        num_targets: int | None = None,
        keep: bool = False,
    ) -> None:
        self.store: Store = MemoryStore() if path is None else DiskStore(Path(path))
        self.keep = keep
        kind, self.columns = _kind(num_classes, num_targets)
        self.kind: type[Statistics] = kind
        empty = self.kind.zeros(dimension, self.columns)
        if self.store.get("sum") is None:
            self._put(empty)
        found, wanted = _shapes(self.store.get("sum") or {}), _shapes(empty.leaves())
        require(found == wanted, f"'{path}' collects statistics of {found}, not {wanted}.")

    @property
    def statistics(self) -> Statistics:
        """The sum of all that arrived."""
        tree = self.store.get("sum")
        assert tree is not None
        return self.kind(**tree)

    @property
    def clients(self) -> list[str]:
        """The clients in the sum."""
        return sorted(self.store.clients("fingerprint"))

    def add(self, client: str, statistics: Statistics) -> bool:
        """Count a client's statistics; False when they were counted before."""
        mark, known = self._mark(statistics), self.store.get("fingerprint", client)
        if known:
            same = torch.equal(known["mark"], mark)
            require(same, f"Client '{client}' has sent other statistics before: forget those first.")
            return False
        self._fits(client, statistics)
        self.store.put("fingerprint", {"mark": mark}, client)
        if self.keep:
            self.store.put("upload", statistics.pack(torch.float64), client)
        self._put(self.statistics + statistics)
        return True

    def forget(self, client: str, statistics: Statistics | None = None) -> None:
        """Take a client out exactly, by its stored upload or by the same statistics sent again."""
        known = self.store.get("fingerprint", client)
        require(bool(known), f"Client '{client}' was never added, so it cannot be forgotten.")
        kept = self.store.get("upload", client)
        if statistics is None:
            require(bool(kept), f"The upload of client '{client}' was not kept: give its statistics again.")
            statistics = self.kind.unpack(kept or {}, self.columns)
        same = known is not None and torch.equal(known["mark"], self._mark(statistics))
        require(same, f"These are not the statistics that client '{client}' sent: nothing was forgotten.")
        for name in ("fingerprint", "upload"):
            self.store.drop(name, client)
        self._put(self.statistics - statistics)

    def merge(self, other: Collector[Statistics]) -> None:
        """Take over another server's sum: aggregation in a tree is exact."""
        twice = sorted(set(self.clients) & set(other.clients))
        require(not twice, f"Both servers have counted {', '.join(twice[:5])}: their sums cannot be merged.")
        self._fits("of the other server", other.statistics)
        for client in other.clients:
            for name in ("fingerprint", "upload"):
                if tree := other.store.get(name, client):
                    self.store.put(name, tree, client)
        self._put(self.statistics + other.statistics)

    def _fits(self, client: str, statistics: Statistics) -> None:
        mine, theirs = _shapes(self.statistics.leaves()), _shapes(statistics.leaves())
        finite = all(is_finite(leaf) for leaf in statistics.leaves().values())
        require(mine == theirs, f"Client '{client}' sent statistics of {theirs}; here {mine} are collected.")
        require(finite, f"Client '{client}' sent statistics that are not finite numbers.")

    @staticmethod
    def _mark(statistics: Statistics) -> torch.Tensor:
        return fingerprint(statistics.leaves())

    def _put(self, statistics: Statistics) -> None:
        self.store.put("sum", statistics.leaves())
        self.store.commit({})

    def close(self) -> None:
        """Let go of the file."""
        if isinstance(self.store, DiskStore):
            self.store.close()


def _kind(num_classes: int | None, num_targets: int | None) -> tuple[type[Any], int]:
    got = f"Got num_classes={num_classes}, num_targets={num_targets}."
    require((num_classes is None) != (num_targets is None), f"A Collector is of classes or of targets: give one. {got}")
    return (RegressionStatistics, num_targets) if num_targets is not None else (RidgeStatistics, num_classes or 0)


def _shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in sorted(tree.items())}
