"""FedSim, FedAlt, FedRep, FedPer, FedBN and Local: what is shared, what is kept, and in which order it trains."""

from __future__ import annotations

import pytest
import torch
from hand_problems import (
    ONE,
    PRODUCT,
    SAMPLES,
    TASK,
    Normed,
    deployed,
    mixed,
    rng,
    run_rounds,
    sent,
    sigmoid,
    slope,
    trained,
    visit,
    weight,
)

from hansa.algorithms.fedalt import FedAlt
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedbn import FedBN
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.fedrep import FedRep
from hansa.algorithms.fedsim import FedSim
from hansa.algorithms.local import Local
from hansa.algorithms.personal import Personal
from hansa.contract import Algorithm
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.server.optimisers import Adam
from hansa.task import Task
from hansa.training.leaves import personal_leaves
from hansa.training.local import LocalTraining
from hansa.training.visits import turn_seed
from hansa.tree import equal, nest, pick

LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=4)
SMALL = Task(MLP((4,)), (3,), 2, population=4, samples=SAMPLES)
NORMED = Task(Normed(), (3,), 2, population=4, samples=SAMPLES)
ROUNDS = [["c0", "c1"], ["c1", "c2"], ["c0"]]
HEAD, FEATURES = "head.weight", "features.weight"


def head_step(h: float, f: float) -> float:
    """The gradient in h of `Product` on the sample x = 2, y = 0."""
    return (sigmoid(2 * h * f * 2) - 1) * f * 2


def features_step(h: float, f: float) -> float:
    """The gradient in f."""
    return 2 * (sigmoid(2 * h * f * 2) - 1) * h * 2


def after_visit(algorithm: Algorithm) -> tuple[float, float]:
    """Head and feature after one visit, one of them kept and the other uploaded."""
    up, state = visit(algorithm, PRODUCT, algorithm.server_init(PRODUCT), ONE)
    if f"own.{HEAD}" in state:
        return weight(state, "own."), 1.0 + up.sums[f"model.{FEATURES}"].item()
    return 0.5 + weight(up.sums, "model."), state[f"own.{FEATURES}"].item()


@pytest.mark.parametrize("keep", ["head", "features"])
def test_fedsim_steps_both_parts_from_the_same_point(keep: str) -> None:
    h, f = 0.5, 1.0
    for _ in range(2):
        h, f = h - 0.1 * head_step(h, f), f - 0.1 * features_step(h, f)
    algorithm = FedSim(LocalTraining(lr=0.1, epochs=2), keep=keep)  # type: ignore[arg-type]
    assert after_visit(algorithm) == pytest.approx((h, f), rel=1e-5)


def test_fedalt_trains_the_personal_part_first() -> None:
    h, f = 0.5, 1.0
    for _ in range(2):
        h -= 0.1 * head_step(h, f)
    for _ in range(2):
        f -= 0.1 * features_step(h, f)
    assert after_visit(FedAlt(LocalTraining(lr=0.1, epochs=2))) == pytest.approx((h, f), rel=1e-5)
    h, f = 0.5, 1.0
    for _ in range(3):
        f -= 0.1 * features_step(h, f)
    h -= 0.1 * head_step(h, f)
    other = FedAlt(LocalTraining(lr=0.1), keep="features", personal_epochs=3)
    assert after_visit(other) == pytest.approx((h, f), rel=1e-5)


def test_fedrep_fits_the_head_first_and_keeps_it() -> None:
    h, f = 0.5, 1.0
    for _ in range(4):
        h -= 0.1 * head_step(h, f)
    f -= 0.1 * features_step(h, f)
    algorithm = FedRep(LocalTraining(lr=0.1), head_epochs=4)
    assert after_visit(algorithm) == pytest.approx((h, f), rel=1e-5)
    server = algorithm.server_init(PRODUCT)
    _, state = visit(algorithm, PRODUCT, server, ONE)
    _, again = visit(algorithm, PRODUCT, server, ONE, state)
    for _ in range(4):
        h -= 0.1 * head_step(h, 1.0)
    assert weight(again, "own.") == pytest.approx(h, rel=1e-5)


def test_fedper_and_fedsim_are_personal_fedavg() -> None:
    clients = mixed()
    expected = run_rounds(Personal(FedAvg(LOCAL), keep="head"), SMALL, clients, ROUNDS)
    for algorithm in (FedPer(LOCAL), FedSim(LOCAL)):
        server, states = run_rounds(algorithm, SMALL, clients, ROUNDS)
        assert equal(server, expected[0]) and all(equal(states[name], expected[1][name]) for name in states)


def test_fedalts_second_run_is_fedavg_on_the_shared_part() -> None:
    """The upload is what FedAvg on the features uploads once the head is what the first run made it."""
    algorithm, data = FedAlt(LOCAL), mixed()["c0"]
    server = algorithm.server_init(SMALL)
    own = trained(LocalTraining(lr=0.1, epochs=2, batch_size=4, train="head"), SMALL, data)
    settled = Task(SMALL.model, (3,), 2, 4, start={key: own.params[key] for key in ("head.weight", "head.bias")})
    alone = FedAvg(LocalTraining(lr=0.1, epochs=2, batch_size=4, train="features"))
    expected, _ = alone.client_step(settled, sent(algorithm, SMALL, server), {}, data, rng(turn_seed(0, 1)))
    up, _ = visit(algorithm, SMALL, server, data)
    assert equal(up.sums, expected.sums) and up.flops == expected.flops + own.flops


@pytest.mark.parametrize("algorithm", [FedSim(LOCAL), FedAlt(LOCAL), FedRep(LOCAL), FedPer(LOCAL, Adam())], ids=repr)
def test_only_the_shared_part_travels_or_is_known_to_the_server(algorithm: Algorithm) -> None:
    server, _ = run_rounds(algorithm, SMALL, mixed(), ROUNDS)
    up, state = visit(algorithm, SMALL, server, mixed()["c0"])
    assert not [key for tree in (server, sent(algorithm, SMALL, server), up.sums) for key in tree if "head." in key]
    assert set(pick("own", state)) == {"head.weight", "head.bias"} and algorithm.personal


def test_alternating_training_chooses_what_trains() -> None:
    with pytest.raises(HansaError, match="leave out train = 'head'"):
        FedAlt(LocalTraining(train="head"))
    with pytest.raises(HansaError, match="'personal_epochs'"):
        FedRep(head_epochs=0)


# ------------------------------------------------------------------------------------------------------------ FedBN


def test_fedbn_finds_normalisation_by_type() -> None:
    """One layer is called norm and is linear, another is a subclass of a batch norm with no telling name."""
    names = {f"features.second.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var")}
    assert personal_leaves(NORMED, "norm") == names
    algorithm = FedBN(LocalTraining(lr=0.1, epochs=9, batch_size=6))
    server, states = run_rounds(algorithm, NORMED, mixed(), ROUNDS)
    assert not [key for key in server if "second" in key] and any("features.norm" in key for key in server)
    assert set(pick("own", states["c0"])) == names
    models = {name: deployed(algorithm, NORMED, server, state, mixed()[name]) for name, state in states.items()}
    key = "features.second.running_mean"
    assert not torch.allclose(models["c0"][key], models["c2"][key], atol=0.1)
    assert torch.equal(models["c0"][HEAD], models["c2"][HEAD])


def test_fedbn_of_one_client_is_fedavg() -> None:
    clients = {"c0": mixed()["c0"]}
    fedbn, fedavg = FedBN(LocalTraining(batch_size=3)), FedAvg(LocalTraining(batch_size=3))
    server, states = run_rounds(fedbn, NORMED, clients, [["c0"]] * 3)
    plain, _ = run_rounds(fedavg, NORMED, clients, [["c0"]] * 3)
    mine, theirs = deployed(fedbn, NORMED, server, states["c0"], clients["c0"]), fedavg.model(NORMED, plain)
    assert all(torch.allclose(leaf, theirs[key], atol=1e-5) for key, leaf in mine.items())


def test_fedbn_needs_something_to_keep() -> None:
    with pytest.raises(HansaError, match="No parameter matches keep = 'norm'"):
        FedBN().server_init(SMALL)


# ------------------------------------------------------------------------------------------------------------ Local


def test_local_training_sends_nothing_and_goes_on_where_it_ended() -> None:
    algorithm = Local(LocalTraining(lr=0.1))
    server = algorithm.server_init(TASK)
    assert server == {} == sent(algorithm, TASK, server)
    up, state = visit(algorithm, TASK, server, ONE)
    up, state = visit(algorithm, TASK, algorithm.server_step(TASK, server, up), ONE, state)
    w = -0.1 * slope(0.0)
    w -= 0.1 * slope(w)
    assert up.sums == {} and weight(state, "own.") == pytest.approx(w, rel=1e-5)
    assert weight(deployed(algorithm, TASK, server, state, ONE)) == pytest.approx(w, rel=1e-5)


def test_local_training_is_plain_sgd_and_knows_no_other_client() -> None:
    clients = mixed()
    _, alone = run_rounds(Local(LOCAL), SMALL, clients, [["c0"], ["c0"]])
    _, among = run_rounds(Local(LOCAL), SMALL, clients, [["c0", "c1"], ["c2", "c0"]])
    assert equal(alone["c0"], among["c0"])


def test_local_training_can_stay_near_its_start() -> None:
    algorithm = Local(LocalTraining(lr=0.1, epochs=2), strength=2.0)
    _, state = visit(algorithm, TASK, {}, ONE)
    _, state = visit(algorithm, TASK, {}, ONE, state)
    w = 0.0
    for _ in range(4):
        w -= 0.1 * (slope(w) + 2.0 * (w - 0.0))
    assert weight(state, "own.") == pytest.approx(w, rel=1e-5)


def test_a_frozen_part_is_not_stored_with_every_client() -> None:
    algorithm = Local(LocalTraining(train="head"))
    start = {key: torch.full_like(leaf, 0.5) for key, leaf in SMALL.params().items()}
    task = Task(SMALL.model, (3,), 2, start=start)
    state = algorithm.client_init(task, mixed()["c0"])
    assert equal(state, nest("own.head", pick("head", start)))
    assert equal(deployed(algorithm, task, {}, state, mixed()["c0"]), start)
