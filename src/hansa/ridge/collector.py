"""Statistics as they arrive: in any order, twice, late, after a restart, or already summed by another server."""

from __future__ import annotations

from pathlib import Path

import torch

from hansa.errors import require
from hansa.io.store import DiskStore, MemoryStore, Store, fingerprint
from hansa.ridge import RidgeStatistics


class Collector:
    """A server of ridge statistics that outlives its process.

    Every client counts once: a repeated upload is recognised and ignored, a different one under the same name refused.
    `keep` holds on to single uploads, so that a client can be forgotten without asking it; without it only a
    fingerprint is kept, and the client must send its statistics again to be forgotten.
    """

    def __init__(self, dimension: int, num_classes: int, path: str | Path | None = None, *, keep: bool = False):
        self.store: Store = MemoryStore() if path is None else DiskStore(Path(path))
        self.keep = keep
        self.num_classes = num_classes
        if self.store.get("sum") is None:
            self._put(RidgeStatistics.zeros(dimension, num_classes))
        shape = tuple(self.statistics.moment.shape)
        wanted = (dimension, num_classes)
        require(shape == wanted, f"'{path}' collects statistics of {shape} features × classes, not {wanted}.")

    @property
    def statistics(self) -> RidgeStatistics:
        """The sum of all that arrived."""
        tree = self.store.get("sum")
        assert tree is not None
        return RidgeStatistics(tree["gram"], tree["moment"], tree["counts"])

    @property
    def clients(self) -> list[str]:
        """Who is in the sum."""
        return sorted(self.store.clients("fingerprint"))

    def add(self, client: str, statistics: RidgeStatistics) -> bool:
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

    def forget(self, client: str, statistics: RidgeStatistics | None = None) -> None:
        """Take a client out exactly, by its kept upload or by the same statistics sent again."""
        known = self.store.get("fingerprint", client)
        require(bool(known), f"Client '{client}' was never added, so it cannot be forgotten.")
        kept = self.store.get("upload", client)
        if statistics is None:
            require(bool(kept), f"The upload of client '{client}' was not kept: give its statistics again.")
            statistics = RidgeStatistics.unpack(kept or {}, self.num_classes)
        same = known is not None and torch.equal(known["mark"], self._mark(statistics))
        require(same, f"These are not the statistics that client '{client}' sent: nothing was forgotten.")
        for name in ("fingerprint", "upload"):
            self.store.drop(name, client)
        self._put(self.statistics - statistics)

    def merge(self, other: Collector) -> None:
        """Take over another server's sum: aggregation in a tree is exact."""
        twice = sorted(set(self.clients) & set(other.clients))
        require(not twice, f"Both servers have counted {', '.join(twice[:5])}: their sums cannot be merged.")
        self._fits("of the other server", other.statistics)
        for client in other.clients:
            for name in ("fingerprint", "upload"):
                if tree := other.store.get(name, client):
                    self.store.put(name, tree, client)
        self._put(self.statistics + other.statistics)

    def _fits(self, client: str, statistics: RidgeStatistics) -> None:
        mine, theirs = tuple(self.statistics.moment.shape), tuple(statistics.moment.shape)
        parts = (statistics.gram, statistics.moment, statistics.counts)
        finite = all(bool(torch.isfinite(part).all()) for part in parts)
        require(mine == theirs, f"Client '{client}' sent {theirs} features × classes; here {mine} are collected.")
        require(finite, f"Client '{client}' sent statistics that are not finite numbers.")

    @staticmethod
    def _mark(statistics: RidgeStatistics) -> torch.Tensor:
        return fingerprint({"gram": statistics.gram, "moment": statistics.moment, "counts": statistics.counts})

    def _put(self, statistics: RidgeStatistics) -> None:
        parts = {"gram": statistics.gram, "moment": statistics.moment, "counts": statistics.counts}
        self.store.put("sum", parts)
        self.store.commit({})

    def close(self) -> None:
        """Let go of the file."""
        if isinstance(self.store, DiskStore):
            self.store.close()
