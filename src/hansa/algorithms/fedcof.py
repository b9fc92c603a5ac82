"""FedCOF: Goswami et al., Covariances for Free (2025): Fed3R's classifier from class means alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hansa.algorithms.statistics import Precision, class_sums, head_width, with_head
from hansa.contract import Algorithm
from hansa.errors import HansaWarning, require
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.ridge import Normalize, RidgeStatistics
from hansa.ridge.plausible import LONGEST
from hansa.task import ClientData, Task
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class FedCOF(Algorithm):
    """A ridge classifier whose Gram matrix is estimated: clients send the means of their classes, and counts.

    The means of a class on its K_c clients scatter as its samples do, the less so the more samples a mean is of:
    `Σ_c = 1/(K_c−1)·Σ_k n_kc (μ_kc − μ_c)(μ_kc − μ_c)ᵀ + γI`.  With `G = Σ_c (n_c − 1) Σ_c + N μμᵀ`, which leaves out
    the scatter between classes, `W = G⁻¹b`.  It needs samples of a class to be as alike on one client as on another,
    and every client's own means, so it cannot be summed in secret.  The mean of one sample is that sample's features,
    and a warning says so; with `least = 2` a client keeps such means to itself.
    """

    gamma: float | None = None  # None: the mean variance of a feature within classes
    normalize: Normalize = "column"
    alpha: float = 0.8
    least: int = 1  # samples of a class that a client must have to send its mean
    products: Precision = "float32"

    uplink: ClassVar[Mapping[str, Role]] = {"means": Role.EACH, "counts": Role.EACH}

    def __post_init__(self) -> None:
        good = self.gamma is None or self.gamma > 0
        require(good, f"The 'gamma' (shrinkage γ) of FedCOF must be a number > 0. Got {self.gamma}.")
        require(self.least >= 1, f"The 'least' samples of a class of FedCOF must be ≥ 1. Got {self.least}.")

    @property
    def one_shot(self) -> bool:
        """The features are fixed, so a second visit tells nothing."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Know nobody."""
        require(not task.real, "FedCOF is for classes, and the targets are real numbers: use 'fed3r'.")
        head_width(task.params())
        return {}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return nothing: the features are fixed."""
        return {}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Return the client's class means, and how many samples each is of."""
        moment, counts = class_sums(task, data, self.products)
        told = torch.where(counts >= self.least, counts, 0.0)
        means = torch.where(told > 0, moment / counts.clamp(min=1), 0.0).T
        flops = len(data) * (task.features_flops + len(moment))
        return Update({"means": means, "counts": told}, len(data), flops=flops), state

    def encode(self, sums: Tree) -> Tree:
        """Encode only the classes told, their means in float32."""
        classes = sums["counts"].nonzero().flatten()
        means, counts = sums["means"][classes].float(), sums["counts"][classes].int()
        return {"means": means, "counts": counts, "classes": classes.int()}

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Restore every class, with zeros for those that the client did not tell."""
        rows, classes = wire["means"].double(), wire["classes"].long()
        within = bool(((classes >= 0) & (classes < task.num_classes)).all())
        require(rows.ndim == 2 and within, f"Means must be rows of class numbers below {task.num_classes}. Got others.")
        means, counts = rows.new_zeros(task.num_classes, rows.shape[1]), rows.new_zeros(task.num_classes)
        means[classes], counts[classes] = rows, wire["counts"].double()
        return {"means": means, "counts": counts}

    def check(self, task: Task, up: Update) -> str:
        """Return why no client can have these means."""
        counts = up.sums["counts"]
        if (counts < 0).any() or (counts != counts.round()).any() or float(counts.sum()) > up.weight:
            return f"The upload's class counts must be whole numbers ≥ 0, and {up.weight:g} at most in sum."
        short = float(up.sums["means"].norm(dim=1).max()) <= LONGEST
        return "" if short else f"The upload's means are longer than {LONGEST:g}, which no features are."

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Keep every client's means of the classes that it told."""
        single = sum(int((own["counts"] == 1).sum()) for own in cohort.each.values())
        if single:
            says = f"{single} of the class means that clients sent are of one sample, whose features the server now has"
            warnings.warn(f"{says}: set least = 2 in FedCOF to leave such means out.", HansaWarning, stacklevel=2)
        means = {f"means.{client}": own["means"][own["counts"] > 0] for client, own in cohort.each.items()}
        return server | means | {f"counts.{client}": own["counts"] for client, own in cohort.each.items()}

    def forget(self, task: Task, server: Tree, gone: Update) -> Tree:
        """Return what is known of the others."""
        left = {f"{group}.{client}" for client in gone.each for group in self.uplink}
        return {key: leaf for key, leaf in server.items() if key not in left}

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the ridge classifier of the estimated sums."""
        if not server:
            return task.params()
        statistics, degrees = estimated(server, task.num_classes)
        gamma = self.gamma or typical(statistics, degrees)
        return with_head(task.params(), statistics.solve(gamma * degrees, self.normalize, self.alpha))


def estimated(server: Tree, classes: int) -> tuple[RidgeStatistics, float]:
    """Return G without γ, b and the class counts, and Σ_c (n_c − 1), of which γ is taken."""
    counts = torch.stack([one for _, one in sorted(pick("counts", server).items())])
    rows = torch.cat([one for _, one in sorted(pick("means", server).items())])
    held, totals = counts > 0, counts.sum(0)
    own, labels = counts[held], held.nonzero()[:, 1]
    moment = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows * own[:, None])
    means, on = moment / totals.clamp(min=1)[:, None], held.sum(0)
    degrees = (totals - 1).clamp(min=0)
    weights = own * (degrees / (on - 1).clamp(min=1))[labels]  # where a class is on one client its means do not scatter
    apart = (rows - means[labels]) * weights.sqrt()[:, None]
    middle = moment.sum(0) / totals.sum().clamp(min=1).sqrt()  # √N·μ
    gram = apart.T @ apart + torch.outer(middle, middle)
    return RidgeStatistics(gram, moment.T, totals), max(float(degrees.sum()), 1.0)


def typical(statistics: RidgeStatistics, degrees: float) -> float:
    """Return the mean variance of a feature within classes, by tr Σ/d; 1 where no class is on two clients."""
    middle = statistics.moment.sum(1)
    scatter = float(statistics.gram.trace() - middle @ middle / max(statistics.n, 1.0))
    found = scatter > 1e-12 * float(statistics.gram.trace())  # beyond rounding
    return scatter / (degrees * statistics.dimension) if found else 1.0
