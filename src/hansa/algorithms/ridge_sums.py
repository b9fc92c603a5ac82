"""Closed forms on ridge statistics: what the algorithms have in common whose clients upload A, b and class counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hansa.algorithms.statistics import (
    Precision,
    Upload,
    collect,
    collecting_flops,
    decode,
    empty,
    encode,
    from_tree,
    head_width,
    to_tree,
    upload_shape,
)
from hansa.errors import require
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.ridge.plausible import implausible
from hansa.task import ClientData, Task
from hansa.training.visits import AddsUp
from hansa.tree import Tree


class SumsRidge(AddsUp):
    """Client k uploads `A_k = Z_kᵀZ_k`, `b_k = Z_kᵀY_k` and class counts (Fed3R, eqs. 7, 8), and the server adds.

    They travel `packed`, as a `factor` or `full`.  A factor is taken of sums in float64, whatever `products` says: in
    float32 rounding would hide the rank.
    """

    __slots__ = ()

    products: Precision
    wire: Precision
    upload: Upload

    uplink: ClassVar[Mapping[str, Role]] = {"ridge": Role.SUM}

    @property
    def multiplied_in(self) -> Precision:
        """The number format that features are multiplied in."""
        return "float64" if self.upload == "factor" else self.products

    def width(self, task: Task) -> int:
        """Count the features that sums are over: those the head sees."""
        return head_width(task.params())

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Return shapes that depend on the classes a client holds, and in a factor on its samples."""
        return upload_shape(self.width(task), task.num_classes, data, getattr(torch, self.wire), self.upload)

    def server_init(self, task: Task) -> Tree:
        """Return empty statistics: λ enters once, when solving."""
        require(not task.real, f"{type(self).__name__} is for classes, and the targets are real numbers: use 'fed3r'.")
        return empty(task, self.width(task))

    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return A, b and the class counts of some samples."""
        return to_tree(collect(task, task.params(), data, self.multiplied_in))

    def operations(self, task: Task, samples: int) -> float:
        """Count φ and the products of A."""
        return collecting_flops(task, self.width(task), samples)

    def encode(self, sums: Tree) -> Tree:
        """Return the sums as `upload` says, with the numbers and counts of the classes present."""
        return encode(from_tree(sums), self.wire, self.upload)

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Return full matrices in float64."""
        return to_tree(decode(wire, task.num_classes, self.upload))

    def check(self, task: Task, up: Update) -> str:
        """Return why no client can have these statistics."""
        return implausible(from_tree(up.sums), up.weight)

    def forget(self, task: Task, server: Tree, gone: Update) -> Tree:
        """Return the sums without some clients: what they would have been, had these never taken part."""
        return to_tree(from_tree(server) - from_tree(gone.sums))
