"""Phases in the papers' notation, default learning rates, checkpoints, and runs that continue others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import hansa
from hansa.errors import HansaError
from hansa.plan.files import plan_from_table, read_plan, write_plan
from hansa.plan.phases import phases_of
from hansa.plan.schema import Plan
from hansa.plan.shorthand import WORDS, phases_from
from hansa.training.wrappers import training_of

DATA = {
    "source": "digits",
    "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.3},
    "test": {"kind": "both"},
}
MODEL = {"name": "mlp", "hidden": [16]}


def plan(phases: Any, **more: Any) -> Plan:
    return plan_from_table(
        json.loads(json.dumps({"data": DATA, "model": MODEL, "phases": phases, **more})), "p", Path()
    )


# -------------------------------------------------------------------------------------------------------- notation


def test_the_papers_example() -> None:
    found = plan("OLL(Fed3R + FedAvg(φ)) + FP(ψ)")
    fed3r, _, fedavg, personal = found.phases
    assert [phase.name for phase in phases_of(found)] == ["Fed3R", "calibrate", "FedAvg(features)", "oll", "FP(head)"]
    assert (fed3r.oll, fedavg.oll, personal.oll) == (False, True, False)
    assert fedavg.algorithm.inner.local.train == "features" and personal.algorithm.inner.local.train == "head"
    assert (personal.rounds, personal.algorithm.inner.local.epochs) == (25, 1)  # so every epoch is a point of a curve
    assert [phase.temperature for phase in phases_of(found)] == [0.1, 1.0, 1.0, 1.0, 1.0]


def test_oll_encloses_what_comes_before_it_only() -> None:
    names = [phase.name for phase in phases_of(plan("FedAvg-30 + OLL(FedSim(features)-5) + FP".replace(")-5", ")")))]
    assert names == ["FedAvg(all)", "FedSim(features)", "oll", "FP(all)"]
    nested = phases_of(plan("OLL(OLL(Fed3R) + FP(head))"))
    assert [phase.name for phase in nested] == ["Fed3R", "oll", "calibrate", "FP(head)", "oll-2"]


def test_rounds_follow_a_dash() -> None:
    assert [phase["rounds"] for phase in phases_from("FedAvg-1k + FedSim-20(head) + FP-3")] == [1000, 20, 3]
    assert [phase.name for phase in phases_of(plan("Fed3R-RF"))] == ["feature-scale", "Fed3R-RF"]
    twice = [phase.name for phase in phases_of(plan("FedAvg-2 + FedAvg-3"))]
    assert twice == ["FedAvg(all)", "FedAvg(all)-2"]


def test_random_features_lift_the_model() -> None:
    found = plan("Fed3R-RF + FP(head)")
    assert type(found.model).__name__ == "RandomFeaturesModel" and found.model.inner == plan("Fed3R").model


def test_random_features_go_on_any_model_and_may_be_counted() -> None:
    lines = ["phases='Fed3R-RF-2k'", "model={name='mlp', hidden=[16]}"]
    for changes in (lines, lines[::-1]):
        model = read_plan("digits-fed3r", changes).model
        assert (type(model).__name__, model.dimension, model.inner.hidden) == ("RandomFeaturesModel", 2000, (16,))
    own = read_plan("digits-fed3r", ["model={name='random-features', inner='linear', sigma=7.0}", lines[0]]).model
    assert (own.dimension, own.sigma, type(own.inner).__name__) == (2000, 7.0, "Linear")
    for line, says in (
        ("Fed3R-5", "Fed3R is one round, so no number stands after it"),
        ("FedAvg-0", "the number after FedAvg must be 1 or more"),
        ("Fed3R-RF-5 + Fed3R-RF-6", "there is one model"),
    ):
        with pytest.raises(HansaError, match=says):
            plan(line)


@pytest.mark.parametrize("word", WORDS)
def test_every_word_gives_phases_that_are_valid(word: str) -> None:
    found = plan(f"OLL({word}) + FP-2")
    assert "oll" in [phase.name for phase in phases_of(found)]
    assert plan_from_table(json.loads(json.dumps(_table(found))), "again", Path()) == found


def _table(found: Plan) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(write_plan(found))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Fed3R + ", "a name is expected at the end"),
        ("", "a name is expected at the end"),
        ("OLL(Fed3R", "a ')' is expected at the end"),
        ("OLL Fed3R", "a '(' is expected before 'Fed3R'"),
        ("Fed3R FedAvg", "'FedAvg' is not expected there"),
        ("Fed3R + FedAgv", "there is no phase 'FedAgv'. Did you mean 'fedavg'?"),
        ("Fed3R(head)", "'head' cannot stand in the brackets of Fed3R; leave the brackets out"),
        ("FedSim(all)", "'all' cannot stand in the brackets of FedSim; use head or features"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, says: str) -> None:
    with pytest.raises(HansaError) as error:
        phases_from(text)
    assert str(error.value).startswith(f"The phases '{text}' cannot be read: ") and says in str(error.value)


def test_expanded_phases_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('phases = "Fed3R + FedAvg"\n[data]\nsource = "digits"\npartition = "iid"\n', encoding="utf-8")
    found = hansa.read_plan(path, ["phases.1.rounds=7", "phases.1.algorithm.local.lr=0.5"])
    assert (found.phases[1].rounds, found.phases[1].algorithm.local.lr) == (7, 0.5)
    replaced = hansa.read_plan(path, ["phases=FedNCM + FP(head)", "phases.1.rounds=3"])
    assert [phase.rounds for phase in replaced.phases] == [1, 1, 3]  # a calibration comes between


# ----------------------------------------------------------------------------------------------------------- rates


def papers(phases: Any) -> Plan:
    """A plan with the paper's rates in every phase."""
    tables = phases_from(phases) if isinstance(phases, str) else phases
    return plan([{**table, "rates": "paper"} for table in tables])


def rates(phases: Any) -> list[float]:
    return [phase.algorithm.local.lr for phase in papers(phases).phases if hasattr(phase.algorithm, "local")]


def test_the_papers_rates_are_a_tenth_after_fed3r_and_after_oll() -> None:
    assert rates("FedAvg + FP") == [0.1, 0.1]
    assert rates("Fed3R + FedAvg + FP") == [0.01, 0.01]
    assert rates("OLL(FedAvg) + FP") == [0.1, 0.01]
    assert rates("OLL(Fed3R + FedAvg) + FP") == [0.01, 0.001]
    assert rates("FedNCM + FedAvg") == [0.1]


def test_a_rate_that_is_given_is_kept_and_the_resolved_plan_shows_all() -> None:
    given = [{"algorithm": "fed3r", "oll": True}, {"algorithm": {"name": "local", "local": {"lr": 0.3}}}]
    assert rates(given) == [0.3]
    assert "lr = 0.001" in write_plan(papers("OLL(Fed3R) + FP"))
    wrapped = [{"algorithm": "fed3r"}, {"algorithm": {"name": "personal", "inner": {"name": "fedprox"}}}]
    assert papers(wrapped).phases[1].algorithm.inner.local.lr == pytest.approx(0.01)


def resolved(found: Plan) -> list[tuple[str, float, str, float | None]]:
    """Name, temperature, origin of rates and rate of every phase as it is run."""
    return [(type(p.algorithm).__name__, p.temperature, p.rates, _rate(p.algorithm)) for p in phases_of(found)]


def _rate(algorithm: Any) -> float | None:
    training = training_of(algorithm)
    return training.lr if training else None


CHAINS = {
    "OLL(Fed3R) + FedAvg + FP": [{"algorithm": "fed3r", "oll": True}, {"algorithm": "fedavg"}, {"algorithm": "local"}],
    "Fed3R + Calibrate + FedAvg": [{"algorithm": "fed3r"}, {"algorithm": "calibrate"}, {"algorithm": "fedavg"}],
    "FedNCM + FedAvg + FP": [{"algorithm": "fedncm"}, {"algorithm": "fedavg"}, {"algorithm": "local"}],
    "LDA + FedCOF + FedAvg": [{"algorithm": "lda"}, {"algorithm": "fedcof"}, {"algorithm": "fedavg"}],
    "FedAvg + Fed3R + FP": [{"algorithm": "fedavg"}, {"algorithm": "fed3r"}, {"algorithm": "local"}],
}


@pytest.mark.parametrize("notation", CHAINS)
def test_tables_notation_and_continued_runs_have_the_same_defaults(notation: str, tmp_path: Path) -> None:
    """One plan of all phases, or one after each of its phases that follows a folder of what came before."""
    tables = CHAINS[notation]
    expected = resolved(plan(notation))
    assert resolved(plan(tables)) == expected
    for cut in (1, 2):
        (tmp_path / f"{cut}").mkdir()
        (tmp_path / f"{cut}" / "plan.toml").write_text(write_plan(plan(tables[:cut])))
        rest = plan(tables[cut:], start={"run": str(tmp_path / f"{cut}")})
        assert resolved(rest) == expected[-len(resolved(rest)) :]


def test_a_run_that_continues_one_that_continues_another_knows_all_that_came_before(tmp_path: Path) -> None:
    for name, tables, more in (
        ("a", [{"algorithm": "fed3r", "oll": True}], {}),
        ("b", [{"algorithm": "fedavg"}], {"start": {"run": str(tmp_path / "a")}}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.toml").write_text(write_plan(plan(tables, **more)))
    (last,) = resolved(plan([{"algorithm": "local"}], start={"run": str(tmp_path / "b")}))
    assert last == ("SelfGuarded", 1.0, "statistics", 0.1)


def test_a_temperature_that_is_given_is_kept_and_a_written_plan_stays_as_it_is() -> None:
    tables = [{"algorithm": "fed3r", "temperature": 1.0}, {"algorithm": "fedavg", "rates": "paper"}]
    found = plan(tables)
    assert [phase.temperature for phase in found.phases] == [1.0, 0.1]
    assert plan_from_table(_table(found), "again", Path()) == found


# ---------------------------------------------------------------------------------------------- checkpoints and runs

FAST = {"evaluate_every": 1, "orchestration": {"name": "star", "clients": 3}, "rounds": 2}
LOCAL = {"lr": 0.005, "batch_size": 16}
FIRST = [{"algorithm": "fed3r"}, {"algorithm": {"name": "fedsim", "local": LOCAL}, **FAST}]
THEN = [{"algorithm": {"name": "local", "local": LOCAL}, **FAST, "oll": True}]


def told(run: hansa.Run, phases: slice) -> list[dict[str, Any]]:
    """What clients did and how good they became, phase numbers and seconds aside."""
    names = [phase["name"] for phase in run.summary["phases"]][phases]
    keep = ("phase_name", "round", "metrics", "bytes_up", "flops", "failed")
    return [{key: record[key] for key in keep} for record in run.rounds if record["phase_name"] in names]


def test_a_run_that_continues_another_is_the_run_of_all_phases(tmp_path: Path) -> None:
    """Personal models are carried over, the draws go on where they stopped, and a third run continues the second."""
    whole = hansa.run(plan([*FIRST, *THEN, *THEN]), out=tmp_path / "whole")
    hansa.run(plan(FIRST), out=tmp_path / "first")
    second = hansa.run(plan(THEN, start={"run": str(tmp_path / "first")}), out=tmp_path / "second")
    third = hansa.run(plan(THEN, start={"run": str(tmp_path / "second")}), out=tmp_path / "third")
    expected = told(whole, slice(2, None))
    found = told(second, slice(None)) + told(third, slice(None))
    assert [record["metrics"] for record in found] == [record["metrics"] for record in expected]
    assert found[0]["metrics"]["client_accuracy_mean"] > 0.5


def test_a_run_can_start_from_an_earlier_phase_and_be_resumed(tmp_path: Path) -> None:
    hansa.run(plan(FIRST), out=tmp_path / "first")
    start = {"run": str(tmp_path / "first"), "phase": "fed3r"}
    straight = hansa.run(plan([{"algorithm": "fedavg", **FAST}], start=start), out=tmp_path / "straight")
    one = hansa.run(plan([{"algorithm": "fedavg", **FAST, "rounds": 1}], start=start), out=tmp_path / "again")
    assert one.rounds[0]["metrics"] == straight.rounds[0]["metrics"]
    assert straight.rounds[0]["before"]["test_accuracy"] > 0.6  # Fed3R's, not chance


def test_what_cannot_be_continued_is_told(tmp_path: Path) -> None:
    hansa.run(plan(FIRST), out=tmp_path / "first")

    def problem(**changes: Any) -> str:
        start = {"run": str(tmp_path / "first"), **changes.pop("start", {})}
        with pytest.raises(HansaError) as error:
            hansa.run(plan(THEN, start=start, **changes), out=tmp_path / "never")
        assert not (tmp_path / "never").exists()
        return str(error.value)

    assert "has no phase 'fedsin'. Did you mean 'fedsim'?" in problem(start={"phase": "fedsin"})
    assert "There is no run folder" in problem(start={"run": "nowhere"})
    assert "its model is MLP" in problem(model="linear")
    other = {**DATA, "partition": {"name": "dirichlet", "clients": 9, "alpha": 0.3}}
    assert "clients of this plan are not among them" in problem(data=other)
    assert "its samples have shape" in problem(data={**DATA, "source": {"name": "digits", "images": True}})


def test_a_run_is_not_resumed_when_the_one_it_continues_has_changed(tmp_path: Path) -> None:
    hansa.run(plan(FIRST), out=tmp_path / "first")
    start = {"run": str(tmp_path / "first"), "phase": "fed3r"}
    done = hansa.run(plan([{"algorithm": "fedavg", **FAST}], start=start), out=tmp_path / "second")
    summary = json.loads((done.path / "summary.json").read_text())
    (done.path / "summary.json").write_text(json.dumps({**summary, "status": "interrupted"}))
    assert hansa.resume(done.path).status == "finished"
    (done.path / "summary.json").write_text(json.dumps({**summary, "status": "interrupted"}))
    for file in sorted((tmp_path / "first").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (tmp_path / "first").rmdir()
    hansa.run(plan(FIRST, seed=5), out=tmp_path / "first")
    with pytest.raises(HansaError, match="has changed since it began"):
        hansa.resume(done.path)


def test_a_checkpoint_can_be_the_first_phase(tmp_path: Path) -> None:
    done = hansa.run(plan([{"algorithm": "fed3r"}]), out=tmp_path / "first")
    file = str(done.path / "model.safetensors")  # which does not tell the temperature of what is in it
    init = [{"algorithm": {"name": "checkpoint", "path": file}, "temperature": 0.1}]
    after = hansa.run(plan([*init, {"algorithm": "fedavg", **FAST}]), out=tmp_path / "second")
    first, second, *_ = after.rounds
    assert first["metrics"] == done.rounds[-1]["metrics"]
    assert second["before"] == first["metrics"] and first["bytes_up"] == 0


def test_a_part_of_a_model_is_a_checkpoint_too_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    done = hansa.run(plan([{"algorithm": "fed3r"}]), out=tmp_path / "first")
    leaves = load_file(done.path / "model.safetensors")
    path = tmp_path / "part.safetensors"
    phases = [{"algorithm": {"name": "checkpoint", "path": str(path)}}]

    def problem() -> str:
        with pytest.raises(HansaError) as error:
            hansa.run(plan(phases), out=tmp_path / "never")
        return str(error.value)

    assert "There is no checkpoint file" in problem()
    path.write_bytes(b"nothing of the kind")
    assert "is no safetensors file that can be read" in problem()
    save_file({"head.wieght": leaves["head.weight"]}, path)
    assert "holds 'head.wieght', which the model does not have. Did you mean 'head.weight'?" in problem()
    save_file({"head.weight": leaves["head.weight"][:3].clone()}, path)
    assert "has shape (3, 16), and the model's is (10, 16)" in problem()
    save_file({"head.weight": leaves["head.weight"]}, path)
    part = hansa.run(plan(phases), out=tmp_path / "part")
    assert part.rounds[0]["metrics"]["test_accuracy"] > 0.5  # the features are the seeded ones, as in the first run


# ------------------------------------------------------------------------------------------------------- deadlines


def test_a_deadline_reaches_the_engine_and_late_clients_are_named(tmp_path: Path) -> None:
    """Nobody trains in a nanosecond: all are late, so the run stops below its minimum; a minute is enough for all."""
    phase = {"algorithm": "fedavg", **FAST}
    with pytest.raises(HansaError, match=r"3 of 3 clients failed. Client '.+' missed the deadline of 1e-09 s"):
        hansa.run(plan([{**phase, "deadline": 1e-9}]), out=tmp_path / "late")
    done = hansa.run(plan([{**phase, "deadline": 60}]), out=tmp_path / "soon")
    assert done.rounds[0]["failed"] == {}
    (carried_out,) = done.environment["engine"]["phases"]
    assert (carried_out["name"], carried_out["paths"]) == ("serial", {"serial": 6})
    with pytest.raises(HansaError, match=r"The 'deadline' of a phase must be a number of seconds > 0\. Got 0"):
        plan([{**phase, "deadline": 0}])
