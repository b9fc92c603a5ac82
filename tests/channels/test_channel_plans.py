"""Channels in plans: what is refused before a run, what is recorded of one, and two plans that learn through each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch

from hansa import api
from hansa.algorithms.fed3r import Fed3R
from hansa.contract import Algorithm
from hansa.errors import HansaError, Problems
from hansa.io.registry import Piece
from hansa.orchestrate.star import Sweep
from hansa.plan.assemble import assemble
from hansa.plan.channel import check_channel
from hansa.plan.checks import check_phases
from hansa.plan.files import plan_from_table, write_plan
from hansa.plan.schema import Plan
from hansa.running.experiment import Phase
from hansa.task import Task
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree

DIGITS: dict[str, Any] = {
    "data": {"source": "digits", "partition": {"name": "iid", "clients": 8}},
    "model": "linear",
    "engine": "serial",
}
FEDAVG = {
    "algorithm": {"name": "fedavg", "local": {"lr": 0.001}},
    "rounds": 2,
    "orchestration": {"name": "star", "clients": 6},
}


def planned(channel: Any, *phases: Mapping[str, Any]) -> Plan:
    table = {**DIGITS, "phases": [dict(phase) for phase in phases or (FEDAVG,)]}
    table |= {} if channel is None else {"channel": channel}
    return plan_from_table(table, "a plan", Path.cwd())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "every client's own": (
        {"algorithm": "fedproto"},
        r"the server of FedProto needs every client's own upload",
    ),
    "robust rules": ({"algorithm": {"name": "robust"}}, r"the server of Robust needs every client's own upload"),
    "descriptions": ({"algorithm": "describe"}, r"the server of Describe needs every client's own upload"),
    "chains": ({"orchestration": "chains"}, r"clients train one after the other, .*use the orchestration 'star'"),
    "lines": ({"orchestration": "fedasyncseq"}, r"clients train one after the other"),
    "uploads": ({"remember": "uploads"}, r"remember = 'uploads' asks for every client's upload"),
    "fingerprints": ({"remember": "fingerprints"}, r"set remember = 'nothing', or leave out the channel"),
    "small cohorts": ({"orchestration": {"name": "star", "clients": 2}}, r"a round visits 2 clients, .*fewer than 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_secure_sum_refuses_before_anything_is_loaded(case: str) -> None:
    changes, says = REFUSED[case]
    with pytest.raises(Problems, match=rf"^Phase '[\w-]+': .*{says}"):
        check_phases(planned("secure-sum", {**FEDAVG, **changes}))
    check_phases(planned(None, {**FEDAVG, **changes}))


def test_clients_that_may_lack_leaves_are_refused() -> None:
    with pytest.raises(Problems, match=r"clients may lack leaves that others have, and a secure sum needs the same"):
        check_phases(planned("secure-sum", {"algorithm": "flic"}))


def test_what_uploads_nothing_needs_no_sum() -> None:
    check_phases(planned("secure-sum", {"algorithm": {"name": "fed3r"}}, {"algorithm": "local"}))


def test_a_cohort_that_the_data_makes_too_small_is_refused_when_it_is_known() -> None:
    plan = planned({"name": "secure-sum", "fewest": 9}, {"algorithm": "fed3r"})
    check_phases(plan)
    with pytest.raises(Problems, match=r"a round visits 8 clients, and a secure sum is opened by no fewer than 9"):
        assemble(plan)


@dataclass(frozen=True)
class Rows(Wrapper):
    """Fed3R, if its clients sent one row of numbers a sample."""

    inner: Annotated[Algorithm, Piece("algorithm")] = Fed3R()

    def encode(self, sums: Tree) -> Tree:
        return {"rows": torch.zeros(int(sums["ridge.counts"].sum()), 3)}


def test_an_upload_as_long_as_its_client_has_samples_is_refused() -> None:
    phase, task = Phase("rows", Rows(), Sweep()), Task(planned(None).model, (4,), 2, 10)
    secure = planned("secure-sum").channel
    with pytest.raises(Problems, match=r"Phase 'rows': an upload of Rows is as long as its client has samples"):
        check_channel(secure, [phase], task)
    check_channel(secure, [replace(phase, algorithm=Fed3R())], task)


def test_compression_needs_something_to_compress_and_no_privacy() -> None:
    for name in ("quantise", "top-k"):
        with pytest.raises(Problems, match=r"compresses displacements .* and no phase uploads any"):
            check_phases(planned(name, {"algorithm": "fed3r"}))
        with pytest.raises(Problems, match=r"Phase 'private' has privacy, and an upload that was clipped"):
            check_phases(planned(name, {**FEDAVG, "algorithm": {"name": "private"}}))
        check_phases(planned(name, {"algorithm": "fed3r"}, FEDAVG))


def test_shared_noise_needs_a_secure_sum() -> None:
    phase = {**FEDAVG, "algorithm": {"name": "private", "trust": "distributed"}}
    with pytest.raises(Problems, match=r"Phase 'private' divides its noise .*set channel = 'secure-sum'"):
        check_phases(planned(None, phase))
    check_phases(planned("secure-sum", phase))


@pytest.mark.parametrize(
    ("channel", "says"),
    [
        (
            {"name": "secure-sum", "threshold": 0.5},
            r"The 'threshold' of secure-sum must lie above 0.5",
        ),
        ({"name": "secure-sum", "fewest": 1}, r"The 'fewest' of secure-sum must be a whole number ≥ 2"),
        ({"name": "top-k", "fraction": 0.0}, r"The 'fraction' of top-k must lie above 0"),
        ("secure", r"There is no channel 'secure'. Did you mean 'secure-sum'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(channel: Any, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        planned(channel)


def test_without_the_library_one_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(HansaError, match=r"needs the cryptography library: pip install 'hansa\[secure\]'"):
        check_phases(planned("secure-sum"))
    check_phases(planned("quantise"))


@pytest.mark.parametrize("channel", ["secure-sum", "quantise", {"name": "top-k", "fraction": 0.1}])
def test_a_plan_runs_through_a_channel_and_says_so(channel: Any, tmp_path: Path) -> None:
    """Fed3R, then FedAvg; the plan that the folder keeps is the plan, and the costs are told."""
    plan = planned(channel, {"algorithm": "fed3r"}, FEDAVG)
    assert plan_from_table(_read(write_plan(plan)), "again", tmp_path) == plan
    channels = {"plain": None, "found": plan.channel}
    plain, found = (api.run(replace(plan, channel=one), out=tmp_path / name) for name, one in channels.items())
    accuracy, before = (one.rounds[-1]["metrics"]["test_accuracy"] for one in (found, plain))
    assert accuracy == pytest.approx(before, abs=0.02)
    up, plainly = ([record["bytes_up"] for record in one.rounds] for one in (found, plain))
    if channel == "secure-sum":
        assert up[0] > 1.9 * plainly[0] and up[1] > 1.9 * plainly[1]
        assert found.rounds[0]["channel"] == {"asked": 8, "answered": 8, "needed": 6}
        assert [record["trips"] for record in found.rounds] == [3, 3, 2] and found.rounds[2]["channel_seconds"][
            "clients"
        ] > 0
    else:
        assert up[0] == plainly[0] and up[1] < plainly[1] / 2  # statistics as they are


def _read(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)
