"""Label flipping: who attacks, what changes for them and what does not, in every engine and after a resume."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import hansa
from hansa.attacks.attack import count, drawn
from hansa.attacks.label_flipping import LabelFlipping
from hansa.attacks.relabelled import RelabelledSamples, relabelled
from hansa.data.clients import IndexedClients
from hansa.data.dataset import ChosenSamples, Samples
from hansa.data.federation import Federation, federation_from_clients
from hansa.errors import HansaError
from hansa.io.store import DiskStore, MemoryStore
from hansa.orchestrate.dropout import Dropout
from hansa.orchestrate.fedseq import FedSeq
from hansa.orchestrate.fedseq2par import FedSeq2Par
from hansa.orchestrate.star import Star
from hansa.plan.assemble import assemble
from hansa.plan.checks import check_phases
from hansa.plan.files import plan_from_table, write_plan
from hansa.running.experiment import Experiment
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.tree import equal
from journals import ListJournal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "laws"))
from battery import (
    ALGORITHMS,
    CLASSES,
    CLIENTS,
    ENGINES,
    ORCHESTRATIONS,
    clients_states,
    experiment,
    federation,
    outcome,
)

HALF = LabelFlipping(0.5)
GROUPED = LabelFlipping(0.5, superclients=0.4)
FEDSEQ = FedSeq(superclients=3, fraction=0.6)


def attacked(made: Experiment, attack: LabelFlipping | None) -> Experiment:
    return replace(made, phases=tuple(replace(phase, attack=attack) for phase in made.phases))


def indexed() -> Federation:
    """Clients that share arrays, of which the inputs are rows of others'; validation and test rows are among them."""
    rng = np.random.default_rng(0)
    every = Samples(rng.normal(size=(90, 5)).astype(np.float32), rng.integers(0, CLASSES, 90))
    samples = ChosenSamples(every, np.arange(90)[::-1].copy())
    rows = {f"c{k}": np.arange(10 * k, 10 * k + 6) for k in range(CLIENTS)}
    test = {name: index[:2] + 6 for name, index in rows.items()}
    validation = {name: index[:2] + 8 for name, index in rows.items()}
    clients = IndexedClients(samples, rows, samples, test, validation)
    return replace(federation(), clients=clients)


# --------------------------------------------------------------------------------------------------------- who attacks


def test_a_larger_share_has_the_same_attackers_and_more() -> None:
    names = [f"c{k}" for k in range(100)]
    found = [set(drawn(names, share, seed=3)) for share in (0.0, 0.004, 0.1, 0.5, 1.0)]
    assert [len(one) for one in found] == [0, 1, 10, 50, 100]
    assert all(few <= more for few, more in pairwise(found))
    assert found[3] != set(drawn(names, 0.5, seed=4))
    assert (count(0.0, 10), count(0.05, 10), count(0.25, 10)) == (0, 1, 3)


def test_shares_are_of_superclients_and_of_their_clients() -> None:
    groups = [tuple(f"c{10 * g + k}" for k in range(10)) for g in range(10)]
    names = [name for group in groups for name in group]
    found = LabelFlipping(0.5, superclients=0.3).attackers(names, groups, seed=1)
    by_group = [len(set(group) & set(found)) for group in groups]
    assert sorted(by_group) == [0] * 7 + [5] * 3
    assert set(LabelFlipping(0.5, superclients=0.1).attackers(names, groups, 1)) <= set(found)
    assert list(found) == [name for name in names if name in found]


@pytest.mark.parametrize("own", [FEDSEQ, Dropout(FEDSEQ, 0.1), FedSeq2Par("random", beta=3, fraction=0.6)])
def test_a_star_is_compared_at_the_attackers_of_the_superclients(own) -> None:
    """The star draws them by the superclients that the other method has for the same seed."""
    made = experiment(ALGORITHMS["fedavg"], orchestration=own)
    seq = PhaseRun(attacked(made, GROUPED), 0, MemoryStore(), None)
    star = experiment(ALGORITHMS["fedavg"], orchestration=Star(4))
    other = PhaseRun(attacked(star, replace(GROUPED, groups_of=own)), 0, MemoryStore(), None)
    assert seq.attackers == other.attackers and 0 < len(seq.attackers) < CLIENTS
    attacked_groups = [set(group) & set(seq.attackers) for group in own.groups(seq.roster(own))]
    assert sum(map(bool, attacked_groups)) == count(0.4, 3)


def test_superclients_are_those_that_the_rounds_visit() -> None:
    run, _ = outcome(attacked(experiment(ALGORITHMS["fedavg"], orchestration=FEDSEQ), GROUPED))
    groups = FEDSEQ.groups(run.roster(FEDSEQ))
    for number in range(3):
        assert all(sorted(leg.chain) == sorted(groups[leg.group or 0]) for leg in run.planner.round(number))


# -------------------------------------------------------------------------------------------------------- what changes


def test_fixed_pairs_are_swapped_and_random_ones_are_every_attackers_own() -> None:
    assert LabelFlipping().swapped("a", 5, 0).tolist() == [1, 0, 3, 2, 4]
    assert LabelFlipping(pairs=((0, 2), (3, 5))).swapped("a", 7, 0).tolist() == [2, 1, 0, 5, 4, 3, 6]
    own = LabelFlipping(criterion="random")
    found = [own.swapped(f"c{k}", 10, 0) for k in range(8)]
    assert all((now[now] == np.arange(10)).all() and (now != np.arange(10)).all() for now in found)
    assert len({tuple(now) for now in found}) > 4
    some = [LabelFlipping(criterion="random", pairs=((0, 2), (3, 5))).swapped(f"c{k}", 7, 0) for k in range(20)]
    assert {tuple(now[[1, 4, 6]]) for now in some} == {(1, 4, 6)} and len({tuple(now) for now in some}) == 3


@pytest.mark.parametrize("data", [federation(), indexed()], ids=["own arrays", "shared arrays"])
def test_attackers_training_labels_change_and_nothing_else(data: Federation) -> None:
    attack = LabelFlipping(0.5, pairs=((0, 2),))
    attackers = attack.attackers(list(data.clients), (), 0)
    assert 0 < len(attackers) < CLIENTS
    found = attack.corrupted(data, attackers, 0)
    assert list(found) == list(data.clients)
    for name, now in found.items():
        true = data.clients[name]
        expected = true.train.y.clone()
        if name in attackers:
            expected = 2 - expected  # 0 ↔ 2, and 1 stays
        assert now.train.y.equal(expected) and now.train.x.equal(true.train.x) and now.size == true.size
        for split in ("test", "validation"):
            one, other = getattr(now, split), getattr(true, split)
            assert (one is None) == (other is None) and (one is None or one.y.equal(other.y))
    assert any(not found[name].train.y.equal(data.clients[name].train.y) for name in attackers)


def test_clients_that_share_arrays_still_do_and_inputs_are_not_copied() -> None:
    data = indexed()
    found = HALF.corrupted(data, ["c1", "c4"], 0)
    assert isinstance(found, IndexedClients) and isinstance(found.samples, RelabelledSamples)
    assert found.samples.samples is data.clients.samples and found.index is data.clients.index
    assert relabelled(data.clients, {}) is data.clients


def test_attackers_are_tested_on_true_labels(tmp_path: Path) -> None:
    """A model that learns nothing but swapped labels of two classes is wrong on nearly all true ones."""
    plan = table({"name": "label-flipping", "clients": 1.0}, {"kind": "local"}, rounds=8)
    honest = {**plan, "phases": [{key: one for key, one in plan["phases"][0].items() if key != "attack"}]}
    runs = [hansa.run(plan_from_table(one, "p", Path()), out=tmp_path / str(k)) for k, one in enumerate((plan, honest))]
    attacked, clean = (run.summary["phases"][0]["metrics"]["client_accuracy_weighted"] for run in runs)
    assert attacked < 0.2 < 0.7 < clean


# ---------------------------------------------------------------------------------------------------------------- laws


# What a server learns nothing by from labels, or, from one-hot targets in another order, the same.
UNTAUGHT = {"oll", "checkpoint", "feature-scale", "flic-s3", "input-scale"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_share_of_nobody_is_no_attack(name: str) -> None:
    made = experiment(ALGORITHMS[name])
    (one, told), (other, plain) = outcome(attacked(made, LabelFlipping(0.0))), outcome(made)
    assert equal(one.server, other.server)
    told_of = told.records[0].pop("attack")
    assert (told_of["name"], told_of["attackers"]) == ("label-flipping", [])
    assert told.told() == plain.told()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_attack_changes_what_is_learnt(name: str) -> None:
    """Whatever the algorithm is, but for those that do not learn from labels."""
    made = experiment(ALGORITHMS[name])
    (one, _), (other, _) = outcome(attacked(made, HALF)), outcome(made)
    same = equal(one.server, other.server) and _same_states(one, other)
    assert same == (name in UNTAUGHT)


def _same_states(one: PhaseRun, other: PhaseRun) -> bool:
    first, second = clients_states(one), clients_states(other)
    return first.keys() == second.keys() and all(equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("data", [None, indexed()], ids=["own arrays", "shared arrays"])
@pytest.mark.parametrize("engine", ["auto", "vectorised", "stacked", "processes"])
@pytest.mark.parametrize(("name", "orchestration"), [("fedavg", "star"), ("fedavg", "fedseq"), ("fed3r", "sweep")])
def test_engines_agree_under_attack(name: str, orchestration: str, engine: str, data: Federation | None) -> None:
    made = experiment(ALGORITHMS[name], orchestration=ORCHESTRATIONS[orchestration], data=data)
    attack = GROUPED if orchestration == "fedseq" else HALF
    serial = outcome(attacked(made, attack))[0]
    found = outcome(attacked(replace(made, engine=ENGINES[engine]), attack))[0]
    assert found.attackers == serial.attackers != ()
    for key, leaf in serial.server.items():
        assert (found.server[key] - leaf).abs().max() <= 1e-4 * max(1.0, float(leaf.abs().max())), key
    clean = outcome(made)[0].server
    assert any((leaf - clean[key]).abs().max() > 1e-3 for key, leaf in found.server.items())


def test_an_attacked_run_that_is_resumed_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    made = attacked(experiment(ALGORITHMS["scaffold"], orchestration=FEDSEQ, rounds=4), GROUPED)
    journal, store = ListJournal(), DiskStore(tmp_path / "state.sqlite")
    run_phases(made, store, journal, stop=lambda: len(journal.records) >= 2)
    store.close()
    store = DiskStore(tmp_path / "state.sqlite")
    assert run_phases(made, store, journal)
    whole, told = outcome(made)
    assert equal(PhaseRun(made, 0, store, None).server, whole.server) and journal.told() == told.told()


# ------------------------------------------------------------------------------------------------- plans, and refusals


def table(attack: object, test: object = None, orchestration: object = None, rounds: int = 2) -> dict:
    phase = {"algorithm": {"name": "fedavg", "local": {"lr": 0.5}}, "rounds": rounds, "attack": attack}
    data = {"source": "digits", "partition": {"name": "iid", "clients": 12}, "test": test or {}}
    phase |= {"orchestration": orchestration or {"name": "star", "fraction": 1.0}}
    return {"data": data, "phases": [phase]}


def test_a_plan_names_its_attack_and_the_run_folder_those_who_attacked(tmp_path: Path) -> None:
    grouped = {"name": "fedseq", "superclients": 3}
    attack = {"name": "label-flipping", "clients": 0.5, "superclients": 0.34, "pairs": [[0, 2], [3, 5]]}
    plan = plan_from_table(table({**attack, "groups_of": grouped}), "p", Path())
    done = hansa.run(plan, out=tmp_path / "run")
    told = done.summary["phases"][0]["attack"]
    assert told["name"] == "label-flipping" and len(told["attackers"]) == 2
    first, second = (json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines())
    assert first["attack"] == told and "attack" not in second
    assert hansa.read_plan(tmp_path / "run/plan.toml").phases[0].attack == plan.phases[0].attack
    assert "pairs" in write_plan(plan)
    seq = assemble(plan_from_table(table(attack, orchestration=grouped), "p", Path())).experiment
    assert list(PhaseRun(seq, 0, MemoryStore(), None).attackers) == told["attackers"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"clients": 1.5}, r"The 'clients' of label flipping are a share and must lie in \[0, 1\]\. Got 1\.5\."),
        ({"superclients": -0.1}, r"The 'superclients' of label flipping are a share .* Got -0\.1\."),
        ({"pairs": ((0, 1), (1, 2))}, r"a class may stand in one only\. Got \[\[0, 1\], \[1, 2\]\]\."),
        ({"pairs": ((-1, 1),)}, r"pairs of class numbers ≥ 0.* Got \[\[-1, 1\]\]\."),
        ({"superclients": 0.5, "groups_of": Star()}, r"an orchestration with superclients.* Got Star\("),
        ({"groups_of": FEDSEQ}, r"has 'groups_of' and no share of them: set 'superclients'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        LabelFlipping(**settings)


def test_a_share_of_superclients_where_there_are_none_is_refused_at_validate_and_at_run() -> None:
    plan = plan_from_table(table({"name": "label-flipping", "superclients": 0.5}), "p", Path())
    says = "Phase 'fedavg': label flipping asks for a share of superclients, and Star has none: name those"
    for check in (check_phases, assemble):
        with pytest.raises(HansaError, match=says):
            check(plan)


def test_superclients_that_nothing_describes_are_refused() -> None:
    grouped = {"name": "fedseq", "grouping": "icg", "superclients": 3}
    attack = {"name": "label-flipping", "superclients": 0.5, "groups_of": grouped}
    with pytest.raises(HansaError, match="needs a phase that describes the clients"):
        check_phases(plan_from_table(table(attack), "p", Path()))


def test_a_class_that_is_not_there_is_refused() -> None:
    plan = plan_from_table(table({"name": "label-flipping", "pairs": [[3, 12]]}), "p", Path())
    with pytest.raises(HansaError, match=r"Label flipping swaps class 12, and the classes are 0 to 9\."):
        assemble(plan)


def test_real_targets_are_refused() -> None:
    x, y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    data = federation_from_clients({"a": (x, y), "b": (x, y)}, target="real")
    with pytest.raises(HansaError, match="Label flipping swaps classes, and the targets are real numbers"):
        HALF.check(data)


def test_clients_whose_samples_are_elsewhere_are_refused_by_name() -> None:
    made = attacked(experiment(ALGORITHMS["fedavg"]), HALF)
    with pytest.raises(HansaError, match="on simulated clients, and the samples of client 'c0' are elsewhere"):
        outcome(replace(made, federation=made.federation.far()))
