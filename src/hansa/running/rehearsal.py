"""The first rounds of a phase on a few samples of every client: the sizes of its messages do not depend on more."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hansa.channels.secure_sum import SecureSum
from hansa.data.clients import OwnClient, View
from hansa.data.dataset import Array
from hansa.data.federation import Client, Federation, has_samples, labels_of
from hansa.engines.secure import secured
from hansa.engines.serial import Serial
from hansa.engines.session import Reply
from hansa.io.store import MemoryStore
from hansa.orchestrate.planner import Leg, Planner
from hansa.orchestrate.superclients import Grouped
from hansa.payload import Role
from hansa.running.evaluate import ask_start
from hansa.running.experiment import Experiment, Phase
from hansa.running.ledger import Ledger
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import ClientData
from hansa.training.visits import AddsUp
from hansa.training.wrappers import client_side

STEPS = 4  # of the server: the first, one that meets the same clients again, and two that meet others
KEPT = (2, 4)  # samples of every class, of every second client: two numbers tell how operations grow with samples
MOST = 64  # chains of a round that are visited, where one client more or less changes no message
FEWEST = 4  # … and where uploads, which may be large, tell their size without being made
TESTED = 2  # samples that an evaluation is rehearsed on
# A brief rehearsal, for bytes alone: a first step and another, with two or five classes of a client, in short chains.
BRIEF_STEPS, BRIEF_CLASSES, BRIEF_CHAIN = 2, (2, 5), 2


class Seen(NamedTuple):
    """A visit of the rehearsal: in which round, for the how-manieth time, and what it took."""

    client: str
    round: int
    visit: int
    known: int  # clients that the server has met in earlier rounds
    samples: int
    classes: int  # of the samples; none of a real target
    bytes_up: int
    bytes_down: int
    flops: float


@dataclass(frozen=True, eq=False)
class FewSamples:
    """A client that tells its true size, and of which a few samples are read."""

    client: Client
    kept: int  # samples of every class, or of a real target twice as many in all
    evaluates: bool
    most: int | None = None  # classes of which there are samples; None: all

    @functools.cached_property
    def train(self) -> ClientData:
        """The first samples of every class."""
        rows = _some_of_each(self.labels, self.kept, self.most)
        if isinstance(self.client, OwnClient):
            held = self.client.train_rows
            return View(held.samples, held.index[rows]).load()
        data = self.client.train
        return ClientData(data.x[rows], data.y[rows])

    @functools.cached_property
    def labels(self) -> Array:
        """Labels of all its training samples."""
        return labels_of(self.client)

    @property
    def test(self) -> ClientData | None:
        """The first test samples, where this client stands for those that evaluate alike."""
        return _first(self.client.test) if self.evaluates else None

    @property
    def validation(self) -> ClientData | None:
        """The first validation samples, likewise."""
        return _first(self.client.validation) if self.evaluates else None

    @property
    def size(self) -> int:
        """All its training samples."""
        return self.client.size


@dataclass(frozen=True, eq=False)
class Rehearsing:
    """A planner whose second round is the first once more, so that clients are met again, and whose rounds are small.

    Of many chains those are kept whose first clients are of another kind than the ones before, and where asked for only
    the first clients of a chain.
    """

    planner: Planner
    most: int | None
    kind: Callable[[str], Hashable]
    length: int | None = None

    def round(self, number: int) -> list[Leg]:
        """Return the legs of the round that is rehearsed."""
        legs = [leg._replace(chain=leg.chain[: self.length]) for leg in self.planner.round(max(0, number - 1))]
        if self.most is None or len(legs) <= self.most:
            return legs
        seen: dict[Hashable, int] = {}
        first = [seen.setdefault(self.kind(leg.chain[0]), place) == place for place, leg in enumerate(legs)]
        order = sorted(range(len(legs)), key=lambda place: not first[place])
        return [legs[place] for place in sorted(order[: self.most])]

    def merges(self, number: int) -> bool:
        """Tell that the server always steps."""
        return True

    def missing(self, number: int) -> Mapping[str, str]:
        """Return nobody: who is missing costs nothing."""
        return {}


class Notes(Ledger):
    """A ledger that also keeps every visit."""

    def __init__(self, run: PhaseRun) -> None:
        super().__init__(run.names)
        self.run = run
        self.seen: list[Seen] = []
        self._visits = Counter[str]()
        self._known = (0, 0)  # a round, and how many clients the server had met when it began

    def add(self, reply: Reply, setup_bytes: int) -> None:
        """Charge a visit, and keep what it took beside what a first one brings."""
        if self._known[0] != self.run.round:
            self._known = (self.run.round, len(self._visits))
        visit, data = self._visits[reply.client], self.run.federation.clients[reply.client].train
        classes = 0 if data.y.is_floating_point() else len(set(data.y.tolist()))
        sizes = (reply.bytes_up, reply.bytes_down, reply.numbers["flops"])
        again = visit // self.run.algorithm.exchanges
        self.seen.append(Seen(reply.client, self.run.round, again, self._known[1], len(data), classes, *sizes))
        self._visits[reply.client] += 1
        super().add(reply, setup_bytes)

    def evaluated(self) -> Array:
        """Return the bytes of evaluations so far, by client."""
        return self.tree()["bytes_evaluate"].numpy()


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """A rehearsed phase: its visits, the bytes of its evaluations by client, and what its fastest round took."""

    run: PhaseRun
    seen: Sequence[Seen]
    before: Array  # bytes of evaluating what the phase starts from
    evaluated: Sequence[Array]  # … and of the evaluation after each round
    seconds: float
    visits: int
    flops: float


def rehearsals(experiment: Experiment, *, brief: bool = False) -> Iterator[Rehearsed]:
    """Run the first rounds of every phase on few samples, each phase after the one before.

    A brief rehearsal makes as few visits as tell the sizes of messages; its operations and seconds tell nothing.
    """
    phases = tuple(_shortened(phase, brief) for phase in experiment.phases)
    few = replace(experiment, federation=_few(experiment, brief), phases=phases)
    store, run = MemoryStore(), experiment.origin
    for index in range(len(phases)):
        run = PhaseRun(few, index, store, run)
        yield _rehearse(run, index == 0 or phases[index - 1].outside != run.phase.outside, brief)


def _rehearse(run: PhaseRun, starts: bool, brief: bool) -> Rehearsed:
    run.ledger = notes = Notes(run)
    planner = run.planner
    length = BRIEF_CHAIN if brief and not _together(run) else None
    run.planner = Rehearsing(planner, _most(run, brief), functools.partial(_kind, run, brief), length)
    evaluated, seconds, rounds = list[Array](), list[float](), run.phase.rounds
    with Serial().open(run.context) as opened:
        session = secured(opened, run.context)
        ask_start(run, session, None if starts else {})()
        before = notes.evaluated()
        for run.round in range(rounds):
            known = notes.evaluated()
            seconds.append(run_round(run, session)["seconds"])
            evaluated.append(notes.evaluated() - known)
    run.planner = planner
    visits = [[one.flops for one in notes.seen if one.round == number] for number in range(rounds)]
    # The first round warms up, and whatever else the machine does makes a round slower, never faster.
    fastest = min(range(rounds), key=lambda number: seconds[number] / max(len(visits[number]), 1))
    took, flops = seconds[fastest], visits[fastest]
    return Rehearsed(run, notes.seen, before, evaluated, took, len(flops), sum(flops))


def _together(run: PhaseRun) -> bool:
    """Tell whether every client of a round changes the others' messages in that round."""
    return isinstance(run.experiment.channel, SecureSum)


def _most(run: PhaseRun, brief: bool) -> int | None:
    """Return how many chains of a round are enough; None where every client changes the others' messages."""
    if _together(run):
        return None
    if brief:
        return max(FEWEST, len(set(run.task.networks.values())) * len(BRIEF_CLASSES))
    told = isinstance(client_side(run.algorithm), AddsUp) and run.experiment.channel is None
    return None if Role.EACH in run.algorithm.uplink.values() else FEWEST if told else MOST


def _kind(run: PhaseRun, brief: bool, name: str) -> Hashable:
    """Return what a client's messages may depend on: its classes, in a brief rehearsal their number, and network."""
    client = run.federation.clients[name]
    assert isinstance(client, FewSamples)
    return (run.task.networks.get(name), client.most) if brief else classes_of(client)


def classes_of(client: Client) -> tuple[int, ...]:
    """Return the classes that a client of the rehearsal has; none of a real target."""
    assert isinstance(client, FewSamples)
    return () if client.labels.dtype.kind == "f" else tuple(np.unique(client.labels).tolist())


def _shortened(phase: Phase, brief: bool) -> Phase:
    """Return a phase of a few rounds that evaluates after each, and waits for nobody."""
    growing = Role.EACH in phase.algorithm.uplink.values()  # a server that knows single uploads may hand them on
    rounds = (BRIEF_STEPS if brief and not growing else STEPS) * phase.algorithm.exchanges
    if not growing or phase.rounds <= phase.algorithm.exchanges:  # else a short phase, too, is told how messages grow
        rounds = min(phase.rounds, rounds)
    plain = {"attack": None, "clock": None, "deadline": None, "forgetting": False, "deploy": "last"}
    short = replace(phase, rounds=rounds, evaluate_every=1, remember="nothing", minimum=0.0, **plain)  # type: ignore[arg-type]
    if brief and isinstance(short.orchestration, Grouped):  # of clients that nobody has described
        return replace(short, orchestration=replace(short.orchestration, grouping="random", metric=None))
    return short


def evaluating(experiment: Experiment) -> dict[str, str]:
    """Return for every client with samples to evaluate on the first one of the same network and kinds of samples."""
    first: dict[Hashable, str] = {}
    found = {}
    for name, client in experiment.federation.clients.items():
        splits = tuple(has_samples(client, split) for split in ("test", "validation"))
        if any(splits):
            found[name] = first.setdefault((experiment.task.networks.get(name), splits), name)
    return found


def _few(experiment: Experiment, brief: bool) -> Federation:
    federation, speakers = experiment.federation, set(evaluating(experiment).values())
    kept = [(KEPT[0], most) for most in BRIEF_CLASSES] if brief else [(count, None) for count in KEPT]
    clients = {}
    for place, (name, client) in enumerate(federation.clients.items()):
        count, most = kept[place % len(kept)]
        clients[name] = FewSamples(client, count, name in speakers, most)
    return replace(federation, clients=clients, test=_first(federation.test), validation=_first(federation.validation))


def _some_of_each(y: Array, count: int, most: int | None) -> Array:
    """Return the first rows of every class, or of the first classes; of a real target the first ones."""
    if y.dtype.kind == "f":
        return np.arange(min(len(y), 2 * count))
    order = np.argsort(y, kind="stable")
    starts = np.concatenate([[0], np.flatnonzero(np.diff(y[order])) + 1])
    rank = np.arange(len(y)) - np.repeat(starts, np.diff([*starts, len(y)]))
    end = len(y) if most is None or most >= len(starts) else starts[most]
    found: Array = np.sort(order[:end][rank[:end] < count])
    return found


def _first(data: ClientData | None) -> ClientData | None:
    return None if data is None else ClientData(data.x[:TESTED], data.y[:TESTED])
