"""A worker runs the code that it was started to trust, whatever a message names."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_cases import context, federation, ran, task_of
from napping import Napping

from hansa.algorithms.fedavg import FedAvg
from hansa.engines import framing
from hansa.engines.errands import describe, describe_suite
from hansa.engines.processes import Processes
from hansa.engines.remote import own_code
from hansa.engines.worker import serve
from hansa.errors import HansaError
from hansa.io import wire
from hansa.io.search_path import search_path
from hansa.metrics.suite import default_suite
from hansa.models.dense import Linear

Head = dict[str, Any]
SHELL = {"name": "module", "path": "subprocess:run", "options": {"args": "touch marker", "shell": True}}
REFUSED = "is code outside the catalogue, which runs only if you trust it"
ATTACKS: dict[str, Callable[[Head], object]] = {
    "algorithm": lambda head: head["sides"][0].update(algorithm="evil:Thing"),
    "inner algorithm": lambda head: head["sides"][0].update(algorithm={"name": "personal", "inner": "os:system"}),
    "model": lambda head: head["sides"][0]["task"].update(model="builtins:exec"),
    "module": lambda head: head["sides"][0]["task"].update(model=SHELL),
    "metric": lambda head: head["metrics"].append("evil:Thing"),
    "table": lambda head: head["tables"].append("hansa.cli:main"),
    "objective": lambda head: head["sides"][0]["algorithm"]["local"].update(objective="evil:Thing"),
}


def opening() -> Head:
    """The first frame of a good run."""
    data = federation()
    side = context(FedAvg(), task_of(data, Linear()), data).side
    head: Head = {"sides": [describe(side)], **describe_suite(default_suite(False))}
    return json.loads(json.dumps(head))  # type: ignore[no-any-return]


def frames(*heads: Head) -> io.BytesIO:
    """Frames as they travel; the first one has the leaves of a phase beside it."""
    stream = io.BytesIO()
    for place, head in enumerate(heads):
        framing.write(stream, head, [wire.parts({})] if place == 0 else [])
    stream.seek(0)
    return stream


def answered(head: Head, *trusted: str) -> Head | None:
    """What a worker answers to the description of a phase; nothing where it accepts it."""
    replies = io.BytesIO()
    serve(frames(head), replies, trusted)
    replies.seek(0)
    return framing.read(replies)[0] if replies.getvalue() else None


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module on the path that leaves a mark when it is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "marker"


@pytest.mark.parametrize("change", ATTACKS.values(), ids=ATTACKS)
def test_a_message_that_names_code_is_refused_in_a_sentence(change: Callable[[Head], object], evil: Path) -> None:
    head = opening()
    assert answered(head) is None
    change(head)
    head |= {"trust": ["*"], "trusted": ["*"]}  # whatever a message says about it
    told = answered(head)
    assert told is not None and set(told) == {"error"} and REFUSED in told["error"]
    assert not evil.exists() and "evil" not in sys.modules


def test_a_worker_process_refuses_it_too(evil: Path) -> None:
    head = opening()
    ATTACKS["module"](head)
    command, env = [sys.executable, "-P", "-m", "hansa.engines.worker"], {**os.environ, "PYTHONPATH": search_path()}
    done = subprocess.run(command, input=frames(head).getvalue(), capture_output=True, env=env, check=True)
    assert REFUSED in framing.read(io.BytesIO(done.stdout))[0]["error"]
    assert not evil.exists()


def test_a_worker_whose_run_was_killed_ends_without_a_word() -> None:
    head = opening()
    ATTACKS["module"](head)  # so that there is something to answer
    command, env = [sys.executable, "-P", "-m", "hansa.engines.worker"], {**os.environ, "PYTHONPATH": search_path()}
    nobody, answers = os.pipe()
    os.close(nobody)
    frame = frames(head).getvalue()
    done = subprocess.run(command, input=frame, stdout=answers, stderr=subprocess.PIPE, env=env, check=False)
    os.close(answers)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_worker_trusts_what_it_was_started_with_and_no_more() -> None:
    head = opening()
    head["sides"][0]["algorithm"] = {"name": "napping:Napping"}
    assert answered(head, "napping:Napping") is None
    assert answered(head, "napping.*") is None
    for other in ((), ("napping:Other",), ("nap.*",)):
        told = answered(head, *other)
        assert told is not None and "'napping:Napping' is code outside the catalogue" in told["error"]


def test_a_run_lets_its_workers_trust_its_own_pieces_alone() -> None:
    data = federation()
    found = context(Napping(), task_of(data, Linear()), data)
    assert list(own_code([found.side], found.suite)) == ["napping:Napping"]
    plain = context(FedAvg(), task_of(data, Linear()), data)
    assert list(own_code([plain.side], plain.suite)) == []


def test_a_piece_that_no_other_process_can_import_ends_the_run_with_a_sentence() -> None:
    @dataclass(frozen=True)
    class Hidden(FedAvg):
        pass

    with pytest.raises(HansaError, match="Hidden' must be named by an import path such as 'package"):
        ran(Hidden(), Processes(1))
