"""Fed3R-FT: Fanì et al., Fed3R: Recursive Ridge Regression for Federated Learning with pre-trained models (2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.private import Private
from hansa.algorithms.statistics import (
    Precision,
    Ridge,
    check_ridge,
    chosen_ridge,
    collect,
    collecting_flops,
    decode,
    encode,
    from_tree,
    head_width,
    ridge_exhibits,
    to_tree,
    with_head,
)
from hansa.channels.accounting import Release
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Role, Update
from hansa.ridge import Normalize, RidgeStatistics
from hansa.task import ClientData, Task
from hansa.training.local import Turn
from hansa.training.visits import Visit, changed
from hansa.training.wrappers import Wrapper, layers, training_of
from hansa.tree import Tree, add, nest, pick, subtract


@dataclass(frozen=True)
class Fed3RFT(Wrapper):
    """A ridge classifier that follows features while a gradient algorithm moves them.

    A visited client computes `A_new`, `b_new` with the features it received, uploads the differences `A_new − A_old`,
    `b_new − b_old` and, the first time only, its class counts (eqs. 7, 8); the server's sums thus always hold every
    client's latest statistics.  The wrapped algorithm trains the features through a softmax head of its own, which is
    thrown away: what is deployed is the ridge classifier on the trained features.
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = FedAvg()
    ridge: Ridge = "gcv"
    normalize: Normalize = "gamma"
    alpha: float = 0.8
    products: Precision = "float32"
    wire: Precision = "float32"

    def __post_init__(self) -> None:
        trains = training_of(self.inner) is not None and not self.inner.personal
        require(trains, f"Fed3R-FT needs an algorithm that trains one model for all. Got {type(self.inner).__name__}.")
        private = any(isinstance(one, Private) for one in layers(self.inner))
        require(not private, "Fed3R-FT cannot wrap Private: nothing would protect the statistics beside it.")
        check_ridge(self.ridge, "Fed3R-FT")

    @property
    def uplink(self) -> Mapping[str, Role]:
        """The wrapped algorithm's, and the statistics."""
        return {**self.inner.uplink, "ridge": Role.SUM}

    def server_init(self, task: Task) -> Tree:
        """Return the wrapped algorithm's state and empty statistics."""
        empty = RidgeStatistics.zeros(head_width(task.params()), task.num_classes)
        return self.inner.server_init(task) | to_tree(empty)

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the wrapped message; the sums stay with the server."""
        return self.inner.broadcast(task, _inner(server), rng)

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Upload what the wrapped algorithm does, and the change of the client's statistics as it will arrive."""
        turns: list[Turn] = []

        def noted(turn: Turn) -> Turn:
            turns.append(turn)
            return turn

        up, new = yield from changed(self.inner.visit(task, down, _inner(state), data, rng), noted)
        now = to_tree(collect(task, turns[0].start, data, self.products))
        before = {key: leaf for key, leaf in state.items() if key.startswith("ridge.")}
        change = subtract(now, before) if before else now
        sent = to_tree(decode(encode(from_tree(change), self.wire, "packed"), task.num_classes, "packed"))
        flops = up.flops + collecting_flops(task, len(now["ridge.gram"]), len(data))
        return replace(up, sums=up.sums | change, flops=flops), new | (add(before, sent) if before else sent)

    def encode(self, sums: Tree) -> Tree:
        """Return the statistics packed, the rest as the wrapped algorithm sends it."""
        return self.inner.encode(_inner(sums)) | nest("ridge", encode(from_tree(sums), self.wire, "packed"))

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Invert `encode`."""
        return self.inner.decode(task, _inner(wire)) | to_tree(decode(pick("ridge", wire), task.num_classes, "packed"))

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Take the wrapped step; sums stay sums."""
        stepped = self.inner.server_step(task, _inner(server), replace(cohort, sums=_inner(cohort.sums)))
        sums = {key: leaf for key, leaf in cohort.sums.items() if key.startswith("ridge.")}
        return stepped | add({key: server[key] for key in sums}, sums)

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the trained features under the ridge classifier of everyone's latest statistics."""
        params, sums = self.inner.model(task, _inner(server)), from_tree(server)
        return with_head(params, sums.solve(self._lambda(sums), self.normalize, self.alpha))

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Return the wrapped algorithm's exhibits, and λ where it was chosen."""
        inner = self.inner.exhibits(task, _inner(server), observed)
        return inner if self.ridge != "gcv" else (*inner, *ridge_exhibits(self._lambda(from_tree(server))))

    def _lambda(self, statistics: RidgeStatistics) -> float:
        return chosen_ridge(self.ridge, statistics, intercept=False)

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return None: nothing protects the statistics."""
        return None


def _inner(tree: Tree) -> Tree:
    return {key: leaf for key, leaf in tree.items() if not key.startswith("ridge.")}
