"""A small budget of every campaign of accidents; `python -m tests.fuzz` has as many as one asks for."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

import hansa
from hansa.errors import DamagedStore
from hansa.io.store import checkpoint_of
from hansa.results.reader import Run

from . import crashes, damage, kills, runs

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="accidents happen to a forked process")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.loop, "COMMIT_SECONDS", runs.loop.COMMIT_SECONDS)  # put back afterwards


def test_no_damaged_checkpoint_is_accepted_silently(capsys: pytest.CaptureFixture[str]) -> None:
    assert damage.main(cases=45, seed=11) == 0
    assert "45 cases" in capsys.readouterr().out


@pytest.mark.parametrize("engine", runs.ENGINES)
def test_a_damaged_state_stops_the_run_and_is_never_a_clients_failure(engine: str, tmp_path: Path) -> None:
    runs.every_round_commits()
    runs.begin(tmp_path / "run", runs.plan(engine), stop_after=4)
    database = sqlite3.connect(checkpoint_of(tmp_path / "run"), isolation_level=None)
    zeros = "UPDATE trees SET tree = zeroblob(length(tree)) WHERE name = '1/client'"
    database.execute(zeros)  # with the digests as they were
    database.close()
    with pytest.raises(DamagedStore, match="does not match its checksum"):
        hansa.resume(tmp_path / "run", data=runs.data())
    assert not any(record["failed"] for record in Run.open(tmp_path / "run").rounds)


@forks
def test_a_run_that_ends_at_any_file_operation_is_resumed_to_the_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert crashes.main(cases=15, seed=11) == 0
    assert "10 crashes" in capsys.readouterr().out


@forks
def test_a_run_killed_again_and_again_ends_with_the_same_bits_on_every_engine() -> None:
    assert kills.main(cases=3, seed=11) == 0


def test_the_campaign_of_damage_notices_a_checkpoint_that_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hansa.io.store.DiskStore._check_rows", lambda self: None)
    monkeypatch.setattr(damage, "DAMAGES", (damage.delete_row,))
    assert damage.main(cases=8, seed=1) > 0
