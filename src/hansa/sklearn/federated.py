"""Algorithms that train over rounds as scikit-learn estimators: `fit` is a federated run of which the model stays."""

from __future__ import annotations

import dataclasses
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from hansa.api import run
from hansa.data.federation import federation_from_clients
from hansa.data.targets import Kind
from hansa.deploy.model import DeployedModel, load_model
from hansa.errors import require
from hansa.io.codec import piece_from_table
from hansa.io.registry import CATALOGUE
from hansa.plan.schema import PhasePlan
from hansa.sklearn.ridge import checked_weights
from hansa.task import ClientData

Matrix = np.ndarray[Any, np.dtype[Any]]
ALL = "all"  # the one client of samples that nobody is named for


class FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """The common part of both estimators: a run over the clients, and the model that it leaves.

    `algorithm`, `model` and `engine` are what `hansa.run` takes, `rounds` those of an algorithm that takes several.
    """

    target: ClassVar[Kind]
    model_: DeployedModel
    algorithm: Any
    model: Any
    rounds: int | None
    engine: Any
    seed: int

    def fit(self, X: Matrix, y: Matrix, clients: Any = None, sample_weight: Any = None) -> Self:
        """Learn from these samples, each of the client that `clients` names.

        With a `sample_weight` the loss of a batch is `Σ w_i ℓ_i / Σ w_i`, and a client counts as its Σ w_i; samples of
        weight 0 are left out.  Only ratios of weights matter.
        """
        X, y, weights = self._samples(X, y, sample_weight)
        names = np.full(len(X), ALL) if clients is None else np.asarray(clients).astype(str)
        check_consistent_length(X, names)
        self._run(*(part[weights > 0] for part in (X, y, names, weights)))
        return self

    @abstractmethod
    def _samples(self, X: Matrix, y: Matrix, given: Any) -> tuple[Matrix, Matrix, Matrix]:
        """Return checked inputs, class numbers or real targets, and weights."""

    def _run(self, X: Matrix, y: Matrix, names: Matrix, weights: Matrix) -> None:
        last = _last(self.algorithm)
        says = f"{type(last).__name__} gives every client a model of its own"
        require(not getattr(last, "personal", False), f"{says}: use hansa.run and hansa.load_model(run, client).")
        rows = {str(name): names == name for name in np.unique(names)}
        made = federation_from_clients(
            {name: (X[own], y[own]) for name, own in rows.items()},
            self._class_names(),
            target=self.target,
            weights={name: weights[own] for name, own in rows.items()},
        )
        first = next(iter(made.clients.values())).train
        made = dataclasses.replace(made, test=ClientData(first.x[:1], first.y[:1]))  # of a run that nobody will read
        told = {"model": self.model, "algorithm": self.algorithm, "rounds": self.rounds, "engine": self.engine}
        with tempfile.TemporaryDirectory() as folder:
            done = run(data=made, **told, seed=self.seed, out=Path(folder) / "run", show=False)
            why = done.summary.get("why", f"the run was {done.status}.")
            require(done.status == "finished", f"There is no model: {why}")
            self.model_ = load_model(done)

    def _class_names(self) -> tuple[str, ...] | None:
        """Return a name for every class number; none of real targets."""
        return None

    def _inputs(self, X: Matrix) -> Matrix:
        check_is_fitted(self)
        checked: Matrix = validate_data(self, X, reset=False, dtype=np.float32)
        return checked


class FederatedClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """A classifier that clients train together: `fit(X, y, clients=names)`; without names all samples are one client's.

    `class_weight` multiplies the weight of a sample: a weight by class, or "balanced" for `n/(C·n_c)` over all samples.
    """

    target = "classes"
    classes_: Matrix

    def __init__(
        self,
        algorithm: Any = "fedavg",
        model: Any = "linear",
        rounds: int | None = 20,
        class_weight: Mapping[Any, float] | str | None = None,
        engine: Any = "auto",
        seed: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.rounds = rounds
        self.class_weight = class_weight
        self.engine = engine
        self.seed = seed

    def _samples(self, X: Matrix, y: Matrix, given: Any) -> tuple[Matrix, Matrix, Matrix]:
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        return X, numbers, checked_weights(X, given) * compute_sample_weight(self.class_weight, y)

    def _class_names(self) -> tuple[str, ...]:
        return tuple(map(str, range(len(self.classes_))))

    def predict(self, X: Matrix) -> Matrix:
        """Predict the most probable class."""
        chances = self.predict_proba(X)
        chosen: Matrix = self.classes_[chances.argmax(1)]
        return chosen

    def predict_proba(self, X: Matrix) -> Matrix:
        """Return the probability of every class."""
        x = self._inputs(X)
        return self.model_.probabilities(x)


class FederatedRegressor(RegressorMixin, FederatedEstimator):  # type: ignore[misc]
    """A regressor that clients train together: `fit(X, y, clients=names)`; without names all are one client's."""

    target = "real"

    def __init__(
        self,
        algorithm: Any = "fedavg",
        model: Any = "linear",
        rounds: int | None = 20,
        engine: Any = "auto",
        seed: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.rounds = rounds
        self.engine = engine
        self.seed = seed

    def _samples(self, X: Matrix, y: Matrix, given: Any) -> tuple[Matrix, Matrix, Matrix]:
        X, y = validate_data(self, X, y, dtype=np.float32, multi_output=True, y_numeric=True)
        self.flat_ = y.ndim == 1
        return X, y, checked_weights(X, given)

    def predict(self, X: Matrix) -> Matrix:
        """Predict the targets: a vector of one, or a column for each of several."""
        x = self._inputs(X)
        found = self.model_.predict(x).astype(np.float64)
        return found[:, 0] if self.flat_ else found

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _last(algorithm: Any) -> Any:
    """Return the algorithm of the last phase, where it can be told before a run."""
    last = algorithm[-1] if isinstance(algorithm, (tuple, list)) and algorithm else algorithm
    last = last.algorithm if isinstance(last, PhasePlan) else last
    return piece_from_table("algorithm", last) if isinstance(last, str) and last in CATALOGUE["algorithm"] else last
