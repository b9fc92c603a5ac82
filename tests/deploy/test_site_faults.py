"""Sites as processes of their own, which are killed or slow, or whose letters and answers somebody meddles with."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from forked import Forked
from hansa.algorithms.scaffold import Scaffold
from hansa.data.federation import Federation
from hansa.deploy.flower_app import frames
from hansa.deploy.site import read_site, site_data
from hansa.engines import framing, letters
from hansa.engines.carriers import Answers, Carrier
from hansa.engines.flower import Flower
from hansa.engines.letters import Answer, Letter
from hansa.engines.relay import federation_of
from hansa.engines.serial import Serial, SerialSession
from hansa.engines.session import ClientFailed, Engine, Lane, PhaseContext, RoundServer
from hansa.io import wire
from hansa.io.store import MemoryStore
from hansa.models.dense import Linear
from hansa.orchestrate.star import Star
from hansa.payload import Update
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.task import Task
from hansa.training.local import LocalTraining
from hansa.tree import equal
from journals import ListJournal

SITES, ROUNDS = ("a", "b", "c"), 3
LARGEST = 2**20
FILE = f"""classes = ["0", "1"]
client = "{{site}}"
largest = {LARGEST}
[data]
source = {{{{ name = "npz", path = "data.npz" }}}}
partition = {{{{ name = "iid", clients = 1 }}}}
test = {{{{ kind = "local" }}}}
"""
Fault = Callable[["Sites"], None]
Meddle = Callable[["Sites", bytes, bytes], bytes]  # of a letter and its answer: what arrives in place of the answer


class Sites:
    """Three processes, and the way to them; `strike` happens to the second letter of the last one at some moment."""

    cards: Mapping[str, str] = {}
    homes: Mapping[str, str] = {site: site for site in SITES}

    def __init__(self, folder: Path):
        self.folder, self.processes = folder, dict[str, Forked]()
        self.trip, self.strike = 0, dict[str, Fault]()
        self.first = b""
        self.meddle: Meddle = lambda sites, letter, answer: answer

    def start(self, site: str) -> None:
        path = self.folder / site
        (path / "site.sock").unlink(missing_ok=True)
        with (path / "log").open("ab") as log, Path(os.devnull).open() as none:
            streams = [none.fileno(), log.fileno(), log.fileno()]
            words = ["site", "serve", str(path / "site.toml")]
            self.processes[site] = Forked("command", words, path, dict(os.environ), streams)
        end = time.monotonic() + 60
        while "Listening" not in (path / "log").read_text() or not (path / "site.sock").exists():
            assert time.monotonic() < end
            time.sleep(0.05)

    def kill(self, site: str) -> None:
        self.processes[site].kill()
        self.processes[site].wait()

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[Carrier]:
        yield self

    def ask(self, letters: Mapping[str, bytes], patience: float) -> Answers:
        self.trip += 1
        self.first = letters["c"] if self.trip == 1 else self.first  # which describes the phase
        for site, letter in letters.items():
            now = (self.trip, site) == (2, "c")
            try:
                answer = self._asked(site, letter, self.strike if now else {})
                yield site, self.meddle(self, letter, answer) if now else answer
            except (OSError, EOFError) as error:
                yield site, f"{type(error).__name__}: {error}"
            if "back" in self.strike and self.processes[site].returncode is not None:
                self.start(site)

    def _asked(self, site: str, letter: bytes, struck: Mapping[str, Fault]) -> bytes:
        with socket.socket(socket.AF_UNIX) as to:
            struck.get("before", lambda _: None)(self)
            to.connect(str(self.folder / site / "site.sock"))
            frames.send(to, {}, [letter])
            struck.get("during", lambda _: None)(self)
            _, (answer,) = frames.receive(to)
            struck.get("after", lambda _: None)(self)
        return answer

    def hello(self) -> Federation:
        known: dict[str, Answer] = {}
        for site in SITES:
            letter = letters.write(Letter(time.time_ns() // 1000, 1), [])
            known[site] = letters.read_answer(self._asked(site, letter, {}))[0]
        return federation_of(known)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    made, rng = Sites(tmp_path_factory.mktemp("sites")), np.random.default_rng(0)
    for site in SITES:
        (made.folder / site).mkdir()
        x, y = rng.standard_normal((40, 5)).astype(np.float32), np.arange(40) % 2
        np.savez(made.folder / site / "data.npz", x=x, y=y)
        (made.folder / site / "site.toml").write_text(FILE.format(site=site))
        made.start(site)
    yield made
    for site in SITES:
        made.kill(site)


class Absent(Serial):
    """The serial engine, with a client that does not answer in the second round."""

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[SerialSession]:
        yield AbsentSession(context=context)


class AbsentSession(SerialSession):
    def one(self, task: Task, lane: Lane, server: RoundServer) -> Update | None:
        if lane.chain != ("c",) or task.round != 1:
            return super().one(task, lane, server)
        server.refuse("c", ClientFailed("gone"))
        return None


def outcome(engine: Engine, federation: Federation) -> tuple[PhaseRun, ListJournal]:
    """SCAFFOLD, whose clients keep a state, evaluated at the end."""
    samples, journal = sum(federation.sizes().values()), ListJournal()
    algorithm = Scaffold(LocalTraining(lr=0.1, batch_size=8))
    phase = Phase("only", algorithm, Star(fraction=1.0), ROUNDS, ROUNDS)
    task = Task(Linear(), (5,), 2, len(SITES), samples=samples)
    run = run_phases(Experiment(task, federation, (phase,), engine), MemoryStore(), journal)
    assert run is not None
    return run, journal


def delay(sites: Sites) -> None:
    """Let a site take much longer than the others."""
    process = sites.processes["c"].pid
    os.kill(process, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(process, signal.SIGCONT)


BACK: dict[str, Fault] = {"back": lambda sites: None}  # it is started again before its next letter
FAULTS: dict[str, tuple[dict[str, Fault], bool]] = {
    "killed before": ({"before": lambda sites: sites.kill("c"), **BACK}, True),
    "killed during": (
        {
            "before": lambda sites: os.kill(sites.processes["c"].pid, signal.SIGSTOP),
            "during": lambda sites: sites.kill("c"),
            **BACK,
        },
        True,
    ),
    "killed after": ({"after": lambda sites: sites.kill("c"), **BACK}, False),
    "slow": ({"during": delay}, False),
}


def near(sites: Sites) -> Federation:
    """The same clients, here."""
    here = [site_data(read_site(sites.folder / site / "site.toml")) for site in SITES]
    return Federation({name: one for held in here for name, one in held.clients.items()}, here[0].target)


@pytest.mark.parametrize(("strike", "lost"), FAULTS.values(), ids=FAULTS)
def test_a_site_that_is_killed_or_slow_costs_at_most_its_own_visit(
    sites: Sites, strike: dict[str, Fault], lost: bool
) -> None:
    """The run goes on with the bits of one in which it was away for that round; its state is where it was."""
    sites.trip, sites.strike, sites.meddle = 0, strike, lambda sites, letter, answer: answer
    found, told = outcome(Flower(sites), sites.hello())  # type: ignore[arg-type]
    expected, _ = outcome(Absent() if lost else Serial(), near(sites))
    assert equal(found.server, expected.server) and equal(found.ledger.tree(), expected.ledger.tree())
    assert [sorted(one["failed"]) for one in told.records] == [[], ["c"] if lost else [], []]
    assert not lost or "Its site 'c' cannot be used" in told.records[1]["failed"]["c"]


def poisoned(change: Callable[[torch.Tensor], torch.Tensor]) -> Meddle:
    """An answer whose upload is not what it should be."""

    def meddle(sites: Sites, letter: bytes, answer: bytes) -> bytes:
        head, (upload, *others) = framing.unpacked(answer)
        tree, numbers = wire.unpack(upload)
        changed = wire.parts({key: change(leaf) for key, leaf in tree.items()}, numbers)
        return framing.packed(head, [changed, *([one] for one in others)])

    return meddle


def foreign(sites: Sites, letter: bytes, answer: bytes) -> bytes:
    """What the site says to a task whose algorithm is not the catalogue's."""
    head, messages = framing.unpacked(sites.first)
    side = head["described"]["sides"][0] | {"algorithm": "os:system"}
    changed = head | {"number": 99, "described": head["described"] | {"sides": [side]}}
    return sites._asked("c", framing.packed(changed, [[one] for one in messages]), {})


MEDDLING: dict[str, tuple[Meddle, str]] = {
    "replayed": (
        lambda sites, letter, answer: sites._asked("c", letter, {}),
        "came before: it is not listened to twice",
    ),
    "truncated letter": (lambda sites, letter, answer: sites._asked("c", letter[:-5], {}), "cut off"),
    "truncated answer": (lambda sites, letter, answer: answer[:-5], "cut off"),
    "oversized letter": (
        lambda sites, letter, answer: sites._asked("c", letter + bytes(LARGEST), {}),
        f"is larger than this site reads \\({LARGEST}\\)",
    ),
    "oversized answer": (lambda sites, letter, answer: answer + bytes(LARGEST), f"has {LARGEST} bytes too many"),
    "oversized upload": (poisoned(lambda leaf: leaf.repeat(2**18, *[1] * (leaf.dim() - 1))), "must have the shape"),
    "another's answer": (lambda sites, letter, answer: sites._asked("a", letter, {}), "is not held here|came before"),
    "NaN": (poisoned(lambda leaf: leaf * float("nan")), "holds NaN or infinity"),
    "wrongly shaped": (poisoned(lambda leaf: leaf.flatten()[:3]), "must have the shape"),
    "foreign code": (foreign, "'os:system' is code outside the catalogue"),
}


@pytest.mark.parametrize(("meddle", "says"), MEDDLING.values(), ids=MEDDLING)
def test_what_somebody_meddles_with_costs_one_visit_and_its_client_is_named(
    sites: Sites, meddle: Meddle, says: str
) -> None:
    """Whatever arrives, the model and the states are those of a run in which the client was away for that round."""
    sites.trip, sites.strike, sites.meddle = 0, {}, meddle
    found, told = outcome(Flower(sites), sites.hello())  # type: ignore[arg-type]
    expected, _ = outcome(Absent(), near(sites))
    assert equal(found.server, expected.server)
    assert [sorted(one["failed"]) for one in told.records] == [[], ["c"], []]
    assert re.search(says, told.records[1]["failed"]["c"]), told.records[1]["failed"]["c"]
