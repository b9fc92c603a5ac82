"""ψ: what a short training on every client tells of its data (Silvi et al., FedSeq, III-B), for superclients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from hansa.algorithms.task2vec import Probe, check_probe, task2vec
from hansa.errors import HansaError, require
from hansa.io.registry import Piece
from hansa.lazy import Tensor, torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Trained, Turn
from hansa.training.visits import TrainsLocally, Visit
from hansa.tree import Tree, nest, pick

Estimator = Literal["clf", "conf", "task2vec", "labels"]
KINDS = {"clf": "vector", "conf": "distribution", "task2vec": "positive", "labels": "distribution"}
PUBLIC = (
    "the estimator 'conf' judges models on public samples, and there are none: set data.test.public to a number of "
    "samples of each class"
)
VARIANCE = 0.9  # the share that principal components keep


@dataclass(frozen=True)
class Describe(TrainsLocally):
    """Every client trains the same random model for some epochs, and what comes of it describes the client.

    `clf`: the classifier's weights; over all clients each is standardised, and principal components of 90 % of the
    variance are kept.  `conf`: the model, which the server judges on public samples (`data.test.public`), by the mean
    probability of the true class, class by class; the softmax of these is a distribution over classes (eq. 2).
    `task2vec`: a frozen pre-trained `probe`, whose head alone is fitted on the client's samples; the diagonal of the
    Fisher information of the probe's weights, averaged by filter, describes the client (eq. 3).  It is estimated on
    `fisher_samples` of the client's samples, the probe's inputs being those that the model trains on.
    `labels`: the true histogram of labels, which no real client would send: an oracle, and on record as one.

    Later phases start from the model as it was before, and orchestrations find the descriptions.
    """

    estimator: Estimator = "clf"
    local: LocalTraining = LocalTraining(epochs=10)
    probe: Annotated[Probe | None, Piece("extractor")] = None
    fisher_samples: int = 32

    uplink: ClassVar[Mapping[str, Role]] = {"description": Role.EACH}

    def __post_init__(self) -> None:
        needs = self.estimator == "task2vec"
        says = "The estimator 'task2vec' needs a 'probe', a frozen pre-trained network such as 'efficientnet-lite'"
        require(self.probe is not None or not needs, f"{says}.")
        require(self.probe is None or needs, f"A 'probe' belongs to 'task2vec'. Got the estimator '{self.estimator}'.")
        good = self.fisher_samples >= 1
        require(good, f"The 'fisher_samples' of Describe must be a whole number ≥ 1. Got {self.fisher_samples}.")

    @property
    def one_shot(self) -> bool:
        """Once is enough."""
        return True

    @property
    def described_as(self) -> str:
        """A distribution over classes, or any vector."""
        return KINDS[self.estimator]

    @property
    def oracle(self) -> str:
        """The histogram of labels is what superclients must do without."""
        told = "Clients are described by their true label counts, which no client would send: an oracle for comparison."
        return told if self.estimator == "labels" else ""

    @property
    def training(self) -> LocalTraining:
        """The client's local training."""
        return self.local

    def server_init(self, task: Task) -> Tree:
        """Describe nobody yet; refuse a task in which the estimator has nothing to go by."""
        if self.estimator == "conf":
            _check_public(task)
        require(self.estimator == "clf" or task.num_classes > 0, "This estimator needs classes.")
        if self.probe is not None:
            check_probe(self.probe, task)
        return {}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the random model, the same for all; label counts and a probe need none."""
        return {} if self.estimator in ("labels", "task2vec") else nest("model", self.local.moving(_random(task)))

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Train the random model, and send of it what the estimator needs."""
        if self.estimator == "labels":
            counts = torch.bincount(data.y, minlength=task.num_classes).float()
            return Update({"description.labels": counts}, len(data)), state
        if self.probe is not None:
            found, flops = task2vec(self.probe, task, self.local, data, self.fisher_samples, rng.initial_seed())
            return Update({"description.fisher": found}, len(data), flops=flops), state
        trained = yield Turn(self.local, task, _random(task) | pick("model", down))
        return Update(nest("description", self._sent(trained)), len(data), flops=trained.flops), state

    def _sent(self, trained: Trained) -> Tree:
        moved = self.local.moving(trained.params)
        return moved if self.estimator == "conf" else {k: leaf for k, leaf in moved.items() if k.startswith("head.")}

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Make a vector of what a client sent, at once: the server never holds two clients' models."""
        sent = pick("description", wire)
        vector = self._vector(task, sent)
        require(bool(vector.isfinite().all()), "What describes a client must be finite. Got NaN or infinity.")
        return {"description.vector": vector}

    def _vector(self, task: Task, sent: Tree) -> Tensor:
        if self.estimator == "labels":
            return sent["labels"].double() / sent["labels"].sum()
        if self.estimator == "task2vec":
            return sent["fisher"].double()
        if self.estimator == "conf":
            return _confidence(task, _random(task) | sent)
        return torch.cat([sent[key].double().flatten() for key in sorted(sent)])  # whatever order they came in

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Keep every client's own."""
        return {**server, **{client: own["description.vector"] for client, own in cohort.each.items()}}

    def model(self, task: Task, server: Tree) -> Tree:
        """Return what was there before."""
        return task.params()

    def describes(self, server: Tree) -> Mapping[str, Tensor]:
        """Return the descriptions by client."""
        if self.estimator != "clf" or not server:
            return server
        rows = principal_components(torch.stack(list(server.values())))
        return dict(zip(server, rows, strict=True))


def _random(task: Task) -> Tree:
    """Return the seeded initial model, whatever earlier phases learnt."""
    return replace(task, start={}).params()


def _check_public(task: Task) -> None:
    """Refuse a public set that is not there, or that has no sample of some class."""
    public = task.public
    if public is None:
        raise HansaError(f"A phase cannot describe its clients: {PUBLIC}.")
    lacking = (torch.bincount(public.y, minlength=task.num_classes) == 0).nonzero().flatten().tolist()
    told = f"The public samples have none of class number {lacking[0] if lacking else ''}"
    require(not lacking, f"{told}, so the estimator 'conf' cannot tell who holds it: take some of every class.")


def _confidence(task: Task, model: Tree) -> Tensor:
    """Return the softmax over classes of the mean probability that a model gives to the true class (eq. 2)."""
    assert task.public is not None
    with torch.no_grad():
        chances = task.forward(model, task.public.x).double().softmax(1)
    y = task.public.y
    true = chances.gather(1, y[:, None])[:, 0]
    sums = torch.zeros(task.num_classes, dtype=torch.float64).index_add_(0, y, true)
    return (sums / torch.bincount(y, minlength=task.num_classes)).softmax(0)


def principal_components(rows: Tensor, share: float = VARIANCE) -> Tensor:
    """Return standardised rows in the fewest principal components that keep a share of the variance."""
    rows = rows.double() - rows.double().mean(0)
    deviation = rows.std(0, correction=0)
    rows = rows / torch.where(deviation > 0, deviation, 1.0)
    left, values, _ = torch.linalg.svd(rows, full_matrices=False)
    kept = values.square().cumsum(0) < share * values.square().sum() * (1 - 1e-12)
    count = min(int(kept.sum()) + 1, len(values))
    scores: Tensor = left[:, :count] * values[:count]
    return scores
