"""Laws of superclients: what they are when they have one client, or when there is one of them; and along chains."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from battery import ALGORITHMS, CLIENTS, ENGINES, LOCAL, ORCHESTRATIONS, Disk, experiment, federation, outcome
from law_examples import Strict
from test_laws import close, same

from hansa.algorithms.describe import Describe
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.data.federation import federation_from_clients
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.features.module import FrozenModule
from hansa.orchestrate.fedasyncseq import FedAsyncSeq
from hansa.orchestrate.fedseq import FedCyclic, FedSeq
from hansa.orchestrate.fedseq2par import FedSeq2Par
from hansa.orchestrate.grouping import METRICS_OF
from hansa.orchestrate.planner import Leg, Orchestration, Roster
from hansa.orchestrate.star import Star, Sweep
from hansa.orchestrate.superclients import KINDS_OF
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import exchanged, run_phases
from hansa.running.phase_run import PhaseRun
from hansa.tree import pick
from journals import ListJournal

ESTIMATORS = {"clf": "vector", "conf": "distribution", "task2vec": "positive", "labels": "distribution"}
# Every {ψ, τ, φ} that combine.
CRITERIA = [
    (estimator, metric, grouping)
    for grouping, metrics in METRICS_OF.items()
    for metric in (metrics or (None,))
    for estimator, kind in ESTIMATORS.items()
    if metric is None or kind in KINDS_OF[metric]
]
every_criterion = pytest.mark.parametrize(("estimator", "metric", "grouping"), CRITERIA)
TRAINED = ("fedavg", "fedprox", "scaffold", "feddyn")
SEQUENTIAL = ("fedcyclic", "fedseq", "fedasyncseq", "fedseq2par")


def described(estimator: str, orchestration: Orchestration, algorithm: Algorithm | None = None) -> Experiment:
    """A phase that describes the clients, and one that goes by it."""
    made = experiment(algorithm or FedAvg(LOCAL))
    probe = FrozenModule("law_examples:small_probe") if estimator == "task2vec" else None
    first = Phase("psi", Describe(estimator, LOCAL, probe, 4), Sweep())  # type: ignore[arg-type]
    then = Phase("only", made.phases[0].algorithm, orchestration, 2)
    return replace(made, phases=(first, then))


@every_criterion
def test_superclients_of_one_client_are_the_star(estimator: str, metric: Any, grouping: Any) -> None:
    star = outcome(described(estimator, Star(fraction=0.6)))
    seq = outcome(described(estimator, FedSeq(grouping, metric, 0.6, max_clients=1)))
    same(star, seq)
    same(star, outcome(described(estimator, FedAsyncSeq(grouping, metric, 0.6, max_clients=1, window=1))))
    same(star, outcome(described(estimator, FedSeq2Par(grouping, metric, 0.6, beta=CLIENTS))))


@every_criterion
def test_one_superclient_is_fedcyclic(estimator: str, metric: Any, grouping: Any) -> None:
    cyclic = outcome(described(estimator, FedCyclic(fraction=1.0)))
    same(cyclic, outcome(described(estimator, FedSeq(grouping, metric, 1.0, superclients=1))))
    same(cyclic, outcome(described(estimator, FedAsyncSeq(grouping, metric, 1.0, superclients=1))))
    same(cyclic, outcome(described(estimator, FedSeq2Par(grouping, metric, alpha=0.1, beta=1))))


@pytest.mark.parametrize("engine", ["auto", "vectorised", "stacked"])
@pytest.mark.parametrize(("name", "orchestration"), [*product(TRAINED, SEQUENTIAL)])
def test_engines_equal_serial_along_superclients(name: str, orchestration: str, engine: str) -> None:
    made = experiment(ALGORITHMS[name], orchestration=ORCHESTRATIONS[orchestration], rounds=3)
    close(outcome(made), outcome(replace(made, engine=ENGINES[engine])))


@pytest.mark.parametrize(("name", "orchestration"), [*zip(TRAINED, SEQUENTIAL, strict=True)])
def test_processes_equal_serial_along_superclients(name: str, orchestration: str) -> None:
    made = experiment(ALGORITHMS[name], orchestration=ORCHESTRATIONS[orchestration], rounds=3)
    same(outcome(made), outcome(replace(made, engine=Processes(1))))


@pytest.mark.parametrize("stop_after", [1, 2, 3])
@pytest.mark.parametrize(("name", "orchestration"), [*product(TRAINED, SEQUENTIAL)])
def test_resumed_equals_uninterrupted_along_superclients(
    name: str, orchestration: str, stop_after: int, disk: Disk
) -> None:
    """Also in the middle of a window, and where superclients have just been made anew."""
    made = experiment(ALGORITHMS[name], orchestration=ORCHESTRATIONS[orchestration], rounds=4)
    journal, store = ListJournal(), disk()
    run_phases(made, store, journal, stop=lambda: len(journal.records) >= stop_after)
    store.close()
    store = disk()
    assert run_phases(made, store, journal)
    same((PhaseRun(made, 0, store, None), journal), outcome(made))


def test_resumed_between_describing_and_grouping_equals_uninterrupted(disk: Disk) -> None:
    made = described("clf", FedAsyncSeq("greedy", fraction=0.6, superclients=3, window=2))
    journal, store = ListJournal(), disk()
    run_phases(made, store, journal, stop=lambda: len(journal.records) >= 1)
    run_phases(made, store, journal, stop=lambda: len(journal.records) >= 2)
    assert len(journal.records) == 2 and run_phases(made, store, journal)
    assert journal.told() == outcome(made)[1].told()


# ------------------------------------------------------------------------------------------------ chains and windows


def roster(clients: int = 12, seed: int = 0) -> Roster:
    return Roster([f"c{k:02}" for k in range(clients)], [10] * clients, seed)


@pytest.mark.parametrize(("fraction", "superclients"), [(0.1, 6), (0.34, 6), (0.5, 6), (1.0, 6), (1.0, 2), (0.5, 2)])
@pytest.mark.parametrize("window", [None, 3, 50])
def test_an_asynchronous_chain_never_stays_at_a_superclient(
    fraction: float, superclients: int, window: int | None
) -> None:
    planner = FedAsyncSeq(fraction=fraction, superclients=superclients, window=window).open(roster())
    rounds = [planner.round(number) for number in range(50)]
    for number, (before, now) in enumerate(pairwise(rounds), 1):
        assert len({leg.group for leg in now}) == len(now) == len(before)
        if number % planner.window:
            assert all(then.group != leg.group for then, leg in zip(before, now, strict=True))
    assert [number for number in range(50) if planner.merges(number)] == list(
        range(planner.window - 1, 50, planner.window)
    )


def test_a_planner_that_starts_in_the_middle_plans_the_same() -> None:
    made = FedAsyncSeq(fraction=0.5, superclients=6, window=50)
    one, other = made.open(roster()), made.open(roster())
    through = [one.round(number) for number in range(40)]
    assert other.round(33) == through[33] and other.round(7) == through[7] and other.round(8) == through[8]


def test_a_window_that_never_ends_is_merged_at_the_end_of_the_phase() -> None:
    """R = T: the averaged model is what the phase leaves behind, and nothing is left under way."""
    made = experiment(FedAvg(LOCAL), orchestration=FedAsyncSeq(fraction=1.0, superclients=2, window=99), rounds=3)
    run, journal = outcome(made)
    assert not run.lines and [record["c2s"] for record in journal.records] == [0, 0, 2]
    start = made.task.params()
    assert all(not torch.equal(pick("model", run.server)[key], leaf) for key, leaf in start.items())
    assert [record["clients"] for record in journal.records] == [CLIENTS] * 3


def test_passes_go_round_the_same_chain() -> None:
    one, two = (FedSeq(fraction=0.5, superclients=3, passes=passes).open(roster()).round(4) for passes in (1, 2))
    assert [leg.chain * 2 for leg in one] == [leg.chain for leg in two]


def test_the_order_inside_a_superclient_has_nothing_to_do_with_who_is_sampled() -> None:
    """Every client of a superclient leads a fair share of its chains."""
    planner = FedSeq(fraction=0.25, superclients=4).open(roster())
    leads = Counter(leg.chain[0] for number in range(1200) for leg in planner.round(number))
    assert len(leads) == 12 and all(50 < count < 150 for count in leads.values())  # 100 ± 5 standard deviations


def test_superclients_are_sampled_alike_whatever_their_size() -> None:
    uneven = replace(roster(9), sizes=[50, 1, 1, 1, 1, 1, 1, 1, 49])
    planner = FedSeq(fraction=0.4, min_samples=49).open(uneven)
    assert sorted(map(len, planner.groups)) != [len(planner.groups[0])] * len(planner.groups)
    seen = [leg.group for number in range(600) for leg in planner.round(number)]
    share = [seen.count(one) / len(seen) for one in range(len(planner.groups))]
    assert max(share) - min(share) < 0.12


def test_fedseq2par_regroups_only_when_the_number_rises() -> None:
    planner = FedSeq2Par("random", fraction=1.0, growth="linear", alpha=0.25, beta=2).open(roster())
    numbers = [len(planner.round(number)) for number in range(30)]
    assert numbers[:9] == [2] * 4 + [4] * 4 + [6] and numbers[-1] == 12
    groups = [{frozenset(leg.chain) for leg in planner.round(number)} for number in range(9)]
    assert groups[0] == groups[3] != groups[4] == groups[7] != groups[8]


# ------------------------------------------------------------------------------------------------------------ FedDyn


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("orchestration", ["chains", "fedcyclic", "fedseq", "fedasyncseq"])
def test_the_servers_term_is_the_mean_of_all_clients_along_chains(orchestration: str, weights: Any) -> None:
    """SCAFFOLD's control and FedDyn's h: the weighted mean of what clients keep, after any number of chains."""
    for algorithm, group in ((FedDyn(LOCAL, 0.1, weights), "dual"), (Scaffold(LOCAL, weights=weights), "control")):
        run, _ = outcome(experiment(algorithm, orchestration=ORCHESTRATIONS[orchestration], rounds=4))
        sizes = run.federation.sizes()
        share = {name: sizes[name] / sum(sizes.values()) if weights == "samples" else 1 / len(sizes) for name in sizes}
        states = {name: run.store.get("0/client", name) for name in run.names}
        for key, leaf in pick(group, run.server).items():
            mean = sum(share[name] * state[f"{group}.{key}"] for name, state in states.items() if state)
            assert torch.allclose(leaf, torch.as_tensor(mean), atol=1e-5) and leaf.abs().max() > 1e-4


def test_feddyn_sends_no_more_than_fedavg() -> None:
    one, other = (outcome(experiment(each, orchestration=Star(4)))[0] for each in (FedAvg(LOCAL), FedDyn(LOCAL)))
    assert one.ledger.totals()["bytes_up"] == other.ledger.totals()["bytes_up"]


# ---------------------------------------------------------------------------------------------------------- exchanges

K, N_S, C = 12, 4, 0.5
TABLE_3 = {
    "fedavg": (Star(fraction=C), FedAvg(LOCAL), (C * K, C * K, 0)),
    "fedprox": (Star(fraction=C), ALGORITHMS["fedprox"], (C * K, C * K, 0)),
    "feddyn": (Star(fraction=C), FedDyn(LOCAL), (C * K, C * K, 0)),
    "scaffold": (Star(fraction=C), Scaffold(LOCAL), (2 * C * K, 2 * C * K, 0)),
    "fedcyclic": (FedCyclic(fraction=C), FedAvg(LOCAL), (1, 1, C * K - 1)),
    "fedseq": (FedSeq(fraction=C, superclients=N_S), FedAvg(LOCAL), (C * N_S, C * N_S, (K / N_S - 1) * C * N_S)),
}


@pytest.mark.parametrize("method", TABLE_3)
def test_exchanges_are_those_of_table_3(method: str) -> None:
    """The paper counts models: SCAFFOLD's one message holds two, and what a message holds is seen on the wire."""
    orchestration, algorithm, expected = TABLE_3[method]
    made = experiment(algorithm, orchestration=orchestration, data=federation(K), rounds=3)
    run, journal = outcome(made)
    models = len({key.partition(".")[0] for key in run.broadcast()})
    for record in journal.records:
        assert (record["s2c"] * models, record["c2s"] * models, record["c2c"]) == expected


def test_exchanges_of_unequal_superclients_are_those_of_table_3() -> None:
    made = experiment(FedAvg(LOCAL), orchestration=FedSeq(fraction=C, superclients=5), data=federation(K), rounds=4)
    run, journal = outcome(made)
    for record in journal.records:
        sizes = [len(leg.chain) for leg in run.planner.round(record["round"] - 1)]
        assert (record["s2c"], record["c2s"], record["c2c"]) == (len(sizes), len(sizes), sum(sizes) - len(sizes))


def test_a_line_is_handed_on_between_rounds() -> None:
    """The server sends at the beginning of a window and receives at its end; in between clients hand on."""
    legs = [Leg(("a", "b"), 0), Leg(("c",), 1)]
    assert exchanged(legs, {}, set(), False) == {"s2c": 2, "c2s": 0, "c2c": 1}
    assert exchanged(legs, {}, {0, 1}, False) == {"s2c": 0, "c2s": 0, "c2c": 3}
    assert exchanged(legs, {"c": "gone"}, {0, 1}, True) == {"s2c": 0, "c2s": 2, "c2c": 2}


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("orchestration", [FedSeq(superclients=1, fraction=1.0), FedCyclic(fraction=1.0)])
@pytest.mark.parametrize("engine", [Serial(), Vectorised(), Processes(1)], ids=["serial", "vectorised", "processes"])
def test_a_chain_closes_over_a_client_that_fails_in_it(orchestration: Orchestration, engine: Any) -> None:
    data = federation(3)
    arrays = {name: (one.train.x.numpy(), one.train.y.numpy()) for name, one in data.clients.items()}
    tests = {name: (one.test.x.numpy(), one.test.y.numpy()) for name, one in data.clients.items()}
    made = {name: (*arrays[name], *tests[name]) for name in arrays}
    broken = federation_from_clients({**made, "bad": (torch.ones(4, 9).numpy(), [0, 1, 2, 0])})
    run = experiment(FedAvg(LOCAL), data=broken, engine=engine, model=Strict(), orchestration=orchestration, rounds=2)
    _, journal = outcome(run)
    for record in journal.records:
        assert "Client 'bad'" in record["failed"]["bad"] and record["clients"] == 3
        assert (record["s2c"], record["c2s"], record["c2c"]) == (1, 1, 2)


def test_clients_that_nothing_describes_are_refused_by_name() -> None:
    made = described("clf", FedSeq("greedy", superclients=2))
    with pytest.raises(HansaError, match=r"7 of 7 clients are not described, such as 'c0': superclients need a phase"):
        outcome(replace(made, phases=made.phases[1:]))
    known = {"c0": torch.ones(2)}
    with pytest.raises(HansaError, match="1 of 2 clients are not described, such as 'c1'"):
        FedSeq("icg", superclients=1).open(Roster(["c0", "c1"], [1, 1], 0, known))


@pytest.mark.parametrize(
    ("orchestration", "says"),
    [
        (FedSeq(superclients=9), "9 superclients are asked for and there are 7 clients; lower 'superclients'"),
        (FedSeq2Par("random", beta=9), "9 superclients are asked for and there are 7 clients; lower 'beta'"),
        (FedSeq(min_samples=10_000), "all clients have 119 samples; lower 'min_samples'"),
        (FedSeq(superclients=2, max_clients=2), "at most 2 clients each cannot hold 7 clients"),
        (FedSeq(min_samples=60, max_clients=2), "the 2 clients with most samples have 49 of them together"),
        (FedSeq(min_samples=45, max_clients=2), "samples, and at least 45 are asked for; lower 'min_samples'"),
        (FedAsyncSeq(superclients=1, window=3), "there is one superclient: use 'fedcyclic'"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(orchestration: Orchestration, says: str) -> None:
    with pytest.raises(HansaError) as refused:
        outcome(experiment(FedAvg(LOCAL), orchestration=orchestration))
    assert says in str(refused.value)
