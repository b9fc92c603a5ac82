"""Algorithms that train over rounds as scikit-learn estimators: `fit` is a federated run of which the model stays."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from hansa.api import run
from hansa.contract import Algorithm
from hansa.data.federation import federation_from_clients
from hansa.data.targets import Kind
from hansa.deploy.model import DeployedModel, load_model
from hansa.errors import HansaError, require
from hansa.io.codec import piece_from_table
from hansa.io.registry import CATALOGUE
from hansa.plan.schema import PhasePlan
from hansa.task import ClientData
from hansa.training.local import LocalTraining
from hansa.training.objectives import CrossEntropy

Matrix = np.ndarray[Any, np.dtype[Any]]
ALL = "all"  # the one client of samples that nobody is named for


class FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """The common part of both estimators: a run over the clients, and the model that it leaves.

    `algorithm`, `model` and `engine` are what `hansa.run` takes, `rounds` those of an algorithm that takes several.
    """

    model_: DeployedModel
    algorithm: Any
    model: Any
    rounds: int | None
    engine: Any
    seed: int

    def _fit(self, X: Matrix, y: Matrix, clients: Any, target: Kind, algorithm: Any) -> None:
        name, own = type(last := _last(algorithm)).__name__, getattr(last, "personal", False)
        require(
            not own, f"{name} gives every client a model of its own: use hansa.run and hansa.load_model(run, client)."
        )
        names = np.full(len(X), ALL) if clients is None else np.asarray(clients).astype(str)
        check_consistent_length(X, names)
        known = tuple(map(str, range(int(y.max()) + 1))) if target == "classes" else None
        parts = {str(name): (X[names == name], y[names == name]) for name in np.unique(names)}
        told = {"model": self.model, "algorithm": algorithm, "rounds": self.rounds, "engine": self.engine}
        made = federation_from_clients(parts, known, target=target)
        first = next(iter(made.clients.values())).train
        made = dataclasses.replace(made, test=ClientData(first.x[:1], first.y[:1]))  # of a run that nobody will read
        with tempfile.TemporaryDirectory() as folder:
            done = run(data=made, **told, seed=self.seed, out=Path(folder) / "run", show=False)
            require(
                done.status == "finished",
                f"There is no model: {done.summary.get('why', f'the run was {done.status}.')}",
            )
            self.model_ = load_model(done)

    def _inputs(self, X: Matrix) -> Matrix:
        check_is_fitted(self)
        checked: Matrix = validate_data(self, X, reset=False, dtype=np.float32)
        return checked


class FederatedClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """A classifier that clients train together: `fit(X, y, clients=names)`; without names all samples are one client's.

    `class_weight` multiplies the loss of a sample: a weight by class, or "balanced" for `n/(C·n_c)` over all samples.
    """

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

    def fit(self, X: Matrix, y: Matrix, clients: Any = None) -> Self:
        """Learn from these samples, each of the client that `clients` names."""
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        algorithm = self.algorithm
        if self.class_weight is not None:
            weights = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
            algorithm = _weighed(algorithm, tuple(map(float, weights)))
        self._fit(X, numbers, clients, "classes", algorithm)
        return self

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

    def fit(self, X: Matrix, y: Matrix, clients: Any = None) -> Self:
        """Learn from these samples, each of the client that `clients` names."""
        X, y = validate_data(self, X, y, dtype=np.float32, multi_output=True, y_numeric=True)
        self.flat_ = y.ndim == 1
        self._fit(X, y, clients, "real", self.algorithm)
        return self

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


def _weighed(algorithm: Any, weights: tuple[float, ...]) -> Algorithm:
    """Return an algorithm whose local training weighs classes."""
    piece = piece_from_table("algorithm", algorithm) if isinstance(algorithm, (str, Mapping)) else algorithm
    if not isinstance(piece, Algorithm):
        raise HansaError(f"Class weights are for one algorithm that trains. Got {algorithm!r}.")
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(piece):  # type: ignore[arg-type]
        value = getattr(piece, field.name)
        if isinstance(value, LocalTraining):
            says = f"The {type(piece).__name__} has an objective of its own, {value.objective}"
            require(value.objective is None, f"{says}: leave it out, or 'class_weight'.")
            changes[field.name] = dataclasses.replace(value, objective=CrossEntropy(class_weights=weights))
        elif isinstance(value, Algorithm):
            changes[field.name] = _weighed(value, weights)
    require(bool(changes), f"Class weights are for what trains, and {type(piece).__name__} does not.")
    return dataclasses.replace(piece, **changes)  # type: ignore[type-var]
