"""Calibration: a classifier's logits brought to the scale at which softmax means something, in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hansa.algorithms.statistics import BLOCK, head_width
from hansa.errors import require
from hansa.lazy import F, Tensor, torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.judging import counts_by_class, kinds
from hansa.training.visits import AddsUp, doubles
from hansa.tree import Tree

GRID = tuple(10 ** (place / 10) for place in range(-30, 31))  # temperatures that are tried


@dataclass(frozen=True)
class Calibrate(AddsUp):
    """Divides the head by `T* = argmin_T Σ_k Σ_i CE(logits(x_i)/T, y_i)`, the temperature of least training loss.

    A closed form such as Fed3R says which class is likeliest, not how sure it is: with unit columns the logits follow
    the scale of the features.  A fixed temperature (the paper's 0.1) suits one backbone; here every client sends its
    loss at 61 temperatures from 0.001 to 1000, they add up, and the head takes the best one in.  No prediction changes,
    and later phases train at temperature 1.

    Beside the losses travel `tr A_k = Σ_i ‖z_i‖²` and n_k, by which later phases know rates that fit these features
    and this head (`rates`), and how many samples every class has, by which a guard weighs what it hears of each
    (`shares`): whatever the split, they are the same.
    """

    uplink: ClassVar[Mapping[str, Role]] = {"losses": Role.SUM, "lengths": Role.SUM, "counts": Role.SUM}

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Return the same shape for everyone."""
        return doubles(_sizes(task))

    def server_init(self, task: Task) -> Tree:
        """Start without losses, lengths and counts."""
        head_width(task.params())  # refuses a head that is not linear
        return {key: torch.zeros(size, dtype=torch.float64) for key, size in _sizes(task).items()}

    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return losses at all temperatures, the features' squared lengths and the classes' counts, of some samples."""
        params, losses, squares = task.params(), torch.zeros(len(GRID), dtype=torch.float64), 0.0
        for first in range(0, len(data), BLOCK):
            with torch.no_grad():
                z = task.features(params, data.x[first : first + BLOCK])
                losses += _losses(task.head(params, z), data.y[first : first + BLOCK]).cpu()
            squares += float(z.double().square().sum())
        lengths = torch.tensor([squares, len(data)], dtype=torch.float64)
        return {"losses": losses, "lengths": lengths, "counts": counts_by_class(task, data)}

    def operations(self, task: Task, samples: int) -> float:
        """Count one forward pass, the softmax at every temperature, and the lengths."""
        each = 4.0 * len(GRID) * task.num_classes + 2.0 * head_width(task.params())
        return samples * (task.features_flops + task.head_flops + each)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Add the sums."""
        finite = bool(cohort.sums["losses"].isfinite().all())
        require(finite, "The losses at some temperatures are not finite: the classifier says nothing of some samples.")
        return super().server_step(task, server, cohort)

    def model(self, task: Task, server: Tree) -> Tree:
        """Divide the head by the best temperature; leave it as it came before any client was heard."""
        params, best = task.params(), _temperature(server)
        return params | {key: leaf / best for key, leaf in params.items() if key.startswith("head.")}

    def rates(self, task: Task, server: Tree) -> tuple[float, ...]:
        """Return the largest rate of the head, `n/tr A`, and a factor on the features', `(1/3)/mean_c‖W^c − W̄‖²`.

        At the first a step on a sample moves its logits by no more than its error, however long z is.  By the second
        features move as far as under a head that was just initialised, whose columns have squared length 1/3; a head
        of shorter columns is no reason to go faster.
        """
        squares, samples = server.get("lengths", torch.zeros(2)).tolist()
        if not squares:
            return ()
        head = self.model(task, server)["head.weight"].double()
        length = float((head - head.mean(0)).square().sum(1).mean())
        return samples / squares, min(1.0, 1 / (3 * length)) if length else 1.0

    def shares(self, task: Task, server: Tree) -> tuple[float, ...]:
        """Return the classes' shares of all samples."""
        counts = server.get("counts", torch.zeros(1))
        return tuple((counts / counts.sum()).tolist()) if counts.any() else ()

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Show the temperature and the rates that were found."""
        found = self.rates(task, server)
        if not found:
            return ()
        best, (largest, factor) = _temperature(server), found
        rates = {"head, at most": [largest], "features, times their lr": [factor]}
        return (
            Exhibit("temperature", "curve", {"T": [best]}, "Of least training loss, taken into the head."),
            Exhibit("rates from statistics", "curve", rates, 'Of later phases with rates = "statistics".'),
        )


def _sizes(task: Task) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what a client sends."""
    return {"losses": (len(GRID),), "lengths": (2,), "counts": (kinds(task),)}


def _temperature(server: Tree) -> float:
    """Return the temperature of least loss; 1 before any client was heard."""
    losses = server["losses"]
    return GRID[int(losses.argmin())] if bool(losses.any()) else 1.0


def _losses(logits: Tensor, y: Tensor) -> Tensor:
    """Return the summed cross-entropy at every temperature of the grid."""
    double = logits.double()
    return torch.stack([F.cross_entropy(double / temperature, y, reduction="sum") for temperature in GRID])
