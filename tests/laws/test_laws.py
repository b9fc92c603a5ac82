"""Laws that every algorithm keeps, on every engine, orchestration and store."""

from __future__ import annotations

import pickle
import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tomli_w
import torch
from battery import (
    ALGORITHMS,
    CLASSES,
    COLLECTS,
    ENGINES,
    LOCAL,
    ORCHESTRATIONS,
    UNCHAINED,
    UNLINED,
    WIDTH,
    Disk,
    ListJournal,
    clients_states,
    experiment,
    federation,
    named,
    outcome,
)
from law_examples import AtSites, NormNet, Strict
from torch import Tensor

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.local import Local
from hansa.algorithms.no_training import NoTraining
from hansa.algorithms.personal import Personal
from hansa.algorithms.self_guarded import SelfGuarded
from hansa.contract import Algorithm
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines import cluster
from hansa.engines.client_side import AT_SITE
from hansa.engines.flower import Flower
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import NUMBERS, Reply, perform, receive
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.io import wire
from hansa.io.codec import piece_from_table, piece_import_paths, piece_to_table
from hansa.io.registry import CATALOGUE, find, name_of
from hansa.io.store import MemoryStore
from hansa.io.trust import Trust
from hansa.models.dense import Linear
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.star import Star, Sweep
from hansa.payload import Role, Update, join, role_of
from hansa.running.experiment import Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.running.round_book import RoundBook
from hansa.training.local import LocalTraining, Turn, train
from hansa.training.visits import drive
from hansa.training.wrappers import training_of
from hansa.tree import Tree, copy, equal, nest, pick
from near_ray import NearRay

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def same(left: tuple[PhaseRun, ListJournal], right: tuple[PhaseRun, ListJournal]) -> None:
    """Same server, same clients' states, same records, same ledger, to the last bit."""
    assert equal(left[0].server, right[0].server)
    mine, theirs = clients_states(left[0]), clients_states(right[0])
    assert mine.keys() == theirs.keys() and all(equal(mine[name], theirs[name]) for name in mine)
    assert left[1].told() == right[1].told()
    assert equal(left[0].ledger.tree(), right[0].ledger.tree())


def one_visit(algorithm: Algorithm) -> tuple[PhaseRun, Tree]:
    """A phase that has not begun, and the server's first message."""
    run = PhaseRun(experiment(algorithm), 0, MemoryStore(), None)
    return run, run.broadcast()


@every_algorithm
def test_a_visit_is_pure(algorithm: Algorithm) -> None:
    run, down = one_visit(algorithm)
    train = run.federation.clients["c2"].train
    own = run.task.view(train, {})
    state = algorithm.client_init(own, train)
    before = copy(down), copy(state), train.x.clone()
    first, next_state = algorithm.client_step(own, down, state, train, torch.Generator().manual_seed(5))
    again, next_again = algorithm.client_step(own, down, state, train, torch.Generator().manual_seed(5))
    assert equal(first.sums, again.sums) and equal(next_state, next_again)
    assert equal(down, before[0]) and equal(state, before[1]) and torch.equal(train.x, before[2])


@every_algorithm
def test_a_visit_in_turns_is_a_client_step(algorithm: Algorithm) -> None:
    run, down = one_visit(algorithm)
    train = run.federation.clients["c2"].train
    own = run.task.view(train, {})
    state, rng = algorithm.client_init(own, train), torch.Generator().manual_seed(5)
    step, after = algorithm.client_step(own, down, state, train, rng)
    turns, later = drive(algorithm.visit(own, down, state, train, torch.Generator().manual_seed(5)), train, 5)
    assert equal(step.sums, turns.sums) and equal(after, later) and step.flops == turns.flops


@every_algorithm
def test_a_server_step_is_pure(algorithm: Algorithm) -> None:
    run, down = one_visit(algorithm)
    task, server = run.task, run.server
    ups = [receive(run.context, task, down, perform(run.side, task, name, 5, down)) for name in ("c1", "c2", "c3")]
    up = ups[0] + ups[1] + ups[2]
    before = copy(server), copy(up.sums), {client: copy(own) for client, own in up.each.items()}
    assert equal(algorithm.server_step(task, server, up), algorithm.server_step(task, server, up))
    assert equal(server, before[0]) and equal(up.sums, before[1])
    assert all(equal(own, before[2][client]) for client, own in up.each.items())


@every_algorithm
def test_every_uploaded_leaf_has_a_role(algorithm: Algorithm) -> None:
    run, down = one_visit(algorithm)
    sums = algorithm.decode(run.task, perform(run.side, run.task, "c2", 5, down).upload)
    inside = algorithm.inner if isinstance(algorithm, SelfGuarded) else algorithm
    assert bool(sums) != isinstance(inside, (NoTraining, Local))  # these have nothing to tell
    assert all(isinstance(role_of(algorithm.uplink, key), Role) for key in sums)


@every_algorithm
def test_what_is_served_is_the_model(algorithm: Algorithm) -> None:
    """Of an algorithm with one model for all, what everybody has and what is served make up the global model."""
    run, _ = outcome(experiment(algorithm))
    if not algorithm.personal:
        model, x = algorithm.model(run.task, run.server), run.federation.clients["c2"].train.x
        served = run.task.params() | pick("model", algorithm.serve(run.task, run.server))
        assert torch.equal(algorithm.outputs(run.task, served, x), algorithm.outputs(run.task, model, x))


@every_algorithm
def test_algorithms_are_values(algorithm: Algorithm) -> None:
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert type(algorithm).__name__ in repr(algorithm)
    table = tomllib.loads(tomli_w.dumps(piece_to_table("algorithm", algorithm)))
    own = Trust(tuple(piece_import_paths("algorithm", algorithm)))  # none for what the catalogue has
    assert piece_from_table("algorithm", table, trust=own) == algorithm


def test_every_name_of_the_catalogue_is_in_the_battery() -> None:
    """A new algorithm is a line of the catalogue and a line of the battery; every law then tries it."""
    assert {name.partition("/")[0] for name in ALGORITHMS} == {*CATALOGUE["algorithm"], "each"}
    for name, algorithm in ALGORITHMS.items():
        known = name.partition("/")[0]
        assert known == "each" or name_of("algorithm", algorithm) == known
    assert {type(one).__name__ for one in ENGINES.values()} == {
        type(find("engine", name)()).__name__ for name in CATALOGUE["engine"]
    }
    assert {name_of("orchestration", one) for name, one in ORCHESTRATIONS.items() if name != "lines"} == set(
        CATALOGUE["orchestration"]
    )


def close(left: tuple[PhaseRun, ListJournal], right: tuple[PhaseRun, ListJournal]) -> None:
    """Same ledger and same clients; servers and states equal up to rounding: 2e-5 of a leaf after some steps."""
    assert equal(left[0].ledger.tree(), right[0].ledger.tree())
    mine, theirs = clients_states(left[0]), clients_states(right[0])
    assert mine.keys() == theirs.keys()
    for one, other in ((left[0].server, right[0].server), *((mine[name], theirs[name]) for name in mine)):
        assert one.keys() == other.keys()
        for key, leaf in one.items():
            assert leaf.dtype == other[key].dtype
            assert torch.allclose(leaf.double(), other[key].double(), rtol=2e-5, atol=2e-6), key
    for one_record, other_record in zip(left[1].records, right[1].records, strict=True):
        assert one_record["clients"] == other_record["clients"] and one_record["failed"] == other_record["failed"]
        assert one_record["metrics"].keys() == other_record["metrics"].keys()


CASES = [
    (name, orchestration)
    for name in ALGORITHMS
    for orchestration in ("star", "chains", "lines")
    if name not in {"star": set(), "chains": UNCHAINED, "lines": UNLINED}[orchestration]
]
engines = pytest.mark.parametrize("engine", ["auto", "vectorised", "stacked"])


@engines
@pytest.mark.parametrize(("name", "orchestration"), CASES, ids=["-".join(case) for case in CASES])
def test_engines_equal_serial(name: str, orchestration: str, engine: str) -> None:
    made = experiment(ALGORITHMS[name], orchestration=ORCHESTRATIONS[orchestration], rounds=2)
    found = outcome(replace(made, engine=ENGINES[engine]))
    close(outcome(made), found)
    recorded = {path for record in found[1].records for path in record["paths"]}
    assert recorded <= {"serial", "stacked", "sample-space", "one-by-one", "pooled"}
    if (
        engine == "stacked"
        and training_of(ALGORITHMS[name]) is not None
        and name not in ("fedbn", "personal/own-encoder", "describe/labels", "describe/task2vec")
        and (name, orchestration) not in {(one, "lines") for one in COLLECTS}  # whose first window is all there is
    ):
        later = found[1].records[1 if name in COLLECTS else 0 :]
        assert {path for record in later for path in record["paths"]} == {"stacked"}  # not in secret one by one


@pytest.mark.parametrize("name", ALGORITHMS)
def test_processes_equal_serial(name: str) -> None:
    """Starting processes takes seconds, so each algorithm is tried in one orchestration: the most demanding."""
    orchestration = ORCHESTRATIONS["star" if name in UNCHAINED else "chains"]
    made = experiment(ALGORITHMS[name], orchestration=orchestration, rounds=2)
    same(outcome(made), outcome(replace(made, engine=Processes(1))))


@pytest.mark.parametrize("name", ["scaffold", "fed3r", "fedproto", "flic"])
def test_actors_of_a_cluster_equal_serial(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is the one of processes, so algorithms that differ in what they send and keep are enough."""
    monkeypatch.setattr(cluster, "_ray", lambda: NearRay({"CPU": 1.0}))
    made = experiment(
        ALGORITHMS[name], orchestration=ORCHESTRATIONS["star" if name in UNCHAINED else "chains"], rounds=2
    )
    same(outcome(made), outcome(replace(made, engine=ENGINES["ray"])))


@pytest.mark.parametrize("name", ["scaffold", "ditto"])
def test_clients_divided_over_processes_equal_serial(name: str) -> None:
    """What is learnt is the same to the bit; metrics are made of other blocks of samples, so of other last digits."""
    made = experiment(ALGORITHMS[name], orchestration=ORCHESTRATIONS["chains"], rounds=2)
    (one, journal), (other, told) = outcome(made), outcome(replace(made, engine=Processes(2)))
    assert equal(one.server, other.server) and equal(one.ledger.tree(), other.ledger.tree())
    mine, theirs = clients_states(one), clients_states(other)
    assert mine.keys() == theirs.keys() and all(equal(mine[client], theirs[client]) for client in mine)
    for left, right in zip(journal.records, told.records, strict=True):
        assert left["metrics"] == pytest.approx(right["metrics"], rel=1e-5)


@every_algorithm
def test_clients_elsewhere_equal_serial(algorithm: Algorithm) -> None:
    """The run holds no samples and no states: names, numbers of samples, and which version of a state is committed."""
    made = experiment(algorithm)
    personal = Phase("then", Local(LOCAL), Sweep(), 2)
    made = replace(made, phases=(*made.phases, personal))
    far = replace(made, federation=made.federation.far(), engine=Flower(AtSites.of(made.federation.clients)))
    (one, journal), (other, told) = outcome(made), outcome(far)
    assert equal(one.server, other.server) and journal.told() == told.told()
    assert all(set(state) == {AT_SITE} for state in clients_states(other).values()) and clients_states(other)


@every_algorithm
def test_disk_equals_memory(algorithm: Algorithm, disk: Disk) -> None:
    same(outcome(experiment(algorithm), disk()), outcome(experiment(algorithm)))


@every_algorithm
@pytest.mark.parametrize("orchestration", ["star", "lines"])
@pytest.mark.parametrize("stop_after", [1, 2])
def test_resumed_equals_uninterrupted(algorithm: Algorithm, orchestration: str, stop_after: int, disk: Disk) -> None:
    """Also in the middle of a window, with models under way."""
    if orchestration == "lines" and named(algorithm) in UNLINED:
        orchestration = "sweep"
    made = experiment(algorithm, orchestration=ORCHESTRATIONS[orchestration], rounds=4)
    journal = ListJournal()
    store = disk()
    run_phases(made, store, journal, stop=lambda: len(journal.records) >= stop_after)
    store.close()
    store = disk()
    assert run_phases(made, store, journal)
    same((PhaseRun(made, 0, store, None), journal), outcome(made))


@every_algorithm
def test_a_chain_of_one_is_a_star(algorithm: Algorithm) -> None:
    """Every algorithm can be given chains, if they are of one client."""
    star = outcome(experiment(algorithm, orchestration=Star(fraction=1.0)))
    chain = outcome(experiment(algorithm, orchestration=Chains(1)))
    if algorithm.one_shot:  # a sweep has an order of its own, and sums of floats know their order
        assert all(torch.allclose(star[0].server[key], chain[0].server[key], rtol=1e-12) for key in star[0].server)
    else:
        same(star, chain)


@pytest.mark.parametrize("name", ["fedavg", "fedavg/momentum"])
def test_one_long_chain_is_sequential_training(name: str) -> None:
    """One chain of all clients ends where plain SGD visiting them one after the other ends."""
    algorithm = FedAvg(ALGORITHMS[name].local)  # type: ignore[attr-defined]
    made = experiment(algorithm, orchestration=Chains(99), rounds=1)
    stage, _ = outcome(made)
    (order,) = Chains(99).plan(0, stage.names, stage.roster(stage.phase.orchestration).seed)
    params, book = made.task.params(), RoundBook(stage)
    for client in order:
        turn = Turn(algorithm.local, made.task, params)
        params = train(turn, made.federation.clients[client].train, book.seed(client, 0)).params
    for key, leaf in params.items():
        assert torch.allclose(leaf, stage.server[f"model.{key}"], atol=1e-6)


def test_join_is_associative() -> None:
    uplink = {"model": Role.STEP, "sum": Role.SUM}
    rng = torch.Generator().manual_seed(0)

    def up(weight: float) -> Update:
        draw = torch.randn(2, 3, generator=rng, dtype=torch.float64)
        return Update({"model.a": weight * draw[0], "sum": draw[1]}, weight)

    a, b, c = up(2.0), up(3.0), up(5.0)
    left, right = join(uplink, join(uplink, a, b), c), join(uplink, a, join(uplink, b, c))
    assert all(torch.allclose(left.sums[key], right.sums[key], rtol=1e-12) for key in left.sums)
    assert (left.weight, left.count) == (right.weight, right.count) == (10.0, 3)


@every_algorithm
def test_the_ledger_counts_what_is_serialised(algorithm: Algorithm) -> None:
    run, down = one_visit(algorithm)
    reply = perform(run.side, run.task, "c2", 5, down)
    assert reply.bytes_down == (len(wire.pack(down)) if down else 0)  # where there is nothing to tell, nothing is sent
    there = len(wire.pack(reply.upload, reply.numbers)) if reply.upload else 0
    assert reply.bytes_up == there == wire.cost(reply.upload, NUMBERS)


@every_algorithm
def test_ledger_and_journal_agree(algorithm: Algorithm) -> None:
    stage, journal = outcome(experiment(algorithm, orchestration=Star(3)))
    totals = stage.ledger.totals()
    for key in ("bytes_up", "bytes_down", "bytes_evaluate", "flops"):
        assert totals[key] == pytest.approx(sum(record[key] for record in journal.records))
    assert totals["visits"] == sum(record["clients"] for record in journal.records)


@pytest.mark.parametrize("orchestration", [Sweep(), Sweep(2), Chains(2), Chains(99)], ids=str)
@pytest.mark.parametrize("pieces", [1, 2, 5, 9])
def test_fed3r_is_the_centralised_ridge_under_any_partition(orchestration: object, pieces: int) -> None:
    whole = federation()
    x = torch.cat([client.train.x for client in whole.clients.values()])
    y = torch.cat([client.train.y for client in whole.clients.values()])
    parts = zip(x.chunk(pieces), y.chunk(pieces), strict=True)
    tests = (x[:4].numpy(), y[:4].numpy())
    data = federation_from_clients({f"p{i}": (a.numpy(), b.numpy(), *tests) for i, (a, b) in enumerate(parts)})
    algorithm = Fed3R(0.01, "none", products="float64", wire="float64")
    made = experiment(algorithm, data=data, model=Linear())  # features that are the inputs, whatever the batch
    rounds = 1 if orchestration != Sweep(2) else -(-pieces // 2)
    phase = type(made.phases[0])("ridge", algorithm, orchestration, rounds)  # type: ignore[arg-type]
    stage, _ = outcome(type(made)(made.task, data, (phase,), made.engine))
    z = made.task.features(made.task.params(), x).double()
    hot = torch.nn.functional.one_hot(y, CLASSES).double()
    expected = torch.linalg.solve(z.T @ z + 0.01 * torch.eye(z.shape[1]).double(), z.T @ hot).T
    got = algorithm.model(made.task, stage.server)["head.weight"]
    assert torch.allclose(got.double(), expected, rtol=1e-5)  # the model itself is float32
    solved = torch.linalg.solve(
        stage.server["ridge.gram"] + 0.01 * torch.eye(z.shape[1]).double(), stage.server["ridge.moment"]
    ).T
    assert float((solved - expected).norm() / expected.norm()) < 1e-9


def test_phases_continue_each_other(disk: Disk) -> None:
    """The second phase starts from the first one's model, and a stop between phases loses nothing."""
    first, second = experiment(Fed3R()), experiment(FedAvg(LOCAL), rounds=2)
    both = type(first)(first.task, first.federation, (*first.phases, *second.phases), first.engine)
    stage = outcome(first)[0]
    head = stage.algorithm.model(stage.task, stage.server)
    start = PhaseRun(both, 1, MemoryStore(), stage).server
    assert equal(pick("model", start), head)
    journal, store = ListJournal(), disk()
    assert not run_phases(both, store, journal, stop=lambda: True)
    assert len(journal.records) == 1
    assert run_phases(both, store, journal)
    assert journal.told() == outcome(both)[1].told()


def test_frozen_leaves_learnt_earlier_are_sent_once() -> None:
    """After FedAvg moved everything, a head-only phase tells each client the features at its first visit."""
    first = experiment(FedAvg(LOCAL), rounds=1)
    second = experiment(FedAvg(LocalTraining(train="head")), orchestration=Sweep(), rounds=1).phases[0]
    again = type(second)("again", second.algorithm, Star(fraction=1.0), 3)
    both = type(first)(first.task, first.federation, (*first.phases, again), first.engine)
    stage, journal = outcome(both)
    head = wire.size(nest("model", pick("model", stage.broadcast())))
    features = wire.size({key: leaf for key, leaf in stage.task.start.items() if key.startswith("features.")})
    population = len(stage.names)
    assert [r["bytes_down"] for r in journal.records[1:]] == [population * (head + features)] + 2 * [population * head]


def test_personal_leaves_never_leave_the_client() -> None:
    run, down = one_visit(Personal(FedAvg(LOCAL), keep="features"))
    reply = perform(run.side, run.task, "c2", 5, down)
    assert all(key.startswith("model.head.") for key in (*down, *reply.upload))
    assert {key.split(".")[1] for key in reply.state} == {"features"}


def test_clients_of_different_widths_learn_together() -> None:
    made = experiment(ALGORITHMS["personal/own-encoder"], rounds=30)
    stage, journal = outcome(made)
    widths = {stage.deployed(name)[1]["features.1.weight"].shape[1] for name in stage.names}
    assert widths == {WIDTH, WIDTH + 1, WIDTH + 2}
    accuracy = [record["metrics"]["client_accuracy_weighted"] for record in journal.records]
    assert accuracy[-1] > accuracy[0]


def test_a_personal_phase_hands_its_models_on() -> None:
    """A phase after a personal one starts every client from its own model."""
    first = experiment(Personal(FedAvg(LOCAL), keep="head"), rounds=2)
    again = type(first.phases[0])("again", Personal(FedAvg(LOCAL), keep="head"), Star(4), 1)
    both = type(first)(first.task, first.federation, (*first.phases, again), first.engine)
    store = MemoryStore()
    run_phases(first, store, ListJournal())
    stage = PhaseRun(both, 0, store, None)
    then = PhaseRun(both, 1, store, stage)
    for name in stage.names:
        data = both.federation.clients[name].train
        own = pick("own", then.algorithm.client_init(then.side.view(name, data), data))
        assert equal(own, {key: leaf for key, leaf in stage.deployed(name)[1].items() if key.startswith("head.")})


def test_the_server_sees_each_clients_prototypes() -> None:
    stage, _ = outcome(experiment(ALGORITHMS["each"], orchestration=Star(fraction=1.0), rounds=1))
    assert sorted(stage.server) == [f"bank.{name}" for name in stage.names]


def test_buffers_are_averaged_like_parameters() -> None:
    """BatchNorm's running mean after one full round is the weighted mean of the clients' running means."""
    algorithm = FedAvg(LocalTraining(lr=0.1, batch_size=1000))
    made = experiment(algorithm, rounds=1, orchestration=Star(fraction=1.0), model=NormNet())
    stage, _ = outcome(made)
    key, total, expected = "features.1.running_mean", 0, torch.zeros(6)
    start = made.task.params()
    for client in made.federation.clients.values():
        z = torch.nn.functional.linear(client.train.x, start["features.0.weight"], start["features.0.bias"])
        total, expected = total + len(client.train), expected + len(client.train) * 0.1 * z.mean(0)
    assert torch.allclose(stage.server[f"model.{key}"], expected / total, atol=1e-6)
    assert not torch.allclose(expected, torch.zeros(6))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed_decides_everything(seed: int) -> None:
    algorithm = ALGORITHMS["fedavg"]
    same(outcome(experiment(algorithm, seed=seed)), outcome(experiment(algorithm, seed=seed)))
    other = outcome(experiment(algorithm, seed=seed + 10))
    assert not equal(other[0].server, outcome(experiment(algorithm, seed=seed))[0].server)


def test_every_method_sees_the_same_clients() -> None:
    """FedAvg after Fed3R samples the clients that FedAvg alone samples."""
    alone, init = experiment(FedAvg(LOCAL)), experiment(Fed3R())
    both = type(alone)(alone.task, alone.federation, (*init.phases, *alone.phases), alone.engine)
    seeds = {run.roster(run.phase.orchestration).seed for run in (outcome(alone)[0], outcome(both)[0])}
    assert len(seeds) == 1


def test_a_failing_client_is_named() -> None:
    data = federation()
    broken = federation_from_clients({"good": _arrays(data, "c1"), "bad": (torch.ones(4, 9).numpy(), [0, 1, 2, 0])})
    for engine in (Serial(), Vectorised(), Processes(1)):
        made = experiment(FedAvg(LOCAL), data=broken, engine=engine, model=Strict(), orchestration=Star(2))
        _, journal = outcome(made)
        assert all("Client 'bad'" in record["failed"]["bad"] and record["clients"] == 1 for record in journal.records)
        with pytest.raises(HansaError, match=r"Round 1 of phase 'only': 1 of 2 clients failed. Client 'bad'"):
            outcome(replace(made, phases=(replace(made.phases[0], minimum=0.9),)))


DAMAGES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "nan": ("moment", lambda leaf: leaf * float("nan")),
    "shape": ("moment", lambda leaf: leaf[1:]),
    "long": ("moment", lambda leaf: leaf * 1e6),
    "negative": ("gram", lambda leaf: -leaf),
    "huge": ("gram", lambda leaf: leaf * 1e30),
    "counts": ("counts", lambda leaf: -leaf),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_bad_statistics_are_refused_by_name_and_the_round_goes_on(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's upload is damaged on its way: the classifier is that of all the others."""
    from hansa.engines import serial

    whole = serial.perform

    def damaged(*arguments: Any) -> Reply:
        reply = whole(*arguments)
        if reply.client != "c3":
            return reply
        key, change = DAMAGES[damage]
        return replace(reply, upload={**reply.upload, key: change(reply.upload[key])})

    monkeypatch.setattr(serial, "perform", damaged)
    stage, journal = outcome(experiment(Fed3R()))
    monkeypatch.undo()
    assert list(journal.records[0]["failed"]) == ["c3"] and "Client 'c3'" in journal.records[0]["failed"]["c3"]
    data = federation()
    others = replace(data, clients={name: client for name, client in data.clients.items() if name != "c3"})
    fresh, _ = outcome(experiment(Fed3R(), data=others))
    assert all(torch.allclose(stage.server[key], fresh.server[key], rtol=1e-9) for key in fresh.server)


def _arrays(data: Federation, name: str) -> tuple[object, ...]:
    client = data.clients[name]
    assert client.test is not None
    return (client.train.x.numpy(), client.train.y.numpy(), client.test.x.numpy(), client.test.y.numpy())
