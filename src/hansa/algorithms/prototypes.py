"""Prototypes in place of weights: what the algorithms have in common whose clients share class means."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from hansa.algorithms.statistics import head_width, with_head
from hansa.errors import require
from hansa.lazy import F, Tensor, torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.contrast import NONE, class_means
from hansa.training.local import LocalTraining, Turn
from hansa.training.visits import TrainsLocally, Visit
from hansa.tree import Tree, made, nest, pick

SHOWN = 60  # clients by name at most in a heat map, which has as many rows in a report
# Adam as FedPCL has it (section 5.1); every visit begins it anew, as the authors' program does.
ADAM = LocalTraining(lr=1e-3, batch_size=32, weight_decay=1e-4, optimiser="adam")


class SharesPrototypes(TrainsLocally):
    """Clients own their network, and send the mean of what its features make of their samples, class by class.

    `C_i^(j) = 1/|D_ij|·Σ_{x ∈ D_ij} z(x)` (FedPCL, eq. 5).  Only classes that a client has travel, with their numbers
    of samples.  The server keeps every client's last ones, so who is not visited in a round still counts.
    """

    __slots__ = ()

    local: LocalTraining

    uplink: ClassVar[Mapping[str, Role]] = {"prototypes": Role.EACH, "counts": Role.EACH}

    @property
    def training(self) -> LocalTraining:
        """The client's local training."""
        return self.local

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    @abstractmethod
    def turn(self, task: Task, down: Tree, start: Tree) -> Turn | None:
        """Return how a client trains; None where there is nothing to train towards yet."""

    def own(self, params: Tree) -> Tree:
        """Return the leaves that stay on the client from visit to visit."""
        return self.local.moving(params)

    def embed(self, task: Task, params: Tree, x: Tensor) -> Tensor:
        """Return z(x)."""
        return task.features(params, x)

    def prototypes(self, task: Task, params: Tree, data: ClientData) -> tuple[Tensor, Tensor]:
        """Return a client's prototypes (C × k) and how many samples each is the mean of."""
        with torch.no_grad():
            return class_means(self.embed(task, params, data.x), data.y, task.num_classes)

    def server_init(self, task: Task) -> Tree:
        """Know nobody."""
        require_linear_head(task)
        return {}

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return the client's own leaves, which start alike everywhere."""
        return nest("own", self.own(task.params()))

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Train, if there is something to train towards, and send the prototypes of what came of it."""
        params, flops = task.params() | pick("own", state) | pick("model", down), len(data) * task.features_flops
        turn = self.turn(task, down, params)
        if turn is not None:
            trained = yield turn
            params, flops = params | made(self.local.moving(trained.params)), flops + trained.flops
        means, counts = self.prototypes(task, params, data)
        up = Update({"prototypes": means, "counts": counts}, float(len(data)), flops=flops)
        return up, nest("own", self.own(params))

    def encode(self, sums: Tree) -> Tree:
        """Encode only the classes present."""
        there = sums["counts"].nonzero().flatten()
        return {"prototypes": sums["prototypes"][there], "counts": sums["counts"][there].int(), "classes": there.int()}

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Restore every class, with zeros for those that the client lacks."""
        rows, classes, all_of = wire["prototypes"], wire["classes"].long(), task.num_classes
        good = rows.ndim == 2 and all(0 <= number < all_of for number in classes.tolist())
        require(good, f"Prototypes must be rows of class numbers below {all_of}. Got others.")
        means = rows.new_zeros(all_of, rows.shape[1]).index_copy_(0, classes, rows)
        counts = rows.new_zeros(all_of).index_copy_(0, classes, wire["counts"].to(rows.dtype))
        return {"prototypes": means, "counts": counts}

    def check(self, task: Task, up: Update) -> str:
        """Refuse numbers of samples that the client cannot have."""
        counts = up.sums["counts"].tolist()
        good = min(counts) >= 0 and sum(counts) <= up.weight
        return "" if good else f"The upload's 'counts' must be ≥ 0, and {up.weight:g} at most in sum."

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Keep every client's last prototypes."""
        kept = {f"{group}.{client}": own[group] for client, own in cohort.each.items() for group in self.uplink}
        return server | kept

    def model(self, task: Task, server: Tree) -> Tree:
        """Return what was there before: the server learns no weights."""
        return task.params()

    def observe(self, task: Task, model: Tree, data: ClientData) -> Tree:
        """Return how alike a client's prototypes are to those of one extractor's features alone, where it has several.

        Extractors × classes: the cosine of `C_i^(j)` from all columns with that from one's alone, the others being 0.
        """
        spans = task.columns()
        if len(spans) < 2:
            return {}
        whole, counts = self.prototypes(task, model, data)
        alone = [self.prototypes(task, model, _only(data, columns))[0] for columns in spans.values()]
        return {"likeness": torch.stack([F.cosine_similarity(one, whole) for one in alone]), "held": counts > 0}

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Show what every extractor contributes to prototypes: by class, the mean over clients, and by client."""
        if not any(observed.values()):
            return ()
        held = torch.stack([own["held"] for own in observed.values()])[:, None].double()
        likeness = torch.stack([own["likeness"] for own in observed.values()]) * held  # clients × extractors × classes
        classes = [f"class {number}" for number in range(task.num_classes)]
        by_class = _contribution(task, "class", classes, likeness.sum(0).T / held.sum(0).T)  # 0/0 where nobody has it
        if len(observed) > SHOWN:
            return (by_class,)
        return by_class, _contribution(task, "client", list(observed), likeness.sum(2) / held.sum(2))

    def outputs(self, task: Task, model: Tree, x: Tensor) -> Tensor:
        """Return logits; a class without a prototype has none."""
        out = task.head(model, self.embed(task, model, x))
        return out.masked_fill(out <= NONE / 10, -torch.inf)


def _contribution(task: Task, what: str, names: list[str], cells: Tensor) -> Exhibit:
    """Return the heat map of what extractors (columns) contribute to the prototypes of classes or clients (rows)."""
    over = {"class": "clients", "client": "classes"}[what]
    note = f"Cosine of prototypes from one extractor's features alone with those from all, mean over {over}."
    columns = {name: cells[:, place].tolist() for place, name in enumerate(task.columns())}
    return Exhibit(f"contribution of extractors to prototypes, by {what}", "heat map", {what: names, **columns}, note)


def _only(data: ClientData, columns: slice) -> ClientData:
    """Return samples with some columns alone, the others being 0."""
    x = torch.zeros_like(data.x)
    x[:, columns] = data.x[:, columns]
    return ClientData(x, data.y)


def collected(server: Tree, clients: list[str] | None = None) -> tuple[Tensor, Tensor]:
    """Return clients' prototypes (m × C × k) and counts (m × C), of all or some, in an order that tells no name.

    Whoever receives them cannot tell whose a set is: they are sorted by what they hold.
    """
    names = known_clients(server) if clients is None else clients
    prototypes = torch.stack([server[f"prototypes.{name}"] for name in names])
    counts = torch.stack([server[f"counts.{name}"] for name in names])
    order = prototypes.flatten(1).sum(1).argsort(stable=True)
    return prototypes[order], counts[order]


def known_clients(server: Tree) -> list[str]:
    """Return the names of those who have sent prototypes."""
    return sorted(pick("counts", server))


def global_prototypes(prototypes: Tensor, counts: Tensor) -> Tensor:
    """Return `Σ_i |D_ij|/N_j·C_i^(j)` for every class j; a row of zeros where nobody has the class.

    Eq. 6 of FedPCL divides by the number of clients once more, which only rescales.
    """
    return (prototypes * counts[..., None]).sum(0) / counts.sum(0).clamp(min=1)[:, None]


def samples_of(prototypes: Tensor, counts: Tensor) -> ClientData:
    """Return all prototypes as samples (n × k) with their classes, for a server that trains on them."""
    held = counts > 0
    return ClientData(prototypes[held], held.nonzero()[:, 1])


def with_prototypes(params: Tree, weights: Tensor, offsets: Tensor, known: Tensor) -> Tree:
    """Return parameters whose head compares with prototypes: `weights·z + offset`, never a class without one."""
    return with_head(params, torch.cat([weights.T, torch.where(known, offsets, NONE)[None]]))


def require_linear_head(task: Task) -> None:
    """Refuse a task without classes, and a head that is not one linear layer with a bias."""
    good = task.num_classes > 0 and head_width(task.params()) > 0 and "head.bias" in task.params()
    says = "This algorithm needs a head with a bias, and this model's head has none"
    require(good, f"{says}: use 'mlp', or 'linear' without bias = false.")
