"""Clients at sites elsewhere: the server's side, which speaks to them in letters and never sees a sample or a state."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hansa.channels.terms import Terms
from hansa.data.federation import samples_of
from hansa.engines import framing, letters
from hansa.engines.carriers import Carrier
from hansa.engines.client_side import AT_SITE
from hansa.engines.errands import Message, phase_message, request_message, sides_of
from hansa.engines.lanes import Ahead, visits_before
from hansa.engines.letters import Answer, Evaluation, Letter, Masking, Superseded, Visit, sentence
from hansa.engines.members import SumStep
from hansa.engines.session import (
    NUMBERS,
    ClientFailed,
    Counted,
    EvaluationRequest,
    Lane,
    PhaseContext,
    Reply,
    RoundServer,
    States,
    client_errors,
    in_time,
    receive,
)
from hansa.engines.site_members import card_tree
from hansa.errors import HansaError, HansaWarning, require
from hansa.io import wire
from hansa.metrics.suite import OBSERVED, is_sum, rows_of, stack_rows
from hansa.payload import Update
from hansa.task import Task
from hansa.tree import Tree

NO_STATE = ""
OF_CLASSES = ("local_class_accuracy", "outside_class_accuracy")  # columns beside the metrics, where public samples are


@dataclass(eq=False)
class Asked:
    """Rows of metrics that were asked for: the request, the states it counts on, and what came of it."""

    request: EvaluationRequest
    states: dict[str, tuple[str, ...]]
    sent: bool = False
    rows: list[Tree] = field(default_factory=list)


class Enclosed:
    """The messages of a letter, each of them once."""

    def __init__(self, first: Sequence[Message]):
        self.messages = list(first)
        self._places: dict[int, tuple[int, Tree]] = {}  # and the message, so that no other one takes its address

    def place(self, tree: Tree) -> int:
        """Enclose a message, and return its place."""
        if id(tree) not in self._places:
            self._places[id(tree)] = len(self.messages), tree
            self.messages.append(wire.parts(tree))
        return self._places[id(tree)][0]


@dataclass
class Draft:
    """A letter while it is written: errands, and the messages that they name by their place."""

    visits: list[Ahead] = field(default_factory=list)
    inboxes: Mapping[str, Tree] = field(default_factory=dict)  # by client, where uploads are masked for the sum of
    terms: Terms | None = None  # … these terms
    maskings: list[tuple[SumStep, str]] = field(default_factory=list)  # and the client
    evaluations: list[tuple[Asked, list[int]]] = field(default_factory=list)  # and the places of clients in a request
    number: int = 0  # of the letter

    def sums(self) -> list[Terms]:
        """Return the terms of all secure sums that the letter is about."""
        visited = [] if self.terms is None else [self.terms]
        return list(dict.fromkeys([*visited, *(step.terms for step, _ in self.maskings)]))


def _evaluations(draft: Draft, enclosed: Enclosed) -> Iterator[Evaluation]:
    for asked, chosen in draft.evaluations:
        head, sent = request_message(asked.request)
        clients = tuple(asked.request.clients[place] for place in chosen)
        states = tuple(asked.states[client] for client in clients)
        same = {key: head[key] for key in ("split", "start", "public")}
        yield Evaluation(clients, states, served=len(enclosed.messages), **same)
        enclosed.messages.extend(sent)


@dataclass
class FarSession(Counted):
    """The sites at work on one phase.

    The lease is when this session began, so a site that has heard from a later one does not listen to this one.
    """

    context: PhaseContext = field(kw_only=True)
    carrier: Carrier = field(kw_only=True)
    patience: float = field(kw_only=True)
    number: int = 0  # of letters so far
    trips: int = 0  # to the sites and back, so far
    told: set[str] = field(default_factory=set)  # sites that know the phase
    waiting: list[Asked] = field(default_factory=list)  # evaluations that travel with the next letters
    replaced: dict[str, list[str]] = field(default_factory=dict)  # by client: versions before the one of the run
    superseded: dict[str, list[str]] = field(default_factory=dict)  # … of which no site needs to keep any

    def __post_init__(self) -> None:
        self.lease, self.homes = time.time_ns() // 1000, self.carrier.homes
        self.sides = sides_of(self.context.side)
        head, self.leaves = phase_message(self.sides, self.context.suite)
        self.described: dict[str, Any] = head
        self.phase = hashlib.blake2b(framing.packed(head, self.leaves), digest_size=16).hexdigest()

    @property
    def device(self) -> torch.device:
        """This machine's processors."""
        return torch.device("cpu")

    @property
    def rides(self) -> bool:
        """Yes: a trip to a site takes longer than what is done there."""
        return True

    # ----------------------------------------------------------------------------------------------------- the verbs

    def round(self, task: Task, lanes: Sequence[Lane], server: RoundServer) -> Iterator[tuple[int | None, Update]]:
        """Yield the lanes' uploads in their order; clients of one chain are visited one trip after the other."""
        order, visits = deque(Ahead(lane, lane.down) for lane in lanes), visits_before(lanes)
        trips = self.trips
        while order:
            drafts: dict[str, Draft] = {}
            for state in order:
                if state.up(visits):
                    drafts.setdefault(self._home(state.client), Draft()).visits.append(state)
            for site, draft, answer in self._trip(task, drafts, server):
                for state, found in zip(draft.visits, self._replies(site, draft, answer, task, server), strict=True):
                    if found is not None:
                        state.take(self.context.algorithm.uplink, found)
                    visits[state.client] += 1
                    state.place += 1
            while order and order[0].ended:
                ended = order.popleft()
                if ended.total is not None:
                    yield ended.lane.line, ended.total
        server.note({"trips": self.trips - trips})

    # ------------------------------------------------------------------------- secure sums, whose members are at sites

    @property
    def seconds(self) -> None:
        """Nobody knows: what sites would tell of their processors need not be true."""
        return None

    def cards(self, clients: Sequence[str]) -> Mapping[str, Tree]:
        """Return what clients advertised when their sites said who is there."""
        for client in clients:
            says = f"The site of client '{client}' has no key for secure sums"
            require(bool(self.carrier.cards.get(client)), f"{says}: see 'hansa site key', or leave out the channel.")
        return {client: card_tree(self.carrier.cards[client]) for client in clients}

    def tell(self, task: Task, steps: Sequence[SumStep]) -> list[dict[str, Tree | ClientFailed]]:
        """Bring the messages of some steps to their clients by one trip; return their answers, by step."""
        drafts: dict[str, Draft] = {}
        for step in steps:
            for client in step.clients:
                drafts.setdefault(self._home(client), Draft()).maskings.append((step, client))
        found: list[dict[str, Tree | ClientFailed]] = [{} for _ in steps]
        for site, draft, opened in self._trip(task, drafts, None):
            for place, (step, client) in enumerate(draft.maskings):
                found[steps.index(step)][client] = _told(site, opened, place, client)
        return found

    def mask(
        self, task: Task, lanes: Sequence[Lane], terms: Terms, inboxes: Mapping[str, Tree], server: RoundServer
    ) -> Iterator[tuple[str, Tree]]:
        """Visit clients, who mask their uploads for a sum; yield these as they come."""
        drafts: dict[str, Draft] = {}
        for lane in lanes:
            draft = drafts.setdefault(self._home(lane.chain[0]), Draft(inboxes=inboxes, terms=terms))
            draft.visits.append(Ahead(lane, lane.down))
        for site, draft, opened in self._trip(task, drafts, server):
            for place, state in enumerate(draft.visits):
                try:
                    with client_errors(state.client):
                        reply = self._reply(site, draft, opened, place)
                    in_time(self.context, reply)
                except ClientFailed as error:
                    server.refuse(state.client, error)
                    continue
                self._done(reply, server)
                yield state.client, reply.upload

    # ------------------------------------------------------------------------------------------------------- the rest

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        """Ask for rows, which come with the next round's answers, or by themselves where they are awaited before."""
        asked = Asked(request, {client: self._versions(client) for client in request.clients})
        self.waiting.append(asked)
        return self._awaited(asked)

    def _awaited(self, asked: Asked) -> Iterator[Tree]:
        if not asked.sent:
            for _ in self._trip(self.context.task, {}, None):
                pass
        require(bool(asked.rows), "No site answered when it was asked to evaluate: see that the sites are connected.")
        yield from asked.rows

    def settled(self, states: States) -> None:
        """Let sites forget the versions of states that the run, as it is committed, does not have any more."""
        for client, versions in self.replaced.items():
            kept = {_version(tree) for tree in states(client)}
            gone = [version for version in versions if version not in kept]
            self.superseded.setdefault(client, []).extend(gone)
            self.replaced[client] = [version for version in versions if version in kept]

    # ------------------------------------------------------------------------------------------------------- letters

    def _home(self, client: str) -> str:
        require(client in self.homes, f"No connected site holds client '{client}': see that its site is connected.")
        return self.homes[client]

    def _versions(self, client: str) -> tuple[str, ...]:
        """Return the versions of a client's states that the run counts on, in all phases that this one depends on."""
        return tuple(_version(side.stored(client)) for side in self.sides)

    def _trip(
        self, task: Task, drafts: dict[str, Draft], server: RoundServer | None
    ) -> Iterator[tuple[str, Draft, Opened]]:
        """Send one letter to every site with errands, and yield what each answers; evaluations are taken in here."""
        for asked in self.waiting:
            asked.sent = True
            for place, client in enumerate(asked.request.clients):
                draft = drafts.setdefault(self._home(client), Draft())
                if not draft.evaluations or draft.evaluations[-1][0] is not asked:
                    draft.evaluations.append((asked, []))
                draft.evaluations[-1][1].append(place)
        self.waiting, left = [], dict(drafts)
        while left:  # once, and once more to sites that must be told of the phase first
            self.trips += 1
            sent = {site: self._letter(site, draft, task, server) for site, draft in left.items()}
            left = {}
            for site, opened in self._asked(sent, drafts):
                if opened.answer.unknown and site in self.told:
                    self.told.discard(site)
                    left[site] = drafts[site]
                    continue
                if not opened.why:
                    self.told.add(site)
                self._take_rows(site, drafts[site], opened)
                yield site, drafts[site], opened

    def _asked(self, sent: Mapping[str, bytes], drafts: Mapping[str, Draft]) -> Iterator[tuple[str, Opened]]:
        """Yield answers as they come; sites from which none comes in time have an answer that says so."""
        deadline, most = self.context.deadline, max(1, *(len(drafts[site].visits) for site in sent))
        patience = self.patience if deadline is None else min(self.patience, deadline * most)
        began, silent = time.monotonic(), set(sent)
        for site, data in self.carrier.ask(sent, patience):
            if site in silent:
                silent.discard(site)
                yield site, open_answer(data, drafts[site], time.monotonic() - began)
        for site in sorted(silent):
            yield site, open_answer(f"it did not answer within {patience:g} s", drafts[site], patience)

    def _letter(self, site: str, draft: Draft, task: Task, server: RoundServer | None) -> bytes:
        """Write a letter: the phase where the site does not know it, then errands."""
        self.number += 1
        draft.number = self.number
        known = site in self.told
        enclosed, sums = Enclosed([] if known else list(self.leaves)), draft.sums()
        letter = Letter(
            self.lease,
            self.number,
            self.phase,
            task.round,
            None if known else self.described,
            tuple(sums),
            tuple(self._visits(draft, sums, enclosed, server)),
            tuple(
                Masking(client, step.step, sums.index(step.terms), enclosed.place(step.message))
                for step, client in draft.maskings
            ),
            tuple(_evaluations(draft, enclosed)),
            self._gone(site),
        )
        return letters.write(letter, enclosed.messages)

    def _visits(
        self, draft: Draft, sums: Sequence[Terms], enclosed: Enclosed, server: RoundServer | None
    ) -> Iterator[Visit]:
        for number, state in enumerate(draft.visits):
            assert server is not None
            seed, version = str(server.seed(state.client, state.visit)), f"{self.lease}-{self.number}-{number}"
            visit = Visit(state.client, seed, self._versions(state.client), version, enclosed.place(state.down))
            if draft.terms is not None:
                inbox = enclosed.place(draft.inboxes[state.client])
                visit = replace(visit, sum=sums.index(draft.terms), inbox=inbox)
            yield visit

    def _gone(self, site: str) -> tuple[Superseded, ...]:
        """Return what a site may forget, which it is told once; one that does not hear it keeps a few more versions."""
        clients = [client for client in self.superseded if self.homes.get(client) == site]
        found = {client: tuple(self.superseded.pop(client)) for client in clients}
        return tuple(Superseded(client, versions) for client, versions in found.items() if versions)

    # ------------------------------------------------------------------------------------------------------- answers

    def _replies(
        self, site: str, draft: Draft, opened: Opened, task: Task, server: RoundServer
    ) -> Iterator[Update | None]:
        """Yield what every visit of a letter gave, as the server adds it up; None where it cannot be used."""
        for place, state in enumerate(draft.visits):
            try:
                with client_errors(state.client):
                    reply = self._reply(site, draft, opened, place)
                up = receive(self.context, task, state.down, reply)
            except ClientFailed as error:
                server.refuse(state.client, error)
                yield None
                continue
            self._done(reply, server)
            yield up

    def _done(self, reply: Reply, server: RoundServer) -> None:
        """Hand on a reply that counts; the version of the client's state before it may be forgotten some time."""
        if reply.state and (before := self._versions(reply.client)[-1]) != NO_STATE:
            self.replaced.setdefault(reply.client, []).append(before)
        self.count("flower")
        server.take(reply)

    def _reply(self, site: str, draft: Draft, opened: Opened, place: int) -> Reply:
        """Return one visit's reply; what it took is this side's measurement, its trip included."""
        require(not opened.why, f"Its site '{site}' cannot be used: {opened.why}")
        told, state = opened.answer.visits[place], draft.visits[place]
        require(not told.error, _words(state.client, told.error))
        message = opened.uploads[place]
        upload, numbers = wire.unpack(message)
        numbers = numbers if draft.terms is None else dict.fromkeys(NUMBERS, 0.0)  # which the sum knows, of all
        lacking = [name for name in NUMBERS if name not in numbers]
        require(not lacking, f"Its upload has no {' and no '.join(lacking)}.")
        own = self.context.task.received(state.client, state.down)
        kept = {AT_SITE: torch.tensor([self.lease, draft.number, place])} if told.state else {}
        bytes_up, seconds = len(message) if upload else 0, opened.seconds / len(draft.visits)
        return Reply(state.client, upload, numbers, kept, wire.cost(own), bytes_up, seconds)

    def _take_rows(self, site: str, draft: Draft, opened: Opened) -> None:
        """Take in the rows of a letter's evaluations; a warning tells whom a site did not evaluate."""
        for number, (asked, places) in enumerate(draft.evaluations):
            why = opened.why or opened.answer.evaluations[number].error
            try:
                require(not why, why)
                found = [self._rows(asked.request, places, part) for part in opened.rows[number]]
                stack_rows([*asked.rows[:1], *found])  # what one site observes must fit what the others do
            except HansaError as error:
                names = ", ".join(f"'{asked.request.clients[place]}'" for place in places)
                warnings.warn(f"Site '{site}' did not evaluate {names}: {error}", HansaWarning, stacklevel=2)
            else:
                asked.rows.extend(found)

    def _rows(self, request: EvaluationRequest, places: Sequence[int], message: memoryview) -> Tree:
        """Return rows with the clients' places in the request; refuse rows that no client could have made."""
        rows = wire.unpack(message)[0]
        clients = rows.get("client", torch.empty(0))
        numbers = clients.tolist() if clients.dtype == torch.int64 and clients.dim() == 1 else []
        known = bool(numbers) and set(numbers) <= set(range(len(places))) and len(set(numbers)) == len(numbers)
        require(known, "Its rows are about clients it was not asked for.")
        layout = {**self._layout(request), "client": clients[:1]}
        plain = {key: leaf for key, leaf in rows.items() if not key.startswith(OBSERVED)}
        require(plain.keys() == layout.keys(), f"Its rows must have the columns {sorted(layout)}. Got {sorted(plain)}.")
        for key, leaf in rows.items():
            like = layout.get(key, leaf)
            shape = like.shape if is_sum(key) else (len(clients), *like.shape[1:])
            good = leaf.shape == shape and leaf.dtype == like.dtype
            says = f"Its column '{key}' must have the shape {list(shape)} of {like.dtype}"
            require(good, f"{says}. Got {list(leaf.shape)} of {leaf.dtype}.")
        named = [request.clients[places[row]] for row in numbers]
        held = [samples_of(self.context.side.clients[name], request.split) for name in named]
        fair = rows["samples"].tolist() == held
        require(fair, f"Its rows are of {rows['samples'].tolist()} samples, and its clients have {held}.")
        return rows | {"client": torch.tensor([places[row] for row in numbers])}

    def _layout(self, request: EvaluationRequest) -> Tree:
        """Return the row of a made-up client of two samples, which has every column."""
        task, kind = self.context.task, torch.get_default_dtype()
        y = torch.zeros(1, 2, task.outputs) if task.real else torch.zeros(1, 2, dtype=torch.long)
        rows = rows_of(
            request.suite, torch.zeros(1, 2, task.outputs, dtype=kind), y, torch.ones(1, 2, dtype=torch.bool)
        )
        classes = OF_CLASSES if request.public is not None else ()
        return {**rows, **{name: torch.zeros(1, dtype=torch.float64) for name in classes}}


@dataclass(frozen=True)
class Opened:
    """A site's answer as this side uses it: why there is none, or uploads and rows, sorted by errand."""

    why: str
    answer: Answer
    seconds: float
    uploads: Mapping[int, memoryview] = field(default_factory=dict)  # by the place of a visit
    maskings: Mapping[int, memoryview] = field(default_factory=dict)  # by the place of a step
    rows: Sequence[Sequence[memoryview]] = ()  # of every evaluation


def open_answer(data: bytes | str, draft: Draft, seconds: float) -> Opened:
    """Read what a site answered; whatever is wrong with it is why the site cannot be used."""
    if isinstance(data, str):
        return Opened(data, Answer(), seconds)
    try:
        most = f"its answer of {len(data)} bytes is larger than a server reads ({letters.LARGEST})"
        require(len(data) <= letters.LARGEST, most)
        answer, messages = letters.read_answer(data)
        require(not answer.refused, f"it refused the letter: {answer.refused}")
        if answer.unknown:
            return Opened("it does not know the phase", answer, seconds)
        asked = (len(draft.visits), len(draft.maskings), len(draft.evaluations))
        fits = (len(answer.visits), len(answer.maskings), len(answer.evaluations)) == asked
        says = f"it was asked for {asked[0]} visits, {asked[1]} steps of sums and {asked[2]} evaluations"
        require(fits, f"{says}, and answered something else")
        visits = [place for place, one in enumerate(answer.visits) if not one.error]
        steps = [place for place, one in enumerate(answer.maskings) if not one.error]
        parts = [one.parts for one in answer.evaluations]
        count = len(visits) + len(steps) + sum(parts)
        whole = min(parts, default=0) >= 0 and count == len(messages)
        require(whole, f"its answer should hold {count} messages, and holds {len(messages)}")
    except HansaError as error:
        return Opened(sentence(error), Answer(), seconds)
    left = iter(messages)
    uploads, told = ({place: next(left) for place in places} for places in (visits, steps))
    return Opened("", answer, seconds, uploads, told, [[next(left) for _ in range(count)] for count in parts])


def _words(client: str, error: str) -> str:
    """Return why a site could not use a client, whom this side names by itself."""
    return error.removeprefix(f"Client '{client}': ")


def _told(site: str, opened: Opened, place: int, client: str) -> Tree | ClientFailed:
    """Return a client's message of a step, or why there is none."""
    try:
        with client_errors(client):
            require(not opened.why, f"Its site '{site}' cannot be used: {opened.why}")
            require(not (why := opened.answer.maskings[place].error), _words(client, why))
            return wire.unpack(opened.maskings[place])[0]
    except ClientFailed as error:
        return error


def _version(state: Tree | None) -> str:
    """Return the version of a state that a run's store has a reference to; empty where there is none."""
    if state is None:
        return NO_STATE
    require(
        AT_SITE in state, "A state of this run is in its own store and at no site: go on with the engine it began on."
    )
    return "-".join(str(number) for number in state[AT_SITE].tolist())
