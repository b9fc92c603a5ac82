"""DeepAFL: deep analytic federated learning (ICLR 2026): layers of random features, each fitted in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hansa.algorithms.ridge_sums import SumsRidge
from hansa.algorithms.statistics import (
    Precision,
    Ridge,
    Upload,
    blocks,
    check_ridge,
    chosen_ridge,
    collecting_flops,
    from_tree,
    head_width,
    ridge_exhibits,
    to_tree,
    with_head,
)
from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.metrics.exhibits import Exhibit
from hansa.models import networks
from hansa.ridge import RidgeStatistics
from hansa.ridge.choose import gcv_of
from hansa.ridge.solve import System, decomposed
from hansa.task import ClientData, Task
from hansa.tree import Tree

LAYERS = "features.lift.layers"


@dataclass(frozen=True)
class DeepAFL(SumsRidge):
    """Fits the next layer of a model `deep-random-features`, and a head on it: one round of sums a layer, and exact.

    Layer t turns features Φ into `Φ + FΔ` with random features `F = relu(ΦP_t)`.  `W = (ΦᵀΦ + λI)⁻¹ΦᵀY` leaves the
    residual `R = Y − ΦW`, and Δ is to take as much of it as it can under that head: it minimises
    `‖R − FΔW‖² + γ‖Δ‖²`, so `FᵀFΔWWᵀ + γΔ = FᵀRWᵀ`, which the eigenvectors of `FᵀF` and of `WWᵀ` solve.  The new head
    is the ridge solution on `Φ + FΔ`.

    Clients send Fed3R's sums over `[Φ, F]`.  W and R enter linearly, so these sums tell W, Δ and the new head at once,
    where the paper asks every client twice a layer; and they add up, so that the layers are those of all samples in
    one place, on every split.  λ is chosen by cross-validation or given, and so is γ: chosen, it is the λ of a
    regression of R on F, times the mean square of W's singular values, which is its equal where these are all alike.
    """

    ridge: Ridge = "gcv"
    shrinkage: Ridge = "gcv"  # γ
    products: Precision = "float32"
    wire: Precision = "float32"
    upload: Upload = "packed"

    def __post_init__(self) -> None:
        check_ridge(self.ridge, "DeepAFL")
        check_ridge(self.shrinkage, "DeepAFL", "shrinkage")

    def width(self, task: Task) -> int:
        """Count the features of both kinds."""
        return 2 * head_width(task.params())

    def server_init(self, task: Task) -> Tree:
        """Return empty statistics, if there is a layer to fit."""
        place(task)
        return super().server_init(task)

    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return A, b and the class counts of some samples, of their features and the layer's random ones."""
        layer = task.module.get_submodule(f"{LAYERS}.{place(task)}")
        assert isinstance(layer, networks.Residual)
        sums = RidgeStatistics.zeros(self.width(task), task.num_classes)
        for phi, y in blocks(task, task.params(), data, self.multiplied_in):
            sums.update(torch.cat([phi, layer.hidden(phi)], 1), y)
        return to_tree(sums)

    def operations(self, task: Task, samples: int) -> float:
        """Count φ, the layer's random features, and the products of A."""
        width = self.width(task)
        return collecting_flops(task, width, samples) + samples * width**2 / 2

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the model with the layer fitted, and the head on it."""
        sums = from_tree(server)
        if not sums.n:
            return task.params()
        delta, after = self._fitted(sums)
        key = f"{LAYERS}.{place(task)}.delta"
        fitted = task.params() | {key: delta.to(task.params()[key].dtype)}
        return with_head(fitted, after.solve(chosen_ridge(self.ridge, after, intercept=False), "none"))

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Show the λ of the head where it was chosen."""
        sums = from_tree(server)
        if self.ridge != "gcv" or not sums.n:
            return ()
        return ridge_exhibits(chosen_ridge(self.ridge, self._fitted(sums)[1], intercept=False))

    def _fitted(self, sums: RidgeStatistics) -> tuple[Tensor, RidgeStatistics]:
        """Return Δ, and the sums over `Φ + FΔ = [Φ, F]·[I; Δ]`."""
        d = sums.dimension // 2
        before = RidgeStatistics(sums.gram[:d, :d], sums.moment[:d], sums.counts)
        head = before.solve(chosen_ridge(self.ridge, before, intercept=False), "none")
        rest = System(
            gram=sums.gram[d:, d:],
            moment=sums.moment[d:] - sums.gram[d:, :d] @ head,
            square=before.squared_error(head),
            n=sums.n,
        )
        delta = sandwiched(rest, head, self.shrinkage)
        both = torch.cat([torch.eye(d, dtype=torch.float64), delta])
        return delta, RidgeStatistics(both.T @ sums.gram @ both, both.T @ sums.moment, sums.counts)


def sandwiched(system: System, head: Tensor, shrinkage: Ridge) -> Tensor:
    """Return Δ of `FᵀFΔWWᵀ + γΔ = FᵀRWᵀ`, by `FᵀF = QΛQᵀ` and `W = USVᵀ`: `QᵀΔU = QᵀFᵀRVS/(ΛS² + γ)`."""
    values, vectors = decomposed(system.gram)
    left, singular, right = torch.linalg.svd(head, full_matrices=False)
    squares = singular.square()
    gamma = gcv_of(system).lam * float(squares.mean()) if isinstance(shrinkage, str) else shrinkage
    if not gamma:
        return torch.zeros_like(system.gram)  # a head of zeros passes nothing on
    turned = vectors.T @ system.moment @ right.T * singular / (values.clamp(min=0)[:, None] * squares + gamma)
    delta: Tensor = vectors @ turned @ left.T
    return delta


def place(task: Task) -> int:
    """Return the number of the first layer that no phase has fitted yet."""
    deltas = {key: leaf for key, leaf in task.params().items() if key.startswith(f"{LAYERS}.")}
    require(bool(deltas), "DeepAFL fits layers of random features: set model.name = 'deep-random-features'.")
    free = next((n for n in range(len(deltas)) if not deltas[f"{LAYERS}.{n}.delta"].any()), None)
    require(free is not None, f"All {len(deltas)} layers of the model are fitted: give it more, or leave out a phase.")
    assert free is not None
    return free
