"""How good the deployed models are: on the global test set, and client by client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hansa.task import ClientData
from hansa.tree import Tree

BLOCK = 2048  # samples judged at once
Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Scores:
    """One row a client that has test samples, in the clients' order."""

    client: Tensor  # its place in the federation
    samples: Tensor
    correct: Tensor
    loss: Tensor  # mean over its samples

    def tree(self) -> Tree:
        """The columns by name."""
        return {"client": self.client, "samples": self.samples, "correct": self.correct, "loss": self.loss}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics by name, and the clients' scores where they have test sets of their own."""

    metrics: dict[str, float]
    scores: Scores | None = None


@torch.no_grad()
def judge(logits: Logits, data: ClientData) -> tuple[Tensor, Tensor]:
    """For every sample: the predicted class and the cross-entropy."""
    predictions, losses = [], []
    for first in range(0, len(data), BLOCK):
        out = logits(data.x[first : first + BLOCK])
        predictions.append(out.argmax(1))
        losses.append(F.cross_entropy(out, data.y[first : first + BLOCK], reduction="none"))
    return torch.cat(predictions), torch.cat(losses)


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
    return {
        "test_accuracy": float(right.double().mean()),
        "test_loss": float(loss.double().mean()),
        "balanced_accuracy": balanced(*by_class(test.y, right, num_classes)),
    }


def on_clients(tests: Iterator[tuple[int, ClientData, Logits]], num_classes: int) -> Evaluation:
    """Every client's model on its own test set."""
    rows: list[tuple[int, int, int, float]] = []
    hits, totals = torch.zeros(num_classes).double(), torch.zeros(num_classes).double()
    for client, data, logits in tests:
        predicted, loss = judge(logits, data)
        right = predicted == data.y
        rows.append((client, len(data), int(right.sum()), float(loss.double().mean())))
        own = by_class(data.y, right, num_classes)
        hits, totals = hits + own[0], totals + own[1]
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]
    scores = Scores(columns[0].long(), columns[1].long(), columns[2].long(), columns[3])
    return Evaluation({**spread(scores), "balanced_accuracy": balanced(hits, totals)}, scores)


def spread(scores: Scores) -> dict[str, float]:
    """How accuracy is distributed over clients; `worst10` is the mean of the worst tenth (at least one client)."""
    accuracy = scores.correct.double() / scores.samples
    tenth = max(1, len(accuracy) // 10)
    return {
        "client_accuracy_weighted": float(scores.correct.sum() / scores.samples.sum()),
        "client_accuracy_mean": float(accuracy.mean()),
        "client_accuracy_std": float(accuracy.std(unbiased=False)),
        "client_accuracy_worst10": float(accuracy.sort().values[:tenth].mean()),
    }
