"""Wrappers: what they do not change is the wrapped algorithm's, hook by hook."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hand_problems import SAMPLES, mixed, rng, sent

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fed3r_ft import Fed3RFT
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.algorithms.fedbn import FedBN
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.local import Local
from hansa.algorithms.mime import Mime
from hansa.algorithms.perfedavg import PerFedAvg
from hansa.algorithms.personal import Personal
from hansa.algorithms.pfedme import PFedMe
from hansa.algorithms.robust import Robust
from hansa.algorithms.scaffold import Scaffold
from hansa.algorithms.wima import Wima
from hansa.contract import Algorithm
from hansa.io.registry import CATALOGUE, find
from hansa.models.dense import MLP
from hansa.payload import set_apart
from hansa.server.optimisers import Adam
from hansa.server.robust_rules import NormBound
from hansa.task import Task
from hansa.training.local import LocalTraining
from hansa.training.wrappers import Wrapper, client_side, training_of
from hansa.tree import Tree, pick

HOOKS = {name: member for name, member in vars(Algorithm).items() if not name.startswith("_")}
PROPERTIES = [name for name, member in HOOKS.items() if isinstance(member, property)]
METHODS = [name for name, member in HOOKS.items() if inspect.isfunction(member)]


@dataclass(frozen=True)
class Nothing(Wrapper):
    """A wrapper that changes nothing."""

    inner: Algorithm = FedAvg()


def spy() -> Algorithm:
    """An algorithm whose every hook says its own name and what it was given."""

    def method(name: str) -> Callable[..., Any]:
        return lambda self, *given: (name, given)

    def visit(self: Algorithm, *given: Any) -> Any:
        return "visit", given
        yield

    made = {name: property(lambda self, name=name: name) for name in PROPERTIES} | {n: method(n) for n in METHODS}
    return type("Spy", (Algorithm,), {**made, "visit": visit})()  # type: ignore[no-any-return]


def test_the_contract_has_no_member_that_is_neither() -> None:
    assert {*PROPERTIES, *METHODS} == HOOKS.keys() and len(PROPERTIES) >= 6 and len(METHODS) >= 13


@pytest.mark.parametrize("name", HOOKS)
def test_a_wrapper_knows_every_public_hook(name: str) -> None:
    """A hook that it inherits would be the contract's default, not the wrapped algorithm's."""
    assert name in vars(Wrapper)


@pytest.mark.parametrize("name", PROPERTIES)
def test_what_an_algorithm_is_like_is_passed_on(name: str) -> None:
    assert getattr(Nothing(spy()), name) == name


@pytest.mark.parametrize("name", sorted({*METHODS} - {"visit", "client_step"}))
def test_hooks_are_passed_on_with_all_that_they_are_given(name: str) -> None:
    given = tuple(object() for _ in list(inspect.signature(HOOKS[name]).parameters)[1:])
    assert getattr(Nothing(spy()), name)(*given) == (name, given)


def test_visits_are_passed_on_and_carried_out_by_themselves() -> None:
    task, down, state, data, draw = object(), object(), object(), object(), rng()
    with pytest.raises(StopIteration) as end:
        next(Nothing(spy()).visit(task, down, state, data, draw))  # type: ignore[arg-type]
    assert end.value.value == ("visit", (task, down, state, data, draw))
    said = Nothing(spy()).client_step(task, down, state, data, draw)  # type: ignore[arg-type]
    assert said == ("visit", (task, down, state, data, draw))


# ----------------------------------------------------------------------------------------------------- neutral settings

LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=4)
TASK = Task(MLP((4,)), (3,), 2, population=4, samples=SAMPLES)
INNER: dict[str, Algorithm] = {
    "fedavg": FedAvg(LOCAL),
    "fedadam": FedAvg(LOCAL, Adam(), weights="uniform"),
    "scaffold": Scaffold(LOCAL, option="I"),
    "feddyn": FedDyn(LOCAL, 0.1),
    "mime": Mime(LOCAL, 0.5),
    "fedavg-ft": FedAvgFT(LOCAL, tune=LOCAL),
    "perfedavg": PerFedAvg(LOCAL),
    "pfedme": PFedMe(LOCAL, strength=1.0),
    "ditto": Ditto(LOCAL),
    "fedper": FedPer(LOCAL),
    "l2gd": L2GD(LocalTraining(lr=0.1, batch_size=4)),
    "personal-scaffold": Personal(Scaffold(LOCAL)),
}
NEUTRAL: dict[str, Callable[[Algorithm], Algorithm]] = {
    "nothing": Nothing,
    "wima": lambda inner: Wima(inner, window=1),
    "robust": lambda inner: Robust(inner, NormBound(math.inf)),
    "wima-robust": lambda inner: Wima(Robust(inner, NormBound(math.inf)), window=1),
}


def close(left: Tree, right: Tree) -> bool:
    return left.keys() == right.keys() and all(
        torch.allclose(leaf, right[key], atol=1e-5) for key, leaf in left.items()
    )


def history(algorithm: Algorithm, rounds: int = 4) -> list[Tree]:
    """Every tree that any hook gives in some rounds, in the order in which they come."""
    clients, server, states = mixed(), algorithm.server_init(TASK), dict[str, Tree]()
    seen: list[Tree] = []
    for number in range(rounds):
        down, ups = sent(algorithm, TASK, server), []
        for name, data in clients.items():
            state = states[name] if name in states else algorithm.client_init(TASK, data)
            up, states[name] = algorithm.client_step(TASK, down, state, data, rng(number))
            wire = algorithm.encode(up.sums)
            numbers = torch.tensor([up.weight, up.count, up.flops], dtype=torch.float64)
            seen += [state, wire, {"numbers": numbers}, states[name]]
            sums = algorithm.decode(TASK, wire)
            ups.append(set_apart(algorithm.uplink, name, replace(up, sums=sums)))
        server = algorithm.server_step(TASK, server, sum(ups[1:], start=ups[0]))
        model, served = algorithm.model(TASK, server), algorithm.serve(TASK, server)
        seen += [down, model, served, {"outputs": algorithm.outputs(TASK, model, clients["c0"].x)}]
        seen += [dict(algorithm.describes(server))]
        seen += [algorithm.deploy(TASK, served, states[name], data, rng(9)) for name, data in clients.items()]
    return seen


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
def test_a_neutral_wrapper_is_the_wrapped_algorithm_in_every_hook(inner: Algorithm) -> None:
    expected = history(inner)
    assert any(tree for tree in expected)
    for name, wrap in NEUTRAL.items():
        wrapped = wrap(inner)
        found = history(wrapped)
        assert len(found) == len(expected), name
        assert all(close(one, other) for one, other in zip(found, expected, strict=True)), name
        same = ("personal", "one_shot", "local_labels", "exchanges", "no_chains")
        assert all(getattr(wrapped, hook) == getattr(inner, hook) for hook in same), name
        assert wrapped.uplink.keys() == inner.uplink.keys(), name


def test_a_window_of_two_and_a_median_are_not_neutral() -> None:
    expected = history(FedAvg(LOCAL))
    for wrapped in (Wima(FedAvg(LOCAL), window=2), Robust(FedAvg(LOCAL))):
        assert not all(close(one, other) for one, other in zip(history(wrapped), expected, strict=True))


def test_every_hook_of_every_shipped_wrapper_is_its_own_or_wrappers() -> None:
    """None falls back to a default of the contract, which would forget the algorithm inside."""
    every = [find("algorithm", name) for name in CATALOGUE["algorithm"]]
    kinds = [kind for kind in every if issubclass(kind, Wrapper)]
    assert {Scaffold, Personal, Robust, Wima, Fed3RFT, FedBN, Local} <= set(kinds)
    for kind in kinds:
        for name in HOOKS:
            owner = next(cls for cls in kind.__mro__ if name in vars(cls))
            assert owner is not Algorithm, (kind, name)


# ------------------------------------------------------------------------------------------------- looking through them


def test_a_client_sees_through_wrappers_of_the_servers_side_only() -> None:
    inner, personal = FedAvg(LOCAL), Personal(FedAvg(LOCAL))
    assert client_side(Wima(Robust(inner))) is inner and client_side(inner) is inner
    assert client_side(Wima(personal)) is personal and client_side(Scaffold(LOCAL)) == Scaffold(LOCAL)


def test_how_clients_train_is_found_inside() -> None:
    other = LocalTraining(lr=0.7)
    assert training_of(Wima(Personal(FedAvg(other)))) is other and training_of(Ditto(other)) == other
    assert training_of(Fed3R()) is None


def test_a_wrapper_serves_what_its_own_model_says() -> None:
    """Not what the wrapped algorithm would serve: Fed3R-FT's head is the ridge solution."""
    algorithm = Fed3RFT(FedAvg(LOCAL))
    server, data = algorithm.server_init(TASK), mixed()["c3"]
    up, state = algorithm.client_step(TASK, sent(algorithm, TASK, server), {}, data, rng())
    server = algorithm.server_step(TASK, server, up)
    served = pick("model", algorithm.serve(TASK, server))
    assert torch.equal(served["head.weight"], algorithm.model(TASK, server)["head.weight"])
    assert not torch.equal(served["head.weight"], server["model.head.weight"])
    assert close(
        algorithm.deploy(TASK, algorithm.serve(TASK, server), state, data, rng()), algorithm.model(TASK, server)
    )
