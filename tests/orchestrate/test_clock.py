"""Simulated time, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hansa
from hansa.errors import HansaError
from hansa.orchestrate.clock import Constant, Drawn, Exponential, LogNormal, Measured, Pace, Paces, Timeline, Uniform
from hansa.orchestrate.planner import Leg
from hansa.plan.files import plan_from_table

PACES = Paces({"a": Pace(1.0, 0.5), "b": Pace(2.0, 0.5), "c": Pace(4.0, 0.0)}, seed=0)
SAMPLES = {"a": 3, "b": 2, "c": 1}.__getitem__  # visits of 3 + 1, 4 + 1 and 4 + 0 seconds


def spans(legs: list[Leg]) -> list[tuple[float | None, float | None]]:
    return [(leg.start, leg.end) for leg in legs]


def test_a_star_waits_for_its_slowest_client() -> None:
    timeline = Timeline()
    legs = timeline.round(PACES, [Leg(("a",)), Leg(("b",)), Leg(("c",))], True, SAMPLES, 0)
    assert spans(legs) == [(0, 4), (0, 5), (0, 4)]
    assert (timeline.now, timeline.waited) == (5, 1 + 0 + 1)
    timeline.round(PACES, [Leg(("a",))], True, SAMPLES, 1)
    assert (timeline.now, timeline.waited) == (9, 2)


def test_a_chain_takes_as_long_as_its_clients_together() -> None:
    timeline = Timeline()
    legs = timeline.round(PACES, [Leg(("a", "b")), Leg(("c",))], True, SAMPLES, 0)
    assert spans(legs) == [(0, 9), (0, 4)]
    assert (timeline.now, timeline.waited) == (9, 5)


def test_lines_wait_for_nobody_until_they_merge() -> None:
    """Two models: one meets a and then c, the other b and then a.  In step they would take 5 + 4 and wait 1 + 0."""
    timeline = Timeline()
    timeline.round(PACES, [Leg(("a",), 0), Leg(("b",), 1)], False, SAMPLES, 0)
    assert (timeline.now, timeline.lines, timeline.seconds) == (0, {0: 4, 1: 5}, 5)
    legs = timeline.round(PACES, [Leg(("c",), 0), Leg(("a",), 1)], True, SAMPLES, 1)
    assert spans(legs) == [(4, 8), (5, 9)]
    assert (timeline.now, timeline.waited, timeline.lines) == (9, 1, {})


def test_a_timeline_goes_on_from_its_note() -> None:
    timeline = Timeline()
    timeline.round(PACES, [Leg(("a",), 0), Leg(("b",), 1)], False, SAMPLES, 0)
    again = Timeline.from_note(timeline.note())
    assert again == timeline and Timeline.from_note(None) == Timeline()


@pytest.mark.parametrize(("time", "reached"), [(0.0, 3.0), (3.0, 3.0), (5.4, 5.4), (5.6, 13.0), (14.0, 14.0)])
def test_a_message_waits_until_its_client_can_be_reached(time: float, reached: float) -> None:
    """Reachable from 3 to 5.5 of every ten seconds."""
    assert Pace(1.0, 0.0, available=0.25, period=10.0, phase=3.0).reached(time) == reached


def test_clients_are_the_same_for_a_seed_whoever_else_is_there() -> None:
    one, two = Drawn().open(["a", "b"], 7).paces, Drawn().open(["b", "c"], 7).paces
    assert one["b"] == two["b"] and one["a"] != one["b"] != Drawn().open(["b"], 8).paces["b"]


def test_distributions_have_the_moments_they_name() -> None:
    rng = np.random.default_rng(0)
    draws = {kind: [kind.draw(rng) for _ in range(4000)] for kind in (LogNormal(2, 1), Uniform(1, 3), Exponential(2))}
    assert [np.median(found) for found in draws.values()] == pytest.approx([2.0, 2.0, 1.39], abs=0.12)
    assert Constant(3.0).draw(rng) == 3.0
    assert np.mean(np.array(draws[LogNormal(2, 1)]) > 2 * np.exp(1.96)) == pytest.approx(0.025, abs=0.01)


def test_visits_may_jitter_and_a_round_draws_the_same_again() -> None:
    paces = Drawn(Constant(1.0), Constant(0.0), Uniform(0.5, 1.5)).open(["a"], 0)
    first, again, later = (paces.visit("a", 0.0, 10, round) for round in (0, 0, 1))
    assert first == again != later and 5 <= first <= 15


def test_clients_are_reached_in_shares_that_a_distribution_draws() -> None:
    names = [f"client-{k}" for k in range(200)]
    every, half, some = (
        Drawn(available=one).open(names, 0).paces for one in (Constant(1.0), Constant(0.5), Uniform(0.2, 1.4))
    )
    assert {one.available for one in half.values()} == {0.5} and {one.available for one in every.values()} == {1.0}
    shares = [one.available for one in some.values()]
    assert min(shares) < 0.3 and 0.25 < np.mean(np.array(shares) == 1.0) < 0.42  # a third of the draws are above 1
    assert all(one[:2] == every[name][:2] and one.phase == every[name].phase for name, one in some.items())


def test_a_number_in_a_plan_is_a_distribution_of_that_number_alone() -> None:
    def read(available: object):
        clock = {"name": "drawn", "seconds_per_sample": 1, "latency": 2.5, "available": available}
        phase = {"algorithm": "fedavg", "clock": clock}
        table = {"data": {"source": "digits", "partition": "iid"}, "phases": [phase]}
        return plan_from_table(table, "plan", Path()).phases[0].clock

    assert read(0.5) == Drawn(Constant(1.0), Constant(2.5), available=Constant(0.5))
    uniform = {"name": "uniform", "low": 0.5, "high": 1.0}
    assert read(uniform) == Drawn(Constant(1.0), Constant(2.5), available=Uniform(0.5, 1.0))
    for odd in (True, "often", [0.5], 1.5, 0):
        with pytest.raises(HansaError, match=r"phases\.0\.clock"):
            read(odd)


def test_a_file_gives_paces(tmp_path: Path) -> None:
    (tmp_path / "clock.csv").write_text("client,seconds_per_sample,latency,available,period\na,0.5,1,,\nb,2,0,0.5,8\n")
    paces = Measured(str(tmp_path / "clock.csv")).open(["a", "b"], 0).paces
    assert paces["a"][:4] == (0.5, 1.0, 1.0, 86_400.0) and paces["b"][:4] == (2.0, 0.0, 0.5, 8.0)
    with pytest.raises(HansaError, match="has no line for client 'c'"):
        Measured(str(tmp_path / "clock.csv")).open(["a", "c"], 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("client,latency\na,1\n", "must have a column 'seconds_per_sample'"),
        ("client,seconds_per_sample,latency\na,fast,1\n", "client 'a': every cell must be a number"),
        ("client,seconds_per_sample,latency\na,1\n", "client 'a': every cell must be a number"),
        ("client,seconds_per_sample,latency\na,-1,1\n", "seconds must be numbers ≥ 0"),
        ("client,seconds_per_sample,latency,available\na,1,1,2\n", "'available' must lie in"),
        (f"client,seconds_per_sample,latency\n{'a' * 200_000},1,1\n", "cannot be read: field larger than"),
    ],
)
def test_a_bad_file_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "clock.csv").write_text(text)
    with pytest.raises(HansaError, match=says):
        Measured(str(tmp_path / "clock.csv")).open(["a"], 0)


def test_a_file_is_read_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "clock.csv").write_text("client,seconds_per_sample,latency\na,1,1\n")
    data = {"source": "digits", "partition": {"name": "iid", "clients": 2}}
    for name, says in (("clock.csv", "has no line for client 'client-000'"), ("none.csv", "is not there")):
        phase = {"algorithm": "fedavg", "clock": {"name": "file", "path": name}}
        plan = plan_from_table({"data": data, "phases": [phase]}, "plan", tmp_path)
        with pytest.raises(HansaError, match=says):
            hansa.run(plan, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "bad", [lambda: LogNormal(0), lambda: Uniform(2, 1), lambda: Drawn(available=Constant(0.0)), lambda: Exponential(0)]
)
def test_settings_are_checked(bad) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(HansaError):
        bad()
