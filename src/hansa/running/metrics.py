"""How good the deployed models are: on the global test set, client by client, and on classes a client lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from hansa.errors import HansaError
from hansa.task import ClientData
from hansa.tree import Tree

BLOCK = 2048  # samples judged at once
Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Scores:
    """One row a client that has test samples, in the clients' order; NaN where there is nothing to judge by."""

    client: Tensor  # its place in the federation
    samples: Tensor
    correct: Tensor
    loss: Tensor  # mean over its samples of classes its model can say
    balanced: Tensor  # mean over its test classes of the share recognised
    local: Tensor | None = None  # accuracy over its training classes, and over all others, where that was asked
    outside: Tensor | None = None

    def tree(self) -> Tree:
        """The columns by name."""
        columns = {name: getattr(self, name) for name in self.__slots__}
        return {name: column for name, column in columns.items() if column is not None}


@dataclass(frozen=True, slots=True)
class ClassScores:
    """One row a client: its model's accuracy over the classes it trains on, and over all others."""

    client: Tensor
    local: Tensor
    outside: Tensor

    def metrics(self) -> dict[str, float]:
        """Means over the clients; one that has no such class in the test set does not count."""
        means = {"local_class_accuracy": self.local.nanmean(), "outside_class_accuracy": self.outside.nanmean()}
        return finite({name: float(mean) for name, mean in means.items()})


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics by name, and the clients' scores where they have test sets of their own."""

    metrics: dict[str, float]
    scores: Scores | None = None

    def with_classes(self, found: ClassScores) -> Evaluation:
        """The same, with accuracies over local and outside classes beside the others."""
        metrics = {**self.metrics, **found.metrics()}
        if self.scores is None:
            return Evaluation(metrics)
        there = int(max(found.client.max(), self.scores.client.max())) + 1
        local, outside = (
            _at(found.client, column, there)[self.scores.client] for column in (found.local, found.outside)
        )
        return Evaluation(metrics, replace(self.scores, local=local, outside=outside))


def _at(client: Tensor, column: Tensor, count: int) -> Tensor:
    """A column by the clients' places; NaN where a client is not in it."""
    return torch.full((count,), torch.nan).double().index_put((client,), column)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without what is no number: a loss that overflowed, a mean over nothing.  No file may hold NaN or infinity."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


@torch.no_grad()
def answers(logits: Logits, data: ClientData) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Block by block: what the model says, the class it would choose, and the labels."""
    for first in range(0, len(data), BLOCK):
        out = logits(data.x[first : first + BLOCK])
        yield out, out.argmax(1), data.y[first : first + BLOCK]


def judge(logits: Logits, data: ClientData) -> tuple[Tensor, Tensor]:
    """For every sample: the predicted class and the cross-entropy, infinite where the model cannot say its class."""
    found = [(chosen, F.cross_entropy(out, y, reduction="none")) for out, chosen, y in answers(logits, data)]
    return torch.cat([chosen for chosen, _ in found]), torch.cat([loss for _, loss in found])


def mean_loss(loss: Tensor) -> float:
    """Over the samples of classes the model can say, since one that it cannot would outweigh all; NaN without any."""
    return float(loss[loss != torch.inf].double().mean())


def balanced(hits: Tensor, totals: Tensor) -> float:
    """The mean over classes of the share of their samples that was recognised; classes without samples do not count."""
    there = totals > 0
    return float((hits[there] / totals[there]).mean())


def by_class(y: Tensor, right: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Recognised and all samples of every class."""
    hits = torch.bincount(y[right], minlength=num_classes)
    return hits.double(), torch.bincount(y, minlength=num_classes).double()


def on_global_test(logits: Logits, test: ClientData, num_classes: int) -> dict[str, float]:
    """Accuracy, loss and balanced accuracy of one model for all."""
    predicted, loss = judge(logits, test)
    right = predicted == test.y
    return finite(
        {
            "test_accuracy": float(right.double().mean()),
            "test_loss": mean_loss(loss),
            "balanced_accuracy": balanced(*by_class(test.y, right, num_classes)),
        }
    )


def on_clients(tests: Iterator[tuple[int, ClientData, Logits]], num_classes: int) -> Evaluation:
    """Every client's model on its own test set; a class that its model cannot say counts as an error."""
    rows: list[tuple[int, int, int, float, float]] = []
    hits, totals = torch.zeros(num_classes).double(), torch.zeros(num_classes).double()
    for client, data, logits in tests:
        predicted, loss = judge(logits, data)
        right = predicted == data.y
        own = by_class(data.y, right, num_classes)
        rows.append((client, len(data), int(right.sum()), mean_loss(loss), balanced(*own)))
        hits, totals = hits + own[0], totals + own[1]
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]
    scores = Scores(columns[0].long(), columns[1].long(), columns[2].long(), columns[3], columns[4])
    return Evaluation({**spread(scores), "balanced_accuracy": balanced(hits, totals)}, scores)


def spread(scores: Scores) -> dict[str, float]:
    """How accuracy is distributed over clients.

    `worst20` is the mean of the worst fifth, `best10` of the best tenth (at least one client).  Decile i is the value
    that lies i tenths of the way through the clients in order, interpolated linearly between the two beside it
    (quantile definition 7 of Hyndman and Fan, NumPy's).  `balanced` is the mean of every client's balanced accuracy.
    """
    accuracy = (scores.correct.double() / scores.samples).sort().values
    deciles = accuracy.quantile(torch.arange(1, 10).double() / 10)
    return {
        "client_accuracy_weighted": float(scores.correct.sum() / scores.samples.sum()),
        "client_accuracy_mean": float(accuracy.mean()),
        "client_accuracy_std": float(accuracy.std(unbiased=False)),
        **{f"client_accuracy_worst{share}": _share_mean(accuracy, share) for share in (10, 20, 40)},
        "client_accuracy_best10": _share_mean(accuracy.flip(0), 10),
        **{f"client_accuracy_decile{place}": float(value) for place, value in enumerate(deciles, start=1)},
        "client_accuracy_balanced": float(scores.balanced.mean()),
    }


def _share_mean(ordered: Tensor, percent: int) -> float:
    """The mean of the first so many percent, at least one."""
    return float(ordered[: max(1, len(ordered) * percent // 100)].mean())


def on_classes(models: Iterable[tuple[int, Tensor, Logits]], test: ClientData) -> ClassScores:
    """Every client's deployed model on one test set: the mean accuracy over the classes it trains on, and over others.

    `models` gives a client's place, a mask of the classes among its training samples, and what its model says.  This is
    what Figure 12 of Fanì et al. (2025) shows of personalisation epoch by epoch; an OLL model is at 0 on the others.
    """
    rows = []
    for client, local, logits in models:
        right = torch.cat([chosen == y for _, chosen, y in answers(logits, test)])
        hits, totals = by_class(test.y, right, len(local))
        rows.append((client, balanced(hits[local], totals[local]), balanced(hits[~local], totals[~local])))
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]
    return ClassScores(columns[0].long(), columns[1], columns[2])


def union(tests: Iterable[ClientData | None]) -> ClientData:
    """All clients' test samples as one test set, where there is no global one."""
    held = [test for test in tests if test is not None]
    shapes = {tuple(test.x.shape[1:]) for test in held}
    if len(shapes) != 1:
        told = "no client has any" if not held else f"the clients' samples have {len(shapes)} different shapes"
        raise HansaError(f"Classes outside a client need test samples that every client can read, but {told}.")
    return ClientData(torch.cat([test.x for test in held]), torch.cat([test.y for test in held]))
