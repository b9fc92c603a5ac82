"""Privacy that is private: releases that nobody can undo, that are kept once, and that are all in the ledger."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa import api
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.private import Private
from hansa.algorithms.statistics import to_tree
from hansa.channels.accounting import total_epsilon
from hansa.cli.console import show_comparison
from hansa.data.federation import Federation, federation_from_clients
from hansa.deploy.forget import forget, recreate_upload
from hansa.engines.serial import Serial
from hansa.engines.session import NUMBERS, perform
from hansa.errors import HansaError, Problems
from hansa.io.store import DiskStore, MemoryStore, Store, checkpoint_of
from hansa.models.dense import Linear
from hansa.orchestrate.star import Sweep
from hansa.payload import Update
from hansa.plan.checks import check_phases
from hansa.plan.files import plan_from_table
from hansa.results.report import build
from hansa.ridge import GaussianMechanism, RidgeStatistics
from hansa.ridge.privacy import clip_features
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.running.privacy import account
from hansa.running.round_book import RoundBook
from hansa.task import Task
from hansa.training.local import LocalTraining
from hansa.tree import equal, pick
from journals import ListJournal

WIDTH, CLASSES, SIZES = 40, 3, (5, 9, 14, 30)
MECHANISM = GaussianMechanism(2.0, 1e-5)
DIGITS: dict[str, Any] = {"source": "digits", "partition": {"name": "iid", "clients": 8}}
PRIVACY = {"epsilon": 2.0, "delta": 1e-5}


def federation() -> Federation:
    rng = torch.Generator().manual_seed(0)
    made = {}
    for k, size in enumerate(SIZES):
        x, y = torch.randn(size, WIDTH, generator=rng), torch.randint(0, CLASSES, (size,), generator=rng)
        made[f"c{k}"] = (x.numpy(), y.numpy(), x.numpy(), y.numpy())
    return federation_from_clients(made)


def phase_run(algorithm: Fed3R, store: Store | None = None, sweep: Sweep | None = None) -> PhaseRun:
    """A sweep over all clients, run to its end."""
    data, orchestration = federation(), sweep or Sweep()
    phase = Phase("only", algorithm, orchestration, orchestration._rounds(len(SIZES)))
    task = Task(Linear(), (WIDTH,), CLASSES, len(SIZES), samples=sum(SIZES))
    made = Experiment(task, data, (phase,), Serial())
    store = store or MemoryStore()
    run_phases(made, store, ListJournal())
    return PhaseRun(made, 0, store, None)


def exact(clients: Sequence[str] = ("c0", "c1", "c2", "c3")) -> RidgeStatistics:
    """The clipped statistics of some clients, without noise."""
    data = federation()
    parts = [data.clients[name].train for name in clients]
    return RidgeStatistics.sum(
        RidgeStatistics.from_features(clip_features(part.x.double()), part.y, CLASSES) for part in parts
    )


def noise_of(server: dict[str, torch.Tensor], group: str) -> torch.Tensor:
    """What was added to b, in units of the announced deviation."""
    return (pick(group, server)["moment"] - exact().moment) / MECHANISM.deviations[1]


# ---------------------------------------------------------------------------------------------------- whose noise it is


@pytest.mark.parametrize("noise", ["system", "simulated"])
def test_the_server_can_subtract_a_clients_noise_only_where_it_is_simulated(noise: str) -> None:
    """With everything that a server knows: the plan, its seed, and so what every visit draws from."""
    algorithm = Fed3R(privacy=replace(MECHANISM, noise=noise), trust="local", wire="float64", products="float64")  # type: ignore[arg-type]
    run = phase_run(algorithm)
    state = run.store.get("0/client", "c2")
    assert state is not None
    sent = algorithm.decode(run.task, pick("release", state))
    rng = torch.Generator().manual_seed(RoundBook(run).seed("c2", 0))
    guessed = MECHANISM.release(RidgeStatistics.zeros(WIDTH, CLASSES), rng)
    error = float((sent["ridge.gram"] - guessed.gram - exact(["c2"]).gram).abs().max())
    assert (error < 1e-9) == (noise == "simulated")


@pytest.mark.parametrize("trust", ["central", "local"])
def test_two_runs_of_one_plan_have_noise_of_their_own(trust: str) -> None:
    private = Fed3R(privacy=MECHANISM, trust=trust)  # type: ignore[arg-type]
    group = "release" if trust == "central" else "ridge"
    left, right = (noise_of(phase_run(private).server, group) for _ in range(2))
    assert abs(float(torch.corrcoef(torch.stack([left.flatten(), right.flatten()]))[0, 1])) < 0.5
    expected = 1.0 if trust == "central" else math.sqrt(len(SIZES))
    assert float(left.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * left.numel()))


def test_a_release_is_kept_and_not_drawn_again(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "state.sqlite")
    run = phase_run(Fed3R(privacy=MECHANISM), store)
    model = run.algorithm.model(run.task, run.server)
    store.close()
    again = PhaseRun(run.experiment, 0, DiskStore(tmp_path / "state.sqlite"), None)
    assert equal(again.server, run.server) and equal(again.algorithm.model(again.task, again.server), model)


def test_a_client_that_is_asked_again_sends_the_release_it_sent_before() -> None:
    run = phase_run(Fed3R(privacy=MECHANISM, trust="local"))
    first, again = (perform(run.side, run.task, "c1", seed, {}) for seed in (5, 6))
    assert equal(first.upload, again.upload)
    fresh = replace(run.side, stored=lambda client: None)
    assert not equal(perform(fresh, run.task, "c1", 5, {}).upload, first.upload)


# ----------------------------------------------------------------------------------------- what else travels or is kept


def test_a_local_release_tells_neither_samples_nor_operations() -> None:
    run = phase_run(Fed3R(privacy=MECHANISM, trust="local"))
    replies = [perform(run.side, run.task, name, 5, {}) for name in run.names]
    assert {tuple(reply.numbers[key] for key in NUMBERS) for reply in replies} == {(1.0, 1.0, 0.0)}
    assert len({reply.bytes_up for reply in replies}) == 1  # nor which classes a client has
    assert not run.ledger.tree()["flops"].any() and len(run.ledger.tree()["bytes_up"].unique()) == 1
    clear = phase_run(Fed3R(privacy=MECHANISM))
    assert len({perform(clear.side, clear.task, name, 5, {}).numbers["weight"] for name in clear.names}) == len(SIZES)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("sweep", [Sweep(), Sweep(3)], ids=["one round", "two rounds"])
def test_the_checkpoint_holds_the_sums_themselves_only_where_that_is_asked_for(
    kept: bool, sweep: Sweep, tmp_path: Path
) -> None:
    store = DiskStore(tmp_path / "state.sqlite")
    run = phase_run(Fed3R(privacy=MECHANISM, keep_sums=kept, products="float64", wire="float64"), store, sweep)
    counts, trees = exact().counts, dict(run.server)
    for name in run.names:
        assert store.get("0/client", name) is None and store.get("0/upload", name) is None
    found = [key for key, leaf in trees.items() if leaf.shape == counts.shape and torch.allclose(leaf, counts)]
    assert found == (["ridge.counts"] if kept else [])
    noise = pick("release", run.server)["moment"] - exact().moment
    rounds = 1 if sweep.clients is None else 2
    spread = MECHANISM.deviations[1] * math.sqrt(rounds)
    assert float(noise.std()) == pytest.approx(spread, rel=5 / math.sqrt(2 * noise.numel()))


def test_uploads_are_not_remembered_beside_a_central_release() -> None:
    table = {"algorithm": {"name": "fed3r", "privacy": PRIVACY}, "remember": "uploads"}
    with pytest.raises(Problems, match="remember every client's upload without noise"):
        check_phases(plan([table]))
    check_phases(plan([{**table, "algorithm": {**table["algorithm"], "keep_sums": True}}]))  # type: ignore[dict-item]
    check_phases(plan([{**table, "algorithm": {**table["algorithm"], "trust": "local"}}]))  # type: ignore[dict-item]


# ----------------------------------------------------------------------------------------------------------- forgetting


def finished(tmp_path: Path, phases: list[dict[str, Any]], **settings: Any) -> Path:
    return api.run(plan(phases, **settings), out=tmp_path / "run").path


def release_of(folder: Path, group: str) -> dict[str, torch.Tensor]:
    store = DiskStore(checkpoint_of(folder), read_only=True)
    try:
        return pick(group, store.get("0/server") or {})
    finally:
        store.close()


def test_releases_before_and_after_forgetting_do_not_differ_by_the_leavers_statistics(tmp_path: Path) -> None:
    algorithm = {"name": "fed3r", "privacy": PRIVACY, "keep_sums": True, "wire": "float64", "products": "float64"}
    folder = finished(tmp_path, [{"algorithm": algorithm, "remember": "uploads"}])
    before, sums = release_of(folder, "release"), release_of(folder, "ridge")
    record = forget(folder, "client-003")
    assert record["difference_of_sums"] < 1e-9
    after, left = release_of(folder, "release"), release_of(folder, "ridge")
    gone = sums["moment"] - left["moment"]
    noise = before["moment"] - after["moment"] - gone
    mechanism = GaussianMechanism(**PRIVACY)
    spread = math.sqrt(2) * mechanism.deviations[1]
    assert float(noise.std()) == pytest.approx(spread, rel=5 / math.sqrt(2 * noise.numel()))
    assert int(before["number"]) == 1 and int(after["number"]) == 2
    told = json.loads((folder / "summary.json").read_text())["privacy"]
    assert told["releases"][0]["count"] == 2
    assert told["epsilon"] == pytest.approx(total_epsilon([mechanism.booked(2, "central")], 1e-5))


def test_forgetting_is_booked_as_another_release() -> None:
    algorithm = Fed3R(privacy=MECHANISM, keep_sums=True, products="float64")
    run = phase_run(algorithm)
    told = account(run)
    up = algorithm.client_step(run.task, {}, {}, run.federation.clients["c2"].train, torch.Generator())[0]
    run.server = algorithm.forget(run.task, run.server, up)
    after = account(run)
    assert told is not None and after is not None and told["releases"][0]["count"] == 1
    assert told["epsilon"] == pytest.approx(2.0, rel=1e-4) and after["releases"][0]["count"] == 2
    assert after["epsilon"] == total_epsilon([MECHANISM.booked(2, "central")], 1e-5) > 2.5


def test_nobody_is_forgotten_where_only_the_release_was_kept(tmp_path: Path) -> None:
    folder = finished(tmp_path, [{"algorithm": {"name": "fed3r", "privacy": PRIVACY}}])
    recreate_upload(folder, "client-003", tmp_path / "again.safetensors")
    before = release_of(folder, "release")
    with pytest.raises(HansaError, match="kept neither an upload nor a fingerprint"):
        forget(folder, "client-003", tmp_path / "again.safetensors")
    assert equal(release_of(folder, "release"), before)
    run = phase_run(Fed3R(privacy=MECHANISM))
    with pytest.raises(HansaError, match="keep_sums = true"):
        run.algorithm.forget(run.task, run.server, Update(to_tree(exact(["c2"]))))


def test_a_client_that_added_its_own_noise_takes_out_just_what_it_sent(tmp_path: Path) -> None:
    algorithm = {"name": "fed3r", "privacy": PRIVACY, "trust": "local", "wire": "float64"}
    folder = finished(tmp_path, [{"algorithm": algorithm, "remember": "fingerprints"}])
    recreate_upload(folder, "client-003", tmp_path / "again.safetensors")
    assert "fingerprint verified" in forget(folder, "client-003", tmp_path / "again.safetensors")["source"]


# ----------------------------------------------------------------------------------------------------------- the ledger


def plan(phases: list[dict[str, Any]], **settings: Any) -> Any:
    return plan_from_table({"data": DIGITS, "phases": phases, **settings}, "plan", Path())


FED3R = {"algorithm": {"name": "fed3r", "privacy": PRIVACY}}
PRIVATE = {
    "algorithm": {"name": "private", "epsilon": 4.0, "inner": {"name": "fedavg", "local": {"lr": 0.1}}},
    "orchestration": {"name": "star", "clients": 4},
    "rounds": 3,
}


@pytest.mark.parametrize(
    "other",
    [
        {"algorithm": "calibrate"},
        {"algorithm": "fedncm"},
        {"algorithm": "fedcof"},
        {"algorithm": "lda"},
        {"algorithm": {"name": "fed3r-select", "ridges": [1.0]}},
        {"algorithm": "fed3r-ft"},
        {"algorithm": "fedavg"},
        {"algorithm": {"name": "robust", "inner": "fedavg"}},
        {"algorithm": "fed3r"},
    ],
    ids=lambda one: str(one["algorithm"]),
)
@pytest.mark.parametrize("first", [True, False])
def test_a_phase_without_privacy_is_refused_beside_one_that_has_it(other: dict[str, Any], first: bool) -> None:
    phases = [other, FED3R] if first else [FED3R, other]
    with pytest.raises(Problems, match="unprotected = true"):
        check_phases(plan(phases))
    check_phases(plan([{**one, "unprotected": one is other} for one in phases]))
    check_phases(plan([other]))  # nobody claims anything


def test_feature_scale_is_refused_beside_a_release_too() -> None:
    model = {"name": "random-features", "inner": "linear", "dimension": 20}
    with pytest.raises(Problems, match="Phase 'feature-scale' learns from the clients without privacy"):
        check_phases(plan([{"algorithm": "feature-scale"}, FED3R], model=model))


def test_a_phase_that_uploads_nothing_needs_no_privacy() -> None:
    check_phases(plan([FED3R, {"algorithm": "oll"}, {"algorithm": {"name": "local"}}]))


def test_the_ledger_adds_up_every_release_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = api.run(plan([FED3R, PRIVATE]), out=tmp_path / "run")
    told = done.summary["privacy"]
    assert told["delta"] == 1e-5 and told["unit"] == "sample" and told["trust"] == "central"
    assert told["noise"] == "system" and told["unprotected"] == []
    first, second = told["releases"]
    assert (first["phase"], first["unit"], first["count"]) == ("fed3r", "sample", 1)
    assert (second["phase"], second["unit"]) == ("private", "client") and 2 <= second["count"] <= 3
    assert first["epsilon"] == pytest.approx(2.0, rel=1e-3) and second["epsilon"] == pytest.approx(4.0, rel=1e-3)
    mu = math.sqrt(1 / first["multiplier"] ** 2 + second["count"] * (2 / second["multiplier"]) ** 2)
    assert told["epsilon"] == pytest.approx(_epsilon(mu), rel=1e-3) and told["epsilon"] > 4.0
    assert json.loads((done.path / "summary.json").read_text())["privacy"] == told
    show_comparison([done])
    line = f"Privacy: ε = {told['epsilon']:.3g} at δ = 1e-05 for every sample, central trust"
    assert line in capsys.readouterr().out
    assert line in build([done.path], tmp_path / "page.html").read_text(encoding="utf-8")


def _epsilon(mu: float) -> float:
    from scipy.optimize import brentq
    from scipy.stats import norm

    def gap(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))) - 1e-5

    return float(brentq(gap, 0, 200))


def test_simulated_noise_and_unprotected_phases_are_said_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = {"algorithm": {"name": "fed3r", "privacy": {**PRIVACY, "noise": "simulated"}}}
    done = api.run(plan([simulated]), out=tmp_path / "simulated")
    open_one = api.run(plan([FED3R, {"algorithm": "calibrate", "unprotected": True}]), out=tmp_path / "open")
    assert done.summary["privacy"]["noise"] == "simulated"
    assert open_one.summary["privacy"]["epsilon"] is None
    assert open_one.summary["privacy"]["unprotected"] == ["calibrate"]
    show_comparison([done, open_one])
    shown = capsys.readouterr().out
    assert "simulated noise, not private" in shown and "these phases are unprotected: calibrate" in shown
    page = build([done.path, open_one.path], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "simulated noise, not private" in page and "these phases are unprotected: calibrate" in page


def test_a_run_without_privacy_says_nothing_of_it(tmp_path: Path) -> None:
    assert "privacy" not in api.run(plan([{"algorithm": "fed3r"}]), out=tmp_path / "run").summary


def test_a_continued_run_books_what_the_first_one_released(tmp_path: Path) -> None:
    first = finished(tmp_path, [FED3R])
    then = api.run(plan([PRIVATE], start={"run": str(first)}), out=tmp_path / "then")
    assert [one["phase"] for one in then.summary["privacy"]["releases"]] == ["fed3r", "private"]
    assert then.summary["privacy"]["epsilon"] > 4.0


SECRET = {**PRIVATE, "algorithm": {**PRIVATE["algorithm"], "cohorts": "secret"}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        ({**SECRET, "orchestration": {"name": "sweep", "clients": 4}}, "secret draw"),
        ({**PRIVATE, "orchestration": {"name": "chains", "length": 2}}, "clipping does not bound"),
        ({**PRIVATE, "remember": "fingerprints"}, "without noise"),
    ],
)
def test_plans_that_would_break_the_promise_are_refused(phase: dict[str, Any], says: str) -> None:
    with pytest.raises(HansaError, match=says):
        check_phases(plan([phase]))


def test_a_secret_draw_is_booked_as_one(tmp_path: Path) -> None:
    done = api.run(plan([{**SECRET, "orchestration": {"name": "star", "clients": 1}}]), out=tmp_path / "run")
    assert done.summary["privacy"]["epsilon"] <= 4.0 * 1.001


def test_every_release_is_committed_before_the_next_is_made(tmp_path: Path) -> None:
    """So that a killed run has made at most one release that it does not remember."""
    private = Private(FedAvg(LocalTraining(lr=0.1)), epsilon=5.0)
    commits = []

    class Counting(DiskStore):
        def commit(self, progress: dict[str, Any]) -> None:
            commits.append(progress["round"])
            super().commit(progress)

    data = federation()
    made = Experiment(
        Task(Linear(), (WIDTH,), CLASSES, len(SIZES)), data, (Phase("only", private, Sweep(), 4),), Serial()
    )
    run_phases(made, Counting(tmp_path / "state.sqlite"), ListJournal())
    assert commits == [1, 2, 3, 4]
