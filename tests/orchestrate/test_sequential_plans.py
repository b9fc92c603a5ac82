"""Superclients from a plan to the run folder: describing, public samples, refusals, and what it is good for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

import hansa
from hansa.algorithms.describe import Describe, principal_components
from hansa.algorithms.fedavg import FedAvg
from hansa.data.arrays import dataset_from_arrays
from hansa.data.federation import Federation, build_federation
from hansa.data.partitions.label import ClassesPerClient, Iid
from hansa.data.partitions.natural import Natural
from hansa.data.sources.digits import Digits
from hansa.data.split import TestSplit
from hansa.errors import HansaError, Problems
from hansa.orchestrate.fedseq import FedSeq
from hansa.plan.assemble import assemble
from hansa.plan.checks import check_phases
from hansa.plan.files import plan_from_table, read_plan
from hansa.plan.schema import Plan
from hansa.results.reader import Run
from hansa.tree import equal

LOCAL = {"lr": 0.1, "epochs": 1, "batch_size": 16}


def planned(phases: list[dict[str, Any]], seed: int = 0, **test: Any) -> Plan:
    """Digits, 100 clients of one class each."""
    data = {"source": "digits", "partition": {"name": "classes", "clients": 100, "classes": 1}, "test": test}
    model = {"name": "mlp", "hidden": [64]}
    return plan_from_table({"seed": seed, "data": data, "model": model, "phases": phases}, "plan", Path())


def psi(estimator: str = "clf") -> dict[str, Any]:
    return {"algorithm": {"name": "describe", "estimator": estimator, "local": {**LOCAL, "epochs": 10}}}


def seq(rounds: int = 2, algorithm: str = "fedavg", **orchestration: Any) -> dict[str, Any]:
    grouped = {"name": "fedseq", "superclients": 10, **orchestration}
    trained = {"name": algorithm, "local": LOCAL}
    return {"algorithm": trained, "orchestration": grouped, "rounds": rounds, "evaluate_every": rounds}


# -------------------------------------------------------------------------------------------------- what it is good for


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedseq_beats_fedavg_by_far_at_equal_client_updates(seed: int, tmp_path: Path) -> None:
    """One class each: 20 client updates a round for both, 30 rounds."""
    star = {**seq(30), "orchestration": {"name": "star", "fraction": 0.2}}
    reached = {}
    for name, phase in {"fedavg": star, "fedseq": seq(30, fraction=0.2)}.items():
        run = hansa.run(planned([phase], seed), out=tmp_path / name)
        reached[name] = run.summary["phases"][0]["metrics"]["test_accuracy"]
        assert sum(pyarrow.parquet.read_table(run.path / "ledger.parquet")["visits"].to_pylist()) == 600
    assert reached["fedseq"] > reached["fedavg"] + 0.25


def mix_distance(federation: Federation, orchestration: FedSeq, described: Any) -> float:
    """The mean distance of superclients' label mixes from the global one (total variation)."""
    from hansa.orchestrate.planner import Roster

    names, sizes, counts = list(federation.clients), list(federation.sizes().values()), federation.label_counts()
    row = {name: place for place, name in enumerate(names)}
    groups = orchestration.open(Roster(names, sizes, 0, described, classes=10)).groups
    mixes = np.array([sum(counts[row[name]] for name in members) for members in groups], dtype=float)
    whole = counts.sum(0) / counts.sum()
    return float(np.abs(mixes / mixes.sum(1, keepdims=True) - whole).sum(1).mean() / 2)


@pytest.mark.parametrize(
    ("estimator", "grouping", "metric"),
    [
        ("clf", "greedy", "cosine"),
        ("clf", "kmeans", None),
        ("clf", "icg", None),
        ("conf", "greedy", "kl"),
        ("conf", "greedy", "gini"),
        ("conf", "icg", None),
        ("labels", "greedy", "kl"),
    ],
)
def test_described_superclients_are_closer_to_the_global_label_mix(estimator: str, grouping: Any, metric: Any) -> None:
    from hansa.io.store import MemoryStore
    from hansa.running.loop import run_phases
    from journals import ListJournal

    experiment = assemble(planned([psi(estimator)], public=3)).experiment
    run = run_phases(experiment, MemoryStore(), ListJournal())
    assert run is not None
    described, data = run.algorithm.describes(run.server), experiment.federation
    random = mix_distance(data, FedSeq(superclients=10), {})
    assert mix_distance(data, FedSeq(grouping, metric, superclients=10), described) < 0.8 * random


# ------------------------------------------------------------------------------------------------------- describing


def test_describing_leaves_the_model_as_it_was_and_is_charged(tmp_path: Path) -> None:
    alone = hansa.run(planned([seq()]), out=tmp_path / "alone")
    run = hansa.run(planned([psi("conf"), seq()], public=2), out=tmp_path / "both")
    first, then = run.summary["phases"]
    assert first["before"] == first["metrics"] == then["before"]
    assert first["bytes_up"] > 100 * 4 * (64 * 64 + 64 * 10) and first["c2s"] == first["s2c"] == 100
    assert alone.summary["phases"][0]["bytes_up"] == then["bytes_up"]
    cheap = hansa.run(planned([psi()]), out=tmp_path / "clf").summary["phases"][0]["bytes_up"]
    assert cheap < first["bytes_up"] / 4  # the classifier alone


def test_the_oracle_says_so(tmp_path: Path) -> None:
    run = hansa.run(planned([psi("labels"), seq()]), out=tmp_path / "run")
    first, then = run.summary["phases"]
    assert "an oracle" in first["oracle"] and "oracle" not in then


def test_principal_components_keep_the_variance_asked_for() -> None:
    rows = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wide = rows @ torch.randn(3, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = principal_components(wide, share=1.0)
    standard = (wide - wide.mean(0)) / wide.std(0, correction=0)
    assert found.shape == (50, 3) and torch.allclose(found @ found.T, standard @ standard.T)
    fewer = principal_components(wide, share=0.5)
    assert 0.5 <= fewer.square().sum() / standard.square().sum() < 1 and fewer.shape[1] < 3
    assert principal_components(torch.ones(4, 3)).isfinite().all()


def test_confidence_is_the_softmax_of_mean_probabilities() -> None:
    """Equation 2, by hand for two classes and a model that is always sure of the first."""
    from hansa.models.dense import Linear
    from hansa.task import ClientData, Task

    public = ClientData(torch.ones(4, 1), torch.tensor([0, 0, 1, 1]))
    task = Task(Linear(), (1,), 2, public=public)
    leaves = {key: torch.zeros_like(leaf) for key, leaf in task.params().items()}
    leaves["head.bias"] = torch.tensor([1.0, 0.0])
    sent = {f"description.{key}": leaf for key, leaf in leaves.items()}
    sure = torch.tensor([1.0, 0.0], dtype=torch.float64).softmax(0)
    assert torch.allclose(Describe("conf").decode(task, sent)["description.vector"], sure.softmax(0))


# --------------------------------------------------------------------------------------------------- public samples


def test_public_samples_are_nobodys_test_samples() -> None:
    data, seed = Digits().load(), 3
    whole = build_federation(data, Iid(5), seed=seed, test=TestSplit(fraction=0.2))
    cut = build_federation(data, Iid(5), seed=seed, test=TestSplit(fraction=0.2, public=4))
    assert whole.test is not None and cut.test is not None and cut.public is not None and whole.public is None
    assert torch.bincount(cut.public.y).tolist() == [4] * 10 and len(cut.test) + 40 == len(whole.test)
    rows = {tuple(x.tolist()) for x in cut.public.x}
    assert not rows & {tuple(x.tolist()) for x in cut.test.x} and len(rows) == 40
    assert any("4 test samples of every class are public" in note for note in cut.notes)
    for name, client in whole.clients.items():  # nothing else changes
        assert torch.equal(client.train.x, cut.clients[name].train.x)


def test_public_samples_are_taken_from_clients_own_natural_test_samples_too() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3)).astype(np.float32), np.tile([0, 1], 40)
    owner = np.repeat([f"c{k}" for k in range(4)], 20)
    data = replace(dataset_from_arrays(x, y, x_test=x + 1, y_test=y), client=owner, client_test=owner)
    found = build_federation(data, Natural(), seed=0, test=TestSplit(public=5))
    assert found.public is not None
    public = {tuple(row.tolist()) for row in found.public.x}
    tests = [client.test for client in found.clients.values() if client.test is not None]
    tested = [tuple(row.tolist()) for test in tests for row in test.x]
    assert len(public) == 10 and len(tested) == 70 and not public & set(tested)


def test_a_public_set_without_some_class_is_refused_by_name() -> None:
    with pytest.raises(HansaError, match=r"The class '\w+' has \d+ test samples, and data.test.public asks for 36"):
        assemble(planned([psi("conf")], public=36))
    with pytest.raises(HansaError, match=r"judges models on public samples, and there are none: set data.test.public"):
        assemble(planned([psi("conf")]))
    experiment = assemble(planned([psi("conf")], public=2)).experiment
    public = experiment.task.public
    assert public is not None
    few = replace(public, x=public.x[public.y != 7], y=public.y[public.y != 7])
    with pytest.raises(HansaError, match="The public samples have none of class number 7"):
        Describe("conf").server_init(replace(experiment.task, public=few))
    with pytest.raises(HansaError, match=r"taken from a global test set. Got kind 'local'"):
        TestSplit(kind="local", public=2)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("first", "grouped", "says"),
    [
        ("clf", {"grouping": "greedy", "metric": "kl"}, "the metric 'kl' needs distributions over classes: estimator"),
        ("clf", {"grouping": "greedy", "metric": "gini"}, "the metric 'gini' needs distributions over classes"),
        ("clf", {"grouping": "greedy", "metric": "normalised-cosine"}, "needs descriptions without negative entries"),
        (None, {"grouping": "icg"}, "needs a phase that describes the clients, and there is none before"),
        (None, {"grouping": "greedy", "metric": "kl"}, "put a phase 'describe' first, or set grouping = 'random'"),
    ],
)
def test_what_does_not_combine_is_refused_by_validate(first: str | None, grouped: dict[str, Any], says: str) -> None:
    phases = [*([psi(first)] if first else []), seq(**grouped)]
    with pytest.raises(Problems, match=f"Phase 'fedavg': .*{says}"):
        check_phases(planned(phases))
    wrapped = {"name": "dropout", "inner": seq(**grouped)["orchestration"]}
    with pytest.raises(Problems, match=says):
        check_phases(planned([*phases[:-1], {**phases[-1], "orchestration": wrapped}]))


def test_what_only_the_plan_tells_to_be_missing_is_refused_by_validate() -> None:
    """Public samples to judge models on, and a second superclient to go on to."""
    nobody = planned([psi("conf"), seq(grouping="greedy", metric="kl")])
    with pytest.raises(Problems, match=r"Phase 'describe': .*there are none: set data\.test\.public"):
        check_phases(nobody)
    check_phases(planned([psi("conf"), seq(grouping="greedy", metric="kl")], public=3))
    for window, says in ((3, "for 3 rounds, and there is one superclient: use 'fedcyclic'"), (1, ""), (None, "")):
        alone = {"name": "fedasyncseq", "superclients": 1, **({"window": window} if window else {})}
        going_on = planned([{**seq(), "orchestration": alone}])
        if says:
            with pytest.raises(Problems, match=f"Phase 'fedavg': .*{says}"):
                check_phases(going_on)
        else:
            check_phases(going_on)


@pytest.mark.parametrize(("grouping", "metric"), [("random", "kl"), ("kmeans", "cosine"), ("icg", "gini")])
def test_a_grouping_refuses_a_metric_it_cannot_go_by(grouping: Any, metric: Any) -> None:
    with pytest.raises(HansaError, match=f"The grouping '{grouping}' cannot go by the metric '{metric}'"):
        FedSeq(grouping, metric)


def test_bounds_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for change, says in (
        ({"superclients": 101}, "101 superclients are asked for and there are 100 clients"),
        ({"min_samples": 800}, "10 superclients of at least 800 samples each are asked for"),
        ({"superclients": None, "min_samples": 800, "max_clients": 5}, "the 5 clients with most samples have"),
        ({"max_clients": 9}, "10 superclients of at most 9 clients each cannot hold 100 clients"),
    ):
        with pytest.raises(HansaError, match=says):
            hansa.run(planned([seq(**change)]), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_descriptions_of_other_clients_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A run that continues another groups by what that run learnt, if it was about the same clients."""
    hansa.run(planned([psi()]), out=tmp_path / "psi")
    then = replace(planned([seq()]), phases=planned([psi(), seq(grouping="greedy")]).phases[1:])
    from hansa.plan.schema import Start

    going_on = replace(then, start=Start(str(tmp_path / "psi")))
    assert hansa.run(going_on, out=tmp_path / "run").summary["status"] == "finished"
    others = replace(going_on, data=replace(going_on.data, partition=ClassesPerClient(101, 1)))
    with pytest.raises(HansaError, match=r"describes other clients: \d+ of 101 are not among them, such as '"):
        hansa.run(others, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


# ----------------------------------------------------------------------------------------------------------- run folder


def test_a_round_may_be_one_superclient_of_one_client(tmp_path: Path) -> None:
    groups = hansa.run(planned([seq(superclients=100, fraction=0.01)]), out=tmp_path / "run").groups()
    assert groups is not None and set(groups["position"].to_pylist()) == {0}


def test_the_groups_of_every_round_are_in_the_run_folder(tmp_path: Path) -> None:
    run = hansa.run(planned([psi(), seq(3, grouping="icg", fraction=0.3)]), out=tmp_path / "run")
    table = pyarrow.parquet.read_table(run.path / "groups.parquet").to_pylist()
    assert list(table[0]) == ["phase", "phase_name", "round", "superclient", "position", "client"]
    assert {row["phase"] for row in table} == {1} and {row["phase_name"] for row in table} == {"fedavg"}
    members: dict[int, set[str]] = {}
    for number in (1, 2, 3):
        rows = [row for row in table if row["round"] == number]
        assert len(rows) == 30 and len({row["superclient"] for row in rows}) == 3
        for superclient in {row["superclient"] for row in rows}:
            chain = sorted((row for row in rows if row["superclient"] == superclient), key=lambda row: row["position"])
            assert [row["position"] for row in chain] == list(range(10))
            own = {row["client"] for row in chain}
            assert members.setdefault(superclient, own) == own  # the same ones in every round
    assert not (hansa.run(planned([psi()]), out=tmp_path / "star").path / "groups.parquet").exists()


def test_a_resumed_run_groups_as_before(tmp_path: Path) -> None:
    plan = planned([psi(), {**seq(4, grouping="greedy"), "orchestration": {"name": "fedasyncseq", "grouping": "greedy",
                    "superclients": 10, "window": 3}}])  # fmt: skip
    whole = hansa.run(plan, out=tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        if record["phase"] == 1 and record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hansa.run(plan, out=tmp_path / "cut", watchers=[stop])
    resumed = hansa.resume(tmp_path / "cut")
    one, other = (pyarrow.parquet.read_table(run.path / "groups.parquet") for run in (whole, resumed))
    assert one.equals(other) and equal(model(whole), model(resumed))


def model(run: Run) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(run.path / "model.safetensors")


def test_the_shipped_plan_is_what_it_says() -> None:
    plan = read_plan("digits-fedseq")
    check_phases(plan)
    assert isinstance(plan.phases[0].algorithm, Describe) and isinstance(plan.phases[1].algorithm, FedAvg)
