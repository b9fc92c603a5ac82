"""User-level privacy: what a client can change is bounded, what is released is noised, and off is off."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace

import pytest
import tomli_w
import torch
from hand_problems import mixed, rng, sent

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fed3r_ft import Fed3RFT
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.mime import Mime
from hansa.algorithms.mimelite import MimeLite
from hansa.algorithms.private import Private
from hansa.algorithms.robust import Robust
from hansa.algorithms.scaffold import Scaffold
from hansa.algorithms.wima import Wima
from hansa.channels.accounting import calibrated
from hansa.contract import Algorithm
from hansa.data.federation import federation_from_clients
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.io.codec import piece_from_table, piece_to_table
from hansa.io.store import DiskStore, MemoryStore
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star, Sweep
from hansa.payload import Update
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.task import ClientData, Model, Task
from hansa.training.local import LocalTraining
from hansa.tree import Tree, equal, norm, zeros_like
from journals import ListJournal

LOCAL = LocalTraining(lr=0.3, epochs=2, batch_size=4)
TASK = Task(MLP((4,)), (3,), 2, population=4, samples=47)
OFF = {"epsilon": math.inf, "clip": math.inf}
UNIFORM: dict[str, Algorithm] = {
    "fedavg": FedAvg(LOCAL, weights="uniform"),
    "fedprox": FedProx(LOCAL, mu=0.5, weights="uniform"),
    "scaffold": Scaffold(LOCAL, weights="uniform"),
    "feddyn": FedDyn(LOCAL, 0.1, weights="uniform"),
    "mime": Mime(LOCAL, 0.5, weights="uniform"),
    "mimelite": MimeLite(LOCAL, 0.5, weights="uniform"),
    "ditto": Ditto(LOCAL, weights="uniform"),
    "fedper": FedPer(LOCAL, weights="uniform"),
    "wima": Wima(FedAvg(LOCAL, weights="uniform"), window=2),
}


def ran(
    algorithm: Algorithm,
    *,
    engine: Engine | None = None,
    model: Model | None = None,
    orchestration: Orchestration | None = None,
    rounds: int = 3,
    seed: int = 0,
    stop_after: int | None = None,
    store: MemoryStore | DiskStore | None = None,
) -> PhaseRun:
    """A phase of four clients, run to its end or to a stop."""
    clients = {k: (c.x.numpy(), c.y.numpy(), c.x.numpy(), c.y.numpy()) for k, c in mixed().items()}
    phase = Phase("only", algorithm, orchestration or Star(fraction=1.0), rounds, evaluate_every=rounds)
    task = replace(TASK, model=model or TASK.model, seed=seed)
    made = Experiment(task, federation_from_clients(clients), (phase,), engine or Serial(), seed)
    store, journal = store or MemoryStore(), ListJournal()
    run_phases(made, store, journal, stop=lambda: len(journal.records) == stop_after)
    return PhaseRun(made, 0, store, None)


def close(left: Tree, right: Tree) -> bool:
    return left.keys() == right.keys() and all(torch.allclose(one, right[key], atol=1e-6) for key, one in left.items())


# ----------------------------------------------------------------------------------------------------------- off is off


@pytest.mark.parametrize(
    "engine", [Serial(), Vectorised(), Vectorised(path="stacked")], ids=["serial", "auto", "stacked"]
)
@pytest.mark.parametrize("inner", UNIFORM.values(), ids=UNIFORM.keys())
def test_without_bound_and_noise_it_is_the_wrapped_algorithm(inner: Algorithm, engine: Engine) -> None:
    assert close(ran(Private(inner, **OFF), engine=engine, rounds=4).server, ran(inner, engine=engine, rounds=4).server)


@pytest.mark.parametrize(
    "inner", [FedAvg(LOCAL), Scaffold(LOCAL), FedDyn(LOCAL, 0.1)], ids=["fedavg", "scaffold", "feddyn"]
)
def test_all_clients_count_the_same_whatever_the_wrapped_algorithm_says(inner: Algorithm) -> None:
    uniform = replace(inner, weights="uniform")  # type: ignore[type-var]
    assert close(ran(Private(inner, **OFF)).server, ran(uniform).server)


# --------------------------------------------------------------------------------------------- what a client can change


def upload(algorithm: Algorithm, data: ClientData) -> Update:
    server = algorithm.server_init(TASK)
    return algorithm.client_step(TASK, sent(algorithm, TASK, server), {}, data, rng())[0]


@pytest.mark.parametrize(
    "inner", [FedAvg(LOCAL), Scaffold(LOCAL), MimeLite(LOCAL, 0.5)], ids=["fedavg", "scaffold", "mimelite"]
)
def test_a_long_upload_is_shortened_over_all_its_leaves_and_a_short_one_is_not(inner: Algorithm) -> None:
    data = mixed()["c3"]
    whole = upload(inner, data)
    length = norm(whole.sums) / whole.weight
    for clip in (0.25 * length, 4 * length):
        found = upload(Private(inner, clip=clip, noise="simulated"), data)
        assert found.weight == 1.0 and norm(found.sums) == pytest.approx(min(clip, length), rel=1e-5)
        ratios = {
            round(float(leaf.norm() / whole.sums[key].norm()), 6) for key, leaf in found.sums.items() if leaf.any()
        }
        assert max(ratios) - min(ratios) < 1e-4  # one factor for all leaves, so the direction is kept


def test_an_upload_that_is_not_finite_is_refused() -> None:
    data = mixed()["c1"]
    with pytest.raises(HansaError, match="not finite"):
        upload(Private(FedAvg(LOCAL), noise="simulated"), replace(data, x=data.x * math.inf))


def test_a_thousandfold_client_counts_as_one() -> None:
    small = mixed()["c1"]
    large = ClientData(small.x.repeat(1000, 1), small.y.repeat(1000))
    one = FedAvg(LocalTraining(lr=0.1, steps=1, batch_size=10_000))
    few, many = (upload(Private(one, clip=9.0, noise="simulated"), data) for data in (small, large))
    assert few.weight == many.weight == 1.0 and close(few.sums, many.sums)


@pytest.mark.parametrize("present", [1, 3])
def test_the_sum_is_divided_by_who_was_asked_not_by_who_answered(present: int) -> None:
    algorithm, task = Private(FedAvg(LOCAL), **OFF), replace(TASK, cohort=3)
    server = algorithm.server_init(task)
    ups = [upload(algorithm, data) for data in list(mixed().values())[:present]]
    total = sum(ups[1:], start=ups[0])
    stepped = algorithm.server_step(task, server, total)
    for key, leaf in total.sums.items():
        assert torch.allclose(stepped[key] - server[key], leaf / 3, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------ the noise

WIDE = replace(TASK, model=Linear(), input_shape=(20_000,), cohort=5, visits=4, rounds=9, population=50)


@pytest.mark.parametrize("noise", ["system", "simulated"])
@pytest.mark.parametrize("clip", [0.5, 3.0])
def test_the_released_sum_has_the_announced_noise(noise: str, clip: float) -> None:
    algorithm = Private(FedAvg(LOCAL), epsilon=2.0, clip=clip, noise=noise)  # type: ignore[arg-type]
    server = algorithm.server_init(WIDE)
    nothing = Update(zeros_like({key: leaf for key, leaf in server.items() if key.startswith("model.")}), 5.0, 5)
    moved = algorithm.server_step(WIDE, server, nothing)["model.head.weight"] - server["model.head.weight"]
    expected = calibrated(2.0, 1e-5, 4) * clip
    assert float((5 * moved).std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * moved.numel()))
    assert abs(float((5 * moved).mean())) < 5 * expected / math.sqrt(moved.numel())


def test_every_round_and_every_phase_draws_anew() -> None:
    algorithm = Private(FedAvg(LOCAL), epsilon=2.0, noise="simulated")
    server = algorithm.server_init(WIDE)
    nothing = Update(zeros_like({key: leaf for key, leaf in server.items() if key.startswith("model.")}), 5.0, 5)
    places = [{"round": 0}, {"round": 1}, {"place": 1}, {"seed": 1}]
    found = [algorithm.server_step(replace(WIDE, **one), server, nothing)["model.head.weight"] for one in places]
    assert all(not torch.equal(found[0], other) for other in found[1:])
    fresh = replace(algorithm, noise="system")
    assert not equal(fresh.server_step(WIDE, server, nothing), fresh.server_step(WIDE, server, nothing))


def test_noise_follows_the_rounds_that_visit_the_most_visited_client() -> None:
    private = Private(FedAvg(LOCAL), epsilon=3.0, noise="simulated")
    for orchestration, rounds in ((Star(fraction=1.0), 6), (Sweep(2), 6), (Star(1), 6)):
        run = ran(private, orchestration=orchestration, rounds=rounds)
        legs = [leg.chain[0] for number in range(rounds) for leg in run.planner.round(number)]
        most = max(legs.count(name) for name in run.names)
        assert run.task.visits == most and private.multiplier(run.task) == pytest.approx(calibrated(3.0, 1e-5, most))
    assert ran(private, orchestration=Sweep(2), rounds=6).task.visits == 3


def test_both_exchanges_of_a_step_are_counted() -> None:
    run = ran(Private(Mime(LOCAL, 0.5), noise="simulated"), orchestration=Star(fraction=1.0), rounds=6)
    assert run.task.visits == 6


# -------------------------------------------------------------------------------------------- runs that are interrupted


def test_a_resumed_run_goes_on_from_the_noise_it_committed(tmp_path: object) -> None:
    """With noise of the operating system no two runs are alike; what was released before the stop is kept as it was."""
    private = Private(FedAvg(LOCAL), epsilon=5.0)
    path = tmp_path / "state.sqlite"  # type: ignore[operator]
    store = DiskStore(path)
    before = ran(private, rounds=4, stop_after=2, store=store).server
    store.close()
    store = DiskStore(path)
    assert equal(store.get("0/server") or {}, before)
    after = ran(private, rounds=4, store=store).server
    assert not equal(before, after)
    assert not close(after, ran(private, rounds=4).server)


def test_simulated_runs_can_be_repeated() -> None:
    private = Private(FedAvg(LOCAL), epsilon=5.0, noise="simulated")
    assert equal(ran(private).server, ran(private).server)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Private(Fed3R()), "'privacy' of its own"),
        (lambda: Private(Robust(FedAvg())), "single uploads"),
        (lambda: Robust(Private(FedAvg())), "needs single uploads"),
        (lambda: Robust(Wima(Private(FedAvg()))), "needs single uploads"),
        (lambda: Fed3RFT(Private(FedAvg())), "statistics beside it"),
        (lambda: Private(Fed3RFT()).server_init(TASK), "sum over samples"),
        (lambda: Private(epsilon=0.0), "'epsilon'"),
        (lambda: Private(clip=-1.0), "'clip'"),
        (lambda: Private(clip=math.inf), "must be finite"),
        (lambda: Private(clip=math.nan), "'clip'"),
        (lambda: Private(delta=1.0), "'delta'"),
        (lambda: Private(Mime(), cohorts="secret"), "several times"),
    ],
)
def test_what_cannot_be_private_is_refused_in_a_sentence(make: object, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        make()  # type: ignore[operator]


def test_uploads_that_lack_leaves_are_refused() -> None:
    algorithm = Private(FedAvg(LOCAL), noise="simulated")
    server = algorithm.server_init(TASK)
    up = upload(algorithm, mixed()["c0"])
    short = replace(up, sums={key: leaf for key, leaf in up.sums.items() if "bias" not in key})
    with pytest.raises(HansaError, match="same leaves"):
        algorithm.server_step(TASK, server, up + short)


def test_it_is_one_line_of_a_plan() -> None:
    line = (
        'algorithm = { name = "private", epsilon = 8.0, clip = 0.5, inner = { name = "fedavg", local = { lr = 0.1 } } }'
    )
    found = piece_from_table("algorithm", tomllib.loads(line)["algorithm"])
    assert found == Private(FedAvg(LocalTraining(lr=0.1)), 8.0, clip=0.5)
    assert piece_from_table("algorithm", tomllib.loads(tomli_w.dumps(piece_to_table("algorithm", found)))) == found
