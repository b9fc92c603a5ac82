"""FedNCM: Legate et al., Guiding the Last Layer in Federated Learning with Pre-Trained Models (2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from hansa.algorithms.statistics import NEVER, Precision, class_sums, head_width, with_head
from hansa.lazy import Tensor, torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.visits import AddsUp
from hansa.tree import Tree, subtract


@dataclass(frozen=True)
class FedNCM(AddsUp):
    """The nearest class mean `μ_c = Σ_{y=c} z / g_c`, from class sums and counts that add up over clients.

    `cosine` compares directions: `W^c = μ_c/‖μ_c‖`.  `euclidean` is the nearest mean itself, which is linear too:
    `−½‖z−μ_c‖²` differs from `μ_cᵀz − ½‖μ_c‖²` by what all classes share, and a class nobody holds is never predicted;
    in `cosine` its column is zero, as in Fed3R.
    """

    distance: Literal["cosine", "euclidean"] = "cosine"
    products: Precision = "float32"

    uplink: ClassVar[Mapping[str, Role]] = {"moment": Role.SUM, "counts": Role.SUM}

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Return shapes that depend on the classes a client holds."""
        present = len(torch.unique(data.y))
        return {
            "moment": torch.empty(head_width(task.params()), present, device="meta"),
            "counts": torch.empty(present, dtype=torch.int32, device="meta"),
            "classes": torch.empty(present, dtype=torch.int32, device="meta"),
        }

    def server_init(self, task: Task) -> Tree:
        """Start without samples."""
        shape = (head_width(task.params()), task.num_classes)
        return {"moment": torch.zeros(shape).double(), "counts": torch.zeros(task.num_classes).double()}

    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the class sums and counts of some samples."""
        moment, counts = class_sums(task, data, self.products)
        return {"moment": moment, "counts": counts}

    def operations(self, task: Task, samples: int) -> float:
        """Count φ and an addition for every feature."""
        return samples * (task.features_flops + head_width(task.params()))

    def encode(self, sums: Tree) -> Tree:
        """Encode only the classes present, their sums in float32."""
        classes = sums["counts"].nonzero().flatten()
        moment = sums["moment"][:, classes].float()
        return {"moment": moment, "counts": sums["counts"][classes].int(), "classes": classes.int()}

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Restore every class."""
        classes = wire["classes"].long()
        moment = torch.zeros(len(wire["moment"]), task.num_classes).double()
        moment[:, classes] = wire["moment"].double()
        counts = torch.zeros(task.num_classes).double()
        counts[classes] = wire["counts"].double()
        return {"moment": moment, "counts": counts}

    def forget(self, task: Task, server: Tree, gone: Update) -> Tree:
        """Return the sums without some clients."""
        return subtract(server, gone.sums)

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the means as a linear head."""
        return with_head(task.params(), self._weights(server["moment"], server["counts"]))

    def _weights(self, moment: Tensor, counts: Tensor) -> Tensor:
        seen = counts > 0
        means = moment / counts.clamp(min=1)
        if self.distance == "cosine":
            directions: Tensor = means / means.norm(dim=0).clamp(min=1e-12)
            return directions
        offsets = torch.where(seen, -means.square().sum(0) / 2, NEVER)
        return torch.cat([means, offsets[None]])
