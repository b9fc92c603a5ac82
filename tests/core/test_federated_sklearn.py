"""Gradient methods as scikit-learn estimators: a run over the clients, and nothing else."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import hansa
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.local import Local
from hansa.sklearn import FederatedClassifier, FederatedRegressor
from hansa.training.local import LocalTraining
from hansa.training.objectives import CrossEntropy

DIGITS, NUMBERS = load_digits(return_X_y=True)
X, NAMES = DIGITS[:400] / 16, np.array([f"digit {number}" for number in NUMBERS[:400]])
CLIENTS = np.arange(400) % 4
FAST = FedAvg(LocalTraining(lr=0.5))


def weights(found: FederatedClassifier | FederatedRegressor) -> dict[str, torch.Tensor]:
    return dict(found.model_.weights)


def test_fit_is_the_run_over_the_clients() -> None:
    mine = FederatedClassifier(FAST, rounds=3, seed=2).fit(X, NAMES, clients=CLIENTS)
    parts = {str(k): (X[k == CLIENTS], NUMBERS[:400][k == CLIENTS]) for k in range(4)}
    tested = {name: (*arrays, arrays[0][:1], arrays[1][:1]) for name, arrays in parts.items()}
    run = hansa.run(data=hansa.federation_from_clients(tested), algorithm=FAST, rounds=3, seed=2)
    for key, leaf in hansa.load_model(run).weights.items():
        assert torch.allclose(weights(mine)[key], leaf, atol=1e-6)
    assert mine.predict(X[:3]).dtype == NAMES.dtype and mine.score(X, NAMES) > 0.6
    assert np.allclose(mine.predict_proba(X[:5]).sum(1), 1, atol=1e-6)
    alone = FederatedClassifier(FAST, rounds=3, seed=2).fit(X, NAMES)
    assert not torch.allclose(weights(alone)["head.weight"], weights(mine)["head.weight"], atol=1e-3)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_goes_where_estimators_go() -> None:
    net = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    one = FederatedClassifier(FAST, model=net, rounds=2)
    fitted = clone(one).fit(X, NAMES, clients=CLIENTS)
    again = pickle.loads(pickle.dumps(fitted))
    assert again.predict(X).tolist() == fitted.predict(X).tolist() and again.get_params()["rounds"] == 2
    search = GridSearchCV(
        make_pipeline(StandardScaler(), FederatedClassifier(FAST)), {"federatedclassifier__rounds": [1, 4]}, cv=2
    )
    search.fit(X, NAMES, federatedclassifier__clients=CLIENTS)
    assert search.best_params_ == {"federatedclassifier__rounds": 4}


def alike(one: FederatedClassifier | FederatedRegressor, other: FederatedClassifier | FederatedRegressor) -> bool:
    return all(torch.allclose(leaf, weights(other)[key], atol=1e-5) for key, leaf in weights(one).items())


def test_class_weights_are_those_of_the_loss() -> None:
    """Of one client; among several one also counts by its samples' weights."""
    by_class = {name: 1.0 + place for place, name in enumerate(sorted(set(NAMES)))}
    inner = LocalTraining(lr=0.5, objective=CrossEntropy(class_weights=tuple(by_class.values())))
    mine = FederatedClassifier(FedProx(LocalTraining(lr=0.5)), rounds=2, class_weight=by_class).fit(X, NAMES)
    other = FederatedClassifier(FedProx(inner), rounds=2).fit(X, NAMES)
    plain = FederatedClassifier(FedProx(LocalTraining(lr=0.5)), rounds=2).fit(X, NAMES)
    assert alike(mine, other) and not alike(mine, plain)


WHOLE = FedAvg(LocalTraining(lr=0.1, batch_size=10_000))


def test_a_weight_is_so_many_samples_in_whole_batches() -> None:
    """Beside weights by class, of which "balanced" counts samples as scikit-learn does; a weight of 0 is none."""
    times = np.random.default_rng(1).integers(0, 4, 400)
    again = np.repeat(np.arange(400), times)
    by_class = {name: 1.0 + place for place, name in enumerate(sorted(set(NAMES)))}
    for chosen in (None, by_class):
        weighed = FederatedClassifier(WHOLE, rounds=3, class_weight=chosen)
        weighed.fit(X, NAMES, clients=CLIENTS, sample_weight=0.7 * times)
        repeated = FederatedClassifier(WHOLE, rounds=3, class_weight=chosen).fit(X[again], NAMES[again], CLIENTS[again])
        assert alike(weighed, repeated)
    assert not alike(weighed, FederatedClassifier(WHOLE, rounds=3).fit(X, NAMES, clients=CLIENTS))
    y = X @ np.linspace(-1, 1, 64)
    line = FederatedRegressor(WHOLE, rounds=3).fit(X, y, clients=CLIENTS, sample_weight=times)
    assert alike(line, FederatedRegressor(WHOLE, rounds=3).fit(X[again], y[again], clients=CLIENTS[again]))
    plain, same = (
        FederatedRegressor(FAST, rounds=2).fit(X, y, CLIENTS, sample_weight=w) for w in (None, np.full(400, 0.3))
    )
    assert torch.equal(weights(plain)["head.weight"], weights(same)["head.weight"])


def test_the_regressor_finds_a_line() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = x @ [1.0, -2.0, 0.5] + 3
    one = FederatedRegressor(FedAvg(LocalTraining(lr=0.1)), rounds=10).fit(x, y, clients=["a", "b"] * 100)
    assert one.score(x, y) > 0.99 and one.predict(x).shape == (200,)
    two = FederatedRegressor(FedAvg(LocalTraining(lr=0.1)), rounds=10).fit(x, np.stack([y, -y], 1))
    assert two.predict(x).shape == (200, 2) and two.score(x, np.stack([y, -y], 1)) > 0.99


def test_bad_input_is_told() -> None:
    with pytest.raises(hansa.HansaError, match="Local gives every client a model of its own: use"):
        FederatedClassifier(Local(LocalTraining(lr=0.1)), rounds=1).fit(X, NAMES, clients=CLIENTS)
    with pytest.raises(hansa.HansaError, match="The samples have weights, by which Fed3R does not count them"):
        FederatedClassifier("fed3r", class_weight="balanced").fit(X, NAMES)
    with pytest.raises(ValueError, match="Negative values in data"):
        FederatedClassifier(FAST).fit(X, NAMES, sample_weight=-np.ones(400))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedClassifier(FAST).fit(X, NAMES, clients=CLIENTS[1:])
