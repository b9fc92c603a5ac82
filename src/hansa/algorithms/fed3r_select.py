"""Fed3R that chooses λ, σ and D from held-out clients' statistics, with no communication beyond its one round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from hansa.algorithms.feature_scale import SIGMA
from hansa.algorithms.statistics import (
    Precision,
    collect,
    collecting_flops,
    from_tree,
    head_width,
    to_tree,
    with_head,
)
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.ridge import Normalize, RidgeStatistics, select
from hansa.task import ClientData, Task
from hansa.tree import Tree, add, nest, pick, zeros_like

GROUPS = ("train", "held")


@dataclass(frozen=True)
class Fed3RSelect(Algorithm):
    """Some clients, drawn by lot, send their statistics for choosing: `‖Y_h − Z_h W‖²` needs nothing but sums.

    `ridges` are the λ tried.  On a model with random features `sigmas` are factors of its σ (one set of statistics
    each) and `dimensions` numbers of random features to use: the statistics of the first D' features are a corner of
    those of all D.  The classifier itself is solved from everyone's statistics, with what was chosen.
    """

    ridges: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
    sigmas: tuple[float, ...] = (1.0,)
    dimensions: tuple[int, ...] = ()
    held_out: float = 0.2
    normalize: Normalize = "column"
    alpha: float = 0.8
    products: Precision = "float32"
    wire: Precision = "float32"

    uplink: ClassVar[Mapping[str, Role]] = {"train": Role.SUM, "held": Role.SUM}

    def __post_init__(self) -> None:
        require(bool(self.ridges) and min(self.ridges) > 0, f"The 'ridges' (λ) must be numbers > 0. Got {self.ridges}.")
        require(bool(self.sigmas) and min(self.sigmas) > 0, f"The 'sigmas' must be numbers > 0. Got {self.sigmas}.")
        require(0 < self.held_out < 1, f"The 'held_out' share of clients must lie in (0, 1). Got {self.held_out}.")

    @property
    def one_shot(self) -> bool:
        """A second visit would count a client twice."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Return two empty sums for every σ."""
        width = head_width(task.params())
        require(self.sigmas == (1.0,) or SIGMA in task.params(), "Choosing 'sigmas' needs random features.")
        good = all(1 <= dimension <= width for dimension in self.dimensions)
        require(good, f"The 'dimensions' must lie between 1 and {width}. Got {self.dimensions}.")
        empty = to_tree(RidgeStatistics.zeros(width, task.num_classes))
        one = {key: leaf for s in range(len(self.sigmas)) for key, leaf in nest(str(s), empty).items()}
        return {key: leaf for group in GROUPS for key, leaf in nest(group, one).items()}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Send nothing."""
        return {}

    def _at(self, params: Tree, index: int) -> Tree:
        """Return the parameters with the σ of a candidate."""
        return params if self.sigmas == (1.0,) else params | {SIGMA: params[SIGMA] * self.sigmas[index]}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Return the client's statistics for every σ, in the group that the lot selects."""
        group = GROUPS[int(torch.rand((), generator=rng) < self.held_out)]
        sums: Tree = {}
        for index in range(len(self.sigmas)):
            statistics = collect(task, self._at(task.params(), index), data, self.products)
            sums |= nest(f"{group}.{index}", to_tree(statistics))
        flops = len(self.sigmas) * collecting_flops(task, head_width(task.params()), len(data))
        other = GROUPS[group == "train"]
        return Update(sums | nest(other, zeros_like(pick(group, sums))), len(data), flops=flops), state

    def encode(self, sums: Tree) -> Tree:
        """Encode only the group that holds anything."""
        group = next(name for name in GROUPS if float(sums[f"{name}.0.ridge.counts"].sum()) > 0)
        wire: Tree = {"group": torch.tensor(GROUPS.index(group), dtype=torch.int32)}
        for index in range(len(self.sigmas)):
            packed = from_tree(pick(f"{group}.{index}", sums)).pack(getattr(torch, self.wire))
            wire |= nest(str(index), packed)
        return wire

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Restore both groups, one of them empty."""
        group = GROUPS[int(wire["group"])]
        unpacked = [RidgeStatistics.unpack(pick(str(s), wire), task.num_classes) for s in range(len(self.sigmas))]
        sums = {key: leaf for s, one in enumerate(unpacked) for key, leaf in nest(f"{group}.{s}", to_tree(one)).items()}
        return sums | nest(GROUPS[group == "train"], zeros_like(pick(group, sums)))

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Add the sums."""
        return add(server, cohort.sums)

    def candidates(self, server: Tree) -> Iterator[tuple[tuple[int, int], RidgeStatistics, RidgeStatistics]]:
        """Yield every (σ, D) with its statistics for solving and for choosing."""
        for index in range(len(self.sigmas)):
            train, held = (from_tree(pick(f"{group}.{index}", server)) for group in GROUPS)
            for dimension in self.dimensions or (train.dimension,):
                yield (index, dimension), corner(train, dimension), corner(held, dimension)

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the classifier of the candidate that does best."""
        tried = {name: (train, held) for name, train, held in self.candidates(server)}
        good = all(float(part.counts.sum()) > 0 for pair in tried.values() for part in pair)
        require(good, "The lot held out all clients or none, so nothing can be chosen: change 'held_out' or the seed.")
        best = select(tried, self.ridges)
        index, dimension = best.name
        whole = tried[best.name][0] + tried[best.name][1]
        weights = whole.solve(best.lam, self.normalize, self.alpha) * (head_width(task.params()) / dimension) ** 0.5
        unused = weights.new_zeros(head_width(task.params()) - dimension, task.num_classes)
        return with_head(self._at(task.params(), index), torch.cat([weights, unused]))


def corner(statistics: RidgeStatistics, dimension: int) -> RidgeStatistics:
    """Return the statistics of the first D' of D random features, which are √(D/D') times as long on their own."""
    scale = statistics.dimension / dimension
    gram = statistics.gram[:dimension, :dimension] * scale
    return RidgeStatistics(gram, statistics.moment[:dimension] * scale**0.5, statistics.counts)
