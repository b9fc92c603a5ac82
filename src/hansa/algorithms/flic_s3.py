"""FLIC-S3, linear regression on Gaussian features: Algorithm S3 of Rakotomamonjy et al. (2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hansa.algorithms.statistics import head_width
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.lazy import F, Tensor, torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.tree import Tree


@dataclass(frozen=True)
class FlicS3(Algorithm):
    """Clients whiten their inputs to a common space, in which they share a linear map A and have a regressor β_i each.

    `φ̂_i(x) = D_i^{−½}·P_iᵀ·(x − m_i)` with the `width` k largest eigenvalues of the client's covariance `P_i·D_i·P_iᵀ`;
    the largest entry of an eigenvector is positive, so that equal covariances give equal signs.  In the first round a
    client sends `Z_i = mean ‖y‖²·φ̂·φ̂ᵀ`, and A⁰ are the `rank` d first eigenvectors of their mean.  In every later one
    `β_i = argmin Σ (y − βᵀ·Aᵀ·φ̂)²` and `A_i = A + η·mean (y − β_iᵀ·Aᵀ·φ̂)·φ̂·β_iᵀ`, η being `lr`, and the server takes an
    orthonormal basis of the mean A_i (QR).  Classes count as one-hot targets.  The model must be `linear`: a client
    deploys `x ↦ β_iᵀ·Aᵀ·φ̂_i(x)`, whose β_i is fitted when it is deployed.
    """

    width: int = 5
    rank: int = 2
    lr: float = 0.1

    uplink: ClassVar[Mapping[str, Role]] = {"map": Role.STEP, "second": Role.SUM}

    def __post_init__(self) -> None:
        fits = 1 <= self.rank <= self.width
        require(fits, f"The 'rank' of FLIC-S3 must lie between 1 and 'width' = {self.width}. Got {self.rank}.")
        require(self.lr > 0, f"The 'lr' of FLIC-S3 must be a number > 0. Got {self.lr}.")

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Return no map yet."""
        plain = task.features_flops == 0
        require(plain and head_width(task.params()) > 0, "FLIC-S3 is linear regression: use the model 'linear'.")
        return {}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the map, once there is one."""
        return server

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Upload the moments that the map starts from, or the client's step on it."""
        z, y = self._whitened(data, data.x), _targets(task, data)
        if "map" not in down:
            return Update({"second": (z * y.square().sum(1, keepdim=True)).T @ z / len(z)}), state
        shared = down["map"].double()
        beta = _regressor(z @ shared, y)
        step = self.lr * z.T @ (y - z @ shared @ beta) @ beta.T / len(z)
        return Update({"map": step.to(down["map"].dtype)}), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Return the eigenvectors of the mean moments, or an orthonormal basis of the mean map."""
        mean = cohort.mean()
        if "second" in mean:
            return {"map": torch.linalg.eigh(mean["second"])[1].flip(1)[:, : self.rank].contiguous()}
        return {"map": torch.linalg.qr(server["map"] + mean["map"])[0]}

    def model(self, task: Task, server: Tree) -> Tree:
        """Return what everybody starts from: the inputs of clients have nothing in common."""
        return task.params()

    def serve(self, task: Task, server: Tree) -> Tree:
        """Return the map."""
        return server

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the whitening, the map and the client's regressor as one linear model."""
        params = task.params()
        if "map" not in served:
            return params
        mean, axes = self._axes(data)
        through = axes @ served["map"].double()
        x = data.x.flatten(1).double()
        weight = through @ _regressor((x - mean) @ through, _targets(task, data))
        found = {"head.weight": weight.T, "head.bias": -mean @ weight}
        return params | {key: leaf.to(task.number_format) for key, leaf in found.items() if key in params}

    def _axes(self, data: ClientData) -> tuple[Tensor, Tensor]:
        """Return the mean of a client's inputs, and the columns `D^{−½}`-scaled of its first eigenvectors."""
        x = data.x.flatten(1).double()
        enough = x.shape[1] >= self.width
        require(enough, f"FLIC-S3 needs inputs of at least 'width' = {self.width} columns. Got {x.shape[1]}.")
        values, vectors = torch.linalg.eigh(torch.cov(x.T).reshape(x.shape[1], -1))
        values, vectors = values.flip(0)[: self.width], vectors.flip(1)[:, : self.width]
        signs = vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
        floor = values[0].clamp(min=1e-300) * 1e-12  # a direction in which nothing varies says nothing
        return x.mean(0), vectors * signs * torch.where(values > floor, values.clamp(min=1e-300).rsqrt(), 0.0)

    def _whitened(self, data: ClientData, x: Tensor) -> Tensor:
        mean, axes = self._axes(data)
        return (x.flatten(1).double() - mean) @ axes


def _targets(task: Task, data: ClientData) -> Tensor:
    return data.y.double() if task.real else F.one_hot(data.y, task.outputs).double()


def _regressor(z: Tensor, y: Tensor) -> Tensor:
    """Return the least-squares solution of least length."""
    found: Tensor = torch.linalg.pinv(z) @ y
    return found
