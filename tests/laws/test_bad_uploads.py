"""A bad upload ≡ that client missing: it is refused by name, and nothing else of the run changes."""

from __future__ import annotations

import pytest
import torch
from battery import ALGORITHMS, CLIENTS, LOCAL, clients_states, experiment, federation, outcome
from law_examples import POISONS, Huge, Poisoned, Without
from test_laws import every_algorithm, one_visit

from hansa.algorithms.fedavg import FedAvg
from hansa.contract import Algorithm
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine, perform
from hansa.engines.upload_check import layout_of
from hansa.engines.vectorised import Vectorised
from hansa.errors import Diverged
from hansa.models.dense import Linear
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star, Sweep
from hansa.running.experiment import Experiment
from hansa.training.local import LocalTraining
from hansa.tree import equal

BAD, SIZE = "c2", 14  # the client that uploads what it should not, and its samples
VARIED = ("fedavg", "scaffold", "fedrep", "robust", "each", "mimelite", "personal")
ENGINES = {"serial": Serial(), "vectorised": Vectorised(), "stacked": Vectorised(path="stacked")}


def poisoned(name: str, how: str, engine: Engine, orchestration: Orchestration) -> tuple[Experiment, Experiment]:
    """An experiment with a bad client, and the one in which it is missing."""
    algorithm = ALGORITHMS[name]
    made = {"rounds": 2, "engine": engine, "orchestration": orchestration}
    bad = experiment(Poisoned(algorithm, how, SIZE), **made)
    missing = experiment(algorithm, **{**made, "orchestration": Without(orchestration, BAD)})
    return bad, missing


@pytest.mark.parametrize("how", POISONS)
@pytest.mark.parametrize("name", VARIED)
def test_a_bad_upload_is_a_missing_client(name: str, how: str) -> None:
    left, right = (outcome(one) for one in poisoned(name, how, Serial(), Sweep()))
    for record in left[1].records:
        assert list(record["failed"]) == [BAD] and f"Client '{BAD}'" in record["failed"][BAD]
    assert equal(left[0].server, right[0].server)
    mine, others = clients_states(left[0]), clients_states(right[0])
    assert mine.keys() == others.keys() and all(equal(mine[client], others[client]) for client in mine)


@pytest.mark.parametrize("how", ["one NaN", "shape of one", "weight 1e12", "more leaves"])
@pytest.mark.parametrize("engine", [Vectorised(), Vectorised(path="stacked"), Processes(1)], ids=str)
def test_in_every_engine(engine: Engine, how: str) -> None:
    left, right = (outcome(one) for one in poisoned("scaffold", how, engine, Sweep()))
    assert all(list(record["failed"]) == [BAD] for record in left[1].records)
    assert all(torch.allclose(leaf, right[0].server[key], atol=1e-5) for key, leaf in left[0].server.items())


@pytest.mark.parametrize("how", ["one NaN", "shape of one", "weight −10"])
def test_in_a_chain_the_next_client_goes_on_from_the_last_good_one(how: str) -> None:
    left, right = (outcome(one) for one in poisoned("fedavg", how, Serial(), Chains(3)))
    assert any(BAD in record["failed"] for record in left[1].records)
    assert equal(left[0].server, right[0].server)


def with_bad_samples() -> Federation:
    """One client's samples are so large that its honest training overflows."""
    data = federation()
    arrays = {}
    for name, client in data.clients.items():
        assert client.test is not None
        x = client.train.x * (1e38 if name == BAD else 1.0)
        arrays[name] = (x.numpy(), client.train.y.numpy(), client.test.x.numpy(), client.test.y.numpy())
    return federation_from_clients(arrays)


@pytest.mark.parametrize("name", ["fedavg", "fedavg/adam", "scaffold", "fedprox"])
@pytest.mark.parametrize("engine", [Serial(), Vectorised(), Vectorised(path="stacked"), Processes(1)], ids=str)
def test_a_client_whose_training_diverges_is_left_out_also_where_many_train_together(name: str, engine: Engine) -> None:
    algorithm = ALGORITHMS[name]
    made = {"rounds": 1, "engine": engine, "model": Linear()}
    left = outcome(experiment(algorithm, **made, orchestration=Sweep(), data=with_bad_samples()))
    right = outcome(experiment(algorithm, **made, orchestration=Without(Sweep(), BAD)))
    assert list(left[1].records[0]["failed"]) == [BAD]
    assert all(torch.isfinite(leaf).all() for leaf in left[0].server.values())
    assert all(torch.allclose(leaf, right[0].server[key], atol=1e-5) for key, leaf in left[0].server.items())


@every_algorithm
def test_the_layout_of_uploads_is_known_without_any_client(algorithm: Algorithm) -> None:
    run, down = one_visit(algorithm)
    sums = algorithm.decode(run.task, perform(run.side, run.task, BAD, 5, down).upload)
    assert layout_of(algorithm, run.task, down) == {key: (leaf.shape, leaf.dtype) for key, leaf in sums.items()}


def test_a_run_of_which_every_client_diverges_says_so_and_keeps_what_was_committed() -> None:
    with pytest.raises(
        Diverged, match=r"Round 1 of phase 'only' diverged: 4 of 4 clients failed\. Client '.*Lower the learning"
    ):
        outcome(experiment(FedAvg(LocalTraining(lr=1e38, epochs=3)), orchestration=Star(4)))


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_a_server_state_that_is_not_finite_stops_the_run(engine: Engine) -> None:
    """Uploads of 1e38 are finite, and their sum is not."""
    one = experiment(Huge(FedAvg(LOCAL)), orchestration=Sweep(), engine=engine)
    with pytest.raises(Diverged, match=rf"Round 1 .* diverged: the server's 'model\..*' .* of {CLIENTS} clients \('c"):
        outcome(one)
