"""Robust aggregation: the rules by hand, the mean as their limit, and clients that lie."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import pytest
import tomli_w
import torch
from hand_problems import SAMPLES, mixed, rng, visit

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fed3r_ft import Fed3RFT
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedncm import FedNCM
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.local import Local
from hansa.algorithms.mime import Mime
from hansa.algorithms.mimelite import MimeLite
from hansa.algorithms.personal import Personal
from hansa.algorithms.robust import Robust
from hansa.algorithms.scaffold import Scaffold
from hansa.algorithms.wima import Wima
from hansa.contract import Algorithm
from hansa.data.clients import whole_client
from hansa.data.dataset import Samples
from hansa.data.federation import Federation, build_federation, federation_from_clients
from hansa.data.partitions.label import Iid
from hansa.data.sources.digits import Digits
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.io.codec import piece_from_table, piece_to_table
from hansa.io.registry import Piece
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star
from hansa.payload import Update, set_apart
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.server.optimisers import Adam
from hansa.server.robust_rules import Krum, Median, NormBound, Rule, TrimmedMean
from hansa.task import ClientData, Model, Task
from hansa.training.local import LocalTraining
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, pick, scale
from journals import ListJournal

LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=4)
SMALL = Task(MLP((4,)), (3,), 2, population=4, samples=SAMPLES)
EQUAL, UNEQUAL = mixed(sizes=(8, 8, 8, 8)), mixed()
ONES = torch.ones(5, dtype=torch.float64)
COLUMN = torch.tensor([[0.0], [1.0], [2.0], [4.0], [100.0]])


def rounds_of_all(algorithm: Algorithm, clients: Mapping[str, ClientData], rounds: int = 3) -> Tree:
    """Rounds of all clients as an engine runs them: every upload is decoded and filed under its client's name."""
    task = replace(SMALL, samples=sum(map(len, clients.values())))
    server, states = algorithm.server_init(task), dict[str, Tree]()
    for number in range(rounds):
        ups = []
        for name, data in clients.items():
            up, states[name] = visit(algorithm, task, server, data, states.get(name), number)
            up = replace(up, sums=algorithm.decode(task, algorithm.encode(up.sums)))
            ups.append(set_apart(algorithm.uplink, name, up))
        server = algorithm.server_step(task, server, sum(ups[1:], start=ups[0]))
    return server


def close(left: Tree, right: Tree) -> bool:
    return left.keys() == right.keys() and all(
        torch.allclose(leaf, right[key], atol=1e-5) for key, leaf in left.items()
    )


# --------------------------------------------------------------------------------------------------------------- rules


def test_medians_by_hand() -> None:
    rows = torch.tensor([[1.0, 9.0], [2.0, -50.0], [90.0, 7.0]])
    assert Median().combine(rows, ONES[:3]).tolist() == [2.0, 7.0]
    even = torch.tensor([[1.0], [2.0], [5.0], [90.0]])
    assert Median().combine(even, ONES[:4]).tolist() == [3.5]
    assert Median().combine(even[:2], ONES[:2]).tolist() == [1.5] and Median().combine(even[:1], ONES[:1]) == 1.0


def test_trimmed_means_by_hand() -> None:
    assert TrimmedMean(0.2).combine(COLUMN, ONES).item() == pytest.approx(7 / 3)
    assert TrimmedMean(0.39).combine(COLUMN, ONES).item() == pytest.approx(7 / 3)  # 1.95 is rounded down
    assert TrimmedMean(0.4).combine(COLUMN, ONES).item() == 2.0
    hundred = torch.arange(100.0).square()[:, None]
    trimmed = TrimmedMean(0.29).combine(hundred, torch.ones(100))  # 0.29 × 100 = 28.999…
    assert trimmed.item() == pytest.approx(sum(k * k for k in range(29, 71)) / 42)


def test_columns_are_sorted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(6, 11, generator=rng())
    whole = Median().combine(rows, ONES)
    monkeypatch.setattr("hansa.server.robust_rules.COLUMNS", 3)
    assert torch.equal(Median().combine(rows, ONES), whole)


def test_krums_scores_by_hand() -> None:
    """Five rows, f = 1: every score is the sum of the squared distances to the two nearest."""
    assert Krum(1).scores(COLUMN).tolist() == [1 + 4, 1 + 1, 1 + 4, 4 + 9, 96**2 + 98**2]
    assert Krum(1).combine(COLUMN, ONES).item() == 1.0
    assert Krum(1, selected=3).combine(COLUMN, ONES).item() == 1.0  # of 0, 1 and 2
    assert Krum(1, selected=4).combine(COLUMN, ONES).item() == 7 / 4


def test_krum_tells_close_rows_apart_far_from_zero() -> None:
    """Distances of 10⁻³ between rows of length 10³, which a product of float32 matrices does not see."""
    rows = 100.0 + torch.tensor([[0.0], [1.0], [2.0], [4.0], [9.0]]) * torch.full((1, 100), 2.0**-13)
    assert torch.equal(Krum(1).combine(rows, ONES), rows[1])


def test_krum_says_how_many_uploads_it_needs() -> None:
    with pytest.raises(HansaError, match=r"Krum with byzantine = 2 and selected = 1 needs 7 uploads in a round. Got 5"):
        Krum(2).combine(COLUMN, ONES)
    with pytest.raises(HansaError, match=r"selected = 6 needs 6 uploads in a round. Got 5: visit more clients"):
        Krum(1, selected=6).combine(COLUMN, ONES)


def test_norm_bounds_by_hand() -> None:
    rows, weights = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([1.0, 2.0, 1.0]).double()
    short = NormBound(2.5).combine(rows, weights)
    assert torch.allclose(short, torch.tensor([1.5 / 4, (2.0 + 2.0) / 4]))
    median = NormBound().combine(rows, weights)  # lengths 5, 1, 0: all at most 1
    assert torch.allclose(median, torch.tensor([0.6 / 4, (0.8 + 2.0) / 4]))
    assert NormBound().combine(torch.zeros(3, 2), weights).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TrimmedMean(0.5), r"'beta' of the trimmed mean must lie in \[0, 0.5\). Got 0.5"),
        (lambda: Krum(-1), "'byzantine' of Krum must be a whole number ≥ 0. Got -1"),
        (lambda: Krum(selected=0), "'selected' of Krum must be a whole number ≥ 1. Got 0"),
        (lambda: NormBound(0.0), "'bound' of norm-bound must be a number > 0 or 'median'. Got 0.0"),
        (lambda: NormBound(math.nan), "'bound' of norm-bound must be a number > 0 or 'median'. Got nan"),
        (lambda: Robust(Fed3R()), "algorithms that average what clients trained only. Got Fed3R"),
        (lambda: Robust(FedNCM()), "algorithms that average what clients trained only. Got FedNCM"),
        (lambda: Robust(Robust()), "algorithms that average what clients trained only. Got Robust"),
        (lambda: Personal(Robust()), "Personal cannot wrap an algorithm whose server needs every client's own"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused(make: type, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        make()


@pytest.mark.parametrize("inner", [Fed3RFT(), Wima(Fed3RFT())], ids=["fed3r-ft", "wima"])
def test_sums_over_samples_are_refused(inner: Algorithm) -> None:
    with pytest.raises(HansaError, match=r"cannot wrap .*: its 'ridge' is a sum over samples, which no rule may thin"):
        Robust(inner).server_init(SMALL)


@pytest.mark.parametrize("bound", [0.5, "median"])
def test_a_bound_can_be_written_in_a_plan(bound: float) -> None:
    algorithm = Robust(FedAvg(LOCAL), NormBound(bound))
    table = tomllib.loads(tomli_w.dumps(piece_to_table("algorithm", algorithm)))
    assert piece_from_table("algorithm", table) == algorithm


# -------------------------------------------------------------------------------------------------------------- limits

INNER: dict[str, Algorithm] = {
    "fedavg": FedAvg(LOCAL),
    "fedadam": FedAvg(LOCAL, Adam()),
    "scaffold": Scaffold(LOCAL),
    "feddyn": FedDyn(LOCAL, 0.1),
    "mime": Mime(LOCAL, 0.5),
    "mimelite": MimeLite(LOCAL, 0.5),
    "ditto": Ditto(LOCAL),
    "fedper": FedPer(LOCAL),
    "personal-scaffold": Personal(Scaffold(LOCAL)),
    "wima": Wima(FedAvg(LOCAL), 2),
    "local": Local(LOCAL),
}
every_inner = pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())


@every_inner
def test_an_infinite_bound_is_the_wrapped_algorithm(inner: Algorithm) -> None:
    assert close(rounds_of_all(Robust(inner, NormBound(math.inf)), UNEQUAL), rounds_of_all(inner, UNEQUAL))


@every_inner
@pytest.mark.parametrize("rule", [TrimmedMean(0.0), Krum(0, selected=4)], ids=["trimmed-mean", "krum"])
def test_with_equal_clients_plain_means_are_the_wrapped_algorithm(inner: Algorithm, rule: Rule) -> None:
    assert close(rounds_of_all(Robust(inner, rule), EQUAL), rounds_of_all(inner, EQUAL))


@every_inner
def test_a_median_is_not_the_mean(inner: Algorithm) -> None:
    if not isinstance(inner, Local):
        assert not close(rounds_of_all(Robust(inner), EQUAL), rounds_of_all(inner, EQUAL))


def test_wima_may_be_inside_or_outside() -> None:
    inside, outside = (
        rounds_of_all(Robust(Wima(FedAvg(LOCAL), 2)), EQUAL),
        rounds_of_all(Wima(Robust(FedAvg(LOCAL)), 2), EQUAL),
    )
    assert close(inside, outside)


def test_sample_counts_that_clients_claim_change_no_median() -> None:
    """Three honest displacements and a fourth client that says it has 10³⁰ samples."""
    algorithm = Robust(FedAvg(LOCAL))
    server = algorithm.server_init(SMALL)
    step = {key: torch.ones_like(leaf) for key, leaf in server.items() if key.startswith("model.")}
    said = {"a": 10.0, "b": 20.0, "c": 30.0, "liar": 1e30}
    ups = [set_apart(algorithm.uplink, k, Update(scale(step, n), n)) for k, n in said.items()]
    found = algorithm.aggregate(sum(ups[1:], start=ups[0]))
    assert found.weight == 4 * 20.0 and found.count == 4
    assert all(torch.allclose(leaf, torch.ones_like(leaf)) for leaf in found.mean().values())


def test_every_group_is_divided_by_what_its_client_weighs_before_the_rule() -> None:
    """Changes of 1, 2 and 9 of clients that weigh 5, 10 and 30: the median is 2, though uploads are 5, 20 and 270."""
    algorithm = Robust(Scaffold(LOCAL))
    server = algorithm.server_init(SMALL)
    ones = {key: torch.ones_like(leaf) for key, leaf in server.items() if key.partition(".")[0] in ("model", "control")}
    ups = []
    for name, change, n in (("a", 1.0, 5.0), ("b", 2.0, 10.0), ("c", 9.0, 30.0)):
        own = {key: leaf * n * (change if key.startswith("control.") else -change) for key, leaf in ones.items()}
        ups.append(set_apart(algorithm.uplink, name, Update(own, n)))
    found = algorithm.aggregate(sum(ups[1:], start=ups[0]))
    assert found.weight == 3 * 10.0
    for key, leaf in found.mean().items():
        assert torch.allclose(leaf, torch.full_like(leaf, 2.0 if key.startswith("control.") else -2.0)), key
    after = algorithm.server_step(SMALL, server, sum(ups[1:], start=ups[0]))
    for key in pick("control", server):  # as if three clients of ten samples had changed by two, of all samples
        assert torch.allclose(after[f"control.{key}"], torch.full_like(after[f"control.{key}"], 2.0 * 30 / SAMPLES))


# ----------------------------------------------------------------------------------------------------------- real runs


@dataclass(frozen=True)
class Damaged(Wrapper):
    """Clients whose first number is below zero send something else than they learnt."""

    inner: Annotated[Algorithm, Piece("algorithm")] = FedAvg()
    factor: float = -10.0

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        up, state = yield from self.inner.visit(task, down, state, data, rng)
        wrong = float(data.x.flatten()[0]) < 0
        return replace(up, sums=scale(up.sums, self.factor)) if wrong else up, state


def run(
    algorithm: Algorithm,
    data: Federation,
    *,
    engine: Engine | None = None,
    orchestration: Orchestration | None = None,
    rounds: int = 2,
    model: Model | None = None,
) -> tuple[PhaseRun, ListJournal]:
    shape = tuple(next(iter(data.clients.values())).train.x.shape[1:])
    task = Task(model or MLP((8,)), shape, data.num_classes, len(data.clients), samples=sum(data.sizes().values()))
    phase = Phase("only", algorithm, orchestration or Star(fraction=1.0), rounds, evaluate_every=rounds)
    journal = ListJournal()
    done = run_phases(Experiment(task, data, (phase,), engine or Serial()), MemoryStore(), journal)
    assert done is not None
    return done, journal


def federation() -> Federation:
    """Six clients, of which the last one's first number is below zero."""
    draw = np.random.default_rng(0)
    made = {f"c{k}": (draw.random((9 + k, 3)).astype(np.float32), np.arange(9 + k) % 2) for k in range(6)}
    made["c5"][0][0, 0] = -1
    return federation_from_clients({name: (x, y, x, y) for name, (x, y) in made.items()})


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused_by_name(factor: float) -> None:
    _, journal = run(Robust(Damaged(FedAvg(LOCAL), factor)), federation())
    for record in journal.records:
        assert record["clients"] == 5 and list(record["failed"]) == ["c5"]
        assert "Client 'c5': 'model." in record["failed"]["c5"] and "not finite" in record["failed"]["c5"]


def test_a_weight_that_is_no_weight_is_refused_by_name() -> None:
    for weight in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(HansaError, match=r"Client 'c5' must weigh a number > 0. Got"):
            set_apart(Robust().uplink, "c5", Update({}, weight))


def test_leaves_of_a_wrong_shape_or_name_are_refused() -> None:
    algorithm, leaf = Robust(FedAvg(LOCAL)), SMALL.params()["head.bias"]
    with pytest.raises(HansaError, match=r"'model.head.bias' must have the shape \[2\]. Got \[1\]"):
        algorithm.decode(SMALL, {"model.head.bias": leaf[:1]})
    with pytest.raises(HansaError, match=r"about leaves of the model. Got 'model.neck'"):
        algorithm.decode(SMALL, {"model.neck": leaf})


def test_processes_equal_serial() -> None:
    algorithm = Robust(Scaffold(LOCAL), NormBound())
    one, other = (run(algorithm, federation(), engine=engine)[0] for engine in (Serial(), Processes(2)))
    assert all(torch.equal(leaf, other.server[key]) for key, leaf in one.server.items())


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.2), Krum(1, 2), NormBound()], ids=lambda rule: repr(rule))
@pytest.mark.parametrize("model", [Linear(), MLP((8,))], ids=["linear", "mlp"])
def test_the_vectorised_engine_equals_serial(rule: Rule, model: Model) -> None:
    algorithm = Robust(Personal(Scaffold(LOCAL), keep="head.bias"), rule)
    one, other = (run(algorithm, federation(), engine=engine, model=model) for engine in (Serial(), Vectorised()))
    assert close(one[0].server, other[0].server)
    assert torch.equal(one[0].ledger.tree()["bytes_up"], other[0].ledger.tree()["bytes_up"])
    path = "sample-space" if isinstance(model, Linear) else "stacked"
    assert Vectorised().usual_path(other[0].context) == path
    assert all(record["paths"] and "serial" not in record["paths"] for record in other[1].records)


@pytest.mark.parametrize("inner", [FedAvg(LOCAL), Scaffold(LOCAL)], ids=["fedavg", "scaffold"])
def test_chains_are_refused(inner: Algorithm) -> None:
    """A chain's model moves from client to client; the displacements of its clients have no common start."""
    with pytest.raises(HansaError, match=r"A chain hands .*'model'.* on from client to client.*'star' or 'sweep'"):
        run(Robust(inner), federation(), orchestration=Chains(2))
    run(Robust(inner), federation(), orchestration=Chains(1))


def test_too_few_uploads_stop_the_run_with_a_sentence() -> None:
    with pytest.raises(HansaError, match=r"Krum with byzantine = 2 and selected = 1 needs 7 uploads in a round. Got 6"):
        run(Robust(FedAvg(LOCAL), Krum(2)), federation())


def test_fedpers_shared_part_is_robust_and_heads_stay_at_home() -> None:
    honest, _ = run(Robust(FedPer(LOCAL)), federation(), rounds=3)
    assert all(not key.startswith("model.head.") for key in honest.server)
    attacked, _ = run(Robust(Damaged(FedPer(LOCAL))), federation(), rounds=3)
    plain, _ = run(Damaged(FedPer(LOCAL)), federation(), rounds=3)
    start = honest.task.params()

    def moved(done: PhaseRun) -> float:
        return max(float((leaf - start[key]).norm()) for key, leaf in pick("model", done.server).items())

    assert moved(attacked) < 3 * moved(honest) and moved(plain) > 3 * moved(honest)


RULES: dict[str, Rule] = {
    "median": Median(),
    "trimmed-mean": TrimmedMean(0.2),
    "krum": Krum(byzantine=10),
    "multi-krum": Krum(byzantine=10, selected=30),
    "norm-bound": NormBound(),
}


def digits(liars: int) -> Federation:
    """50 clients; of the first ones, the corner pixel of the first image, always 0, is −1: they will lie."""
    made = build_federation(Digits().load(), Iid(50), seed=0)
    clients = dict(made.clients)
    for name in list(clients)[:liars]:
        data = clients[name].train
        data.x[0, 0] = -1
        clients[name] = whole_client(Samples(data.x.numpy(), data.y.numpy()), None)
    return replace(made, clients=clients)


def accuracy(algorithm: Algorithm, liars: int) -> float:
    _, journal = run(algorithm, digits(liars), rounds=10, model=Linear())
    found: float = journal.records[-1]["metrics"]["test_accuracy"]
    return found


def test_every_rule_learns_digits_though_ten_of_fifty_clients_lie() -> None:
    """They send −10 times what they learnt, so the mean goes the wrong way: (40 − 10·10)/50 = −1.2."""
    inner = Damaged(FedAvg(LocalTraining(lr=0.5, batch_size=10)))
    honest, poisoned = accuracy(inner, liars=0), accuracy(inner, liars=10)
    found = {name: accuracy(Robust(inner, rule), liars=10) for name, rule in RULES.items()}
    print({"honest mean": honest, "mean": poisoned, **found})
    assert honest > 0.85 and poisoned < 0.2
    assert all(found[name] > 0.8 for name in RULES), found
