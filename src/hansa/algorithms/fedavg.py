"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import Task
from hansa.training.averaging import Averages, Weights
from hansa.training.local import LocalTraining, Turn
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class FedAvg(Averages):
    """Clients train from the broadcast model for E epochs; the server moves by the weighted mean displacement.

    `Δ = Σ_k p_k (w_k − w) / Σ_k p_k` with p_k = n_k, the client's samples, or 1 where `weights` are `uniform`; then the
    server's optimiser steps along Δ: plain SGD with rate 1 is FedAvg, momentum 0.9 is FedAvgM, Adam and Yogi are
    FedAdam and FedYogi.  Only leaves that train travel.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    weights: Weights = "samples"

    def problem(self, task: Task, down: Tree) -> Turn:
        """Start from the broadcast model."""
        return Turn(self.local, task, task.params() | pick("model", down))
