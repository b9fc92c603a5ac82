"""OLL, Only Local Labels: Fanì et al., Resource-Efficient Personalization … with Closed-Form Classifiers (2025)."""

from __future__ import annotations

from dataclasses import dataclass

from hansa.algorithms.no_training import NoTraining
from hansa.errors import require
from hansa.task import Task
from hansa.tree import Tree


@dataclass(frozen=True)
class OLL(NoTraining):
    """Every client keeps only the classifier columns of the classes in its training data (§IV-C, Algorithm 2).

    Nothing trains and nothing is uploaded: the client receives the model and works with `W_k = {W^c : c ∈ C_k}` from
    here on, in its predictions and in the training of later phases.  A column left out is one whose logit is −∞: its
    class has probability 0 and its weights no gradient.  A test sample of another class counts as an error.  In a plan,
    `oll = true` puts this phase after another one.
    """

    @property
    def personal(self) -> bool:
        """Clients with different classes deploy different classifiers."""
        return True

    @property
    def local_labels(self) -> bool:
        """From here on a client knows only its own classes."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Return nothing of its own; real targets have no labels to leave out."""
        require(task.num_classes > 0, "Only Local Labels needs classes.")
        return {}

    def model(self, task: Task, server: Tree) -> Tree:
        """Return what earlier phases left behind."""
        return task.params()
