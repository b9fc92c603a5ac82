"""WIMA: Caldarola et al., Window-based Model Averaging Improves Generalization in Heterogeneous FL (2023)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Update
from hansa.task import Task
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, add, nest, pick, scale


@dataclass(frozen=True)
class Wima(Wrapper):
    """Deploys the mean of the server's models of the last W rounds: `w_WIMA = 1/W·Σ_{τ=t−W+1..t} w^τ` (eq. 3).

    Wraps any algorithm whose server has a model and changes nothing of its training or messages; fewer rounds than W
    are averaged as they are.  The server keeps W models, or with `block` b the W/b sums of b successive ones, and the
    window then slides in blocks: it spans between W − b + 1 and W rounds.  W = 1 is the wrapped algorithm.
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = FedAvg()
    window: int = 100
    block: int = 1

    def __post_init__(self) -> None:
        require(self.window >= 1, f"The 'window' of WIMA must be a whole number ≥ 1. Got {self.window}.")
        fits = self.block >= 1 and self.window % self.block == 0
        require(fits, f"The 'block' of WIMA must be ≥ 1 and divide the window {self.window}. Got {self.block}.")

    def server_init(self, task: Task) -> Tree:
        """Return the wrapped state and an empty window."""
        inner = self.inner.server_init(task)
        has_model = bool(pick("model", inner))
        require(has_model, f"WIMA averages the server's models, and {type(self.inner).__name__} keeps none.")
        return nest("inner", inner) | {"taken": torch.tensor(0)}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the wrapped algorithm's message: clients train from the latest model, not from the mean."""
        return self.inner.broadcast(task, pick("inner", server), rng)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Take the wrapped step; its model replaces the oldest block or joins the newest."""
        stepped, taken = self.inner.server_step(task, pick("inner", server), cohort), int(server["taken"])
        place, sofar = divmod(taken, self.block)
        row = f"window.{place % (self.window // self.block)}"
        model = pick("model", stepped)
        newest = add(pick(row, server), model) if sofar else model
        window = {key: leaf for key, leaf in server.items() if key.startswith("window.")}
        return nest("inner", stepped) | window | nest(row, newest) | {"taken": torch.tensor(taken + 1)}

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the wrapped algorithm's model, made of the mean model."""
        return self.inner.model(task, self._averaged(server))

    def serve(self, task: Task, server: Tree) -> Tree:
        """Return what the wrapped algorithm would serve of the mean model."""
        return self.inner.serve(task, self._averaged(server))

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Return the wrapped algorithm's exhibits, of the mean model."""
        return self.inner.exhibits(task, self._averaged(server), observed)

    def _averaged(self, server: Tree) -> Tree:
        averaged = pick("inner", server)
        if taken := int(server["taken"]):
            blocks = min(-(-taken // self.block), self.window // self.block)
            models = (blocks - 1) * self.block + (taken - 1) % self.block + 1
            total = functools.reduce(add, (pick(f"window.{row}", server) for row in range(blocks)))
            averaged = averaged | nest("model", scale(total, 1 / models) if models > 1 else total)
        return averaged
