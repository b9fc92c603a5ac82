"""Clients at sites elsewhere: the server's side, which speaks to them in letters and never sees a sample or a state."""

from __future__ import annotations

import hashlib
import itertools
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hansa.channels.terms import Terms
from hansa.engines import framing, letters
from hansa.engines.carriers import Carrier
from hansa.engines.client_side import AT_SITE
from hansa.engines.drafts import Answered, Asked, Draft, Enclosed, Later, Opened, evaluations_of, open_answer
from hansa.engines.errands import phase_message, sides_of
from hansa.engines.far_rows import checked_rows
from hansa.engines.lanes import Ahead, visits_before
from hansa.engines.letters import Letter, Masking, Visit
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
from hansa.engines.state_versions import StateVersions
from hansa.errors import HansaError, HansaWarning, require
from hansa.io import wire
from hansa.lazy import torch
from hansa.metrics.suite import stack_rows
from hansa.payload import Update
from hansa.task import Task
from hansa.tree import Tree


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
    early: dict[tuple[int, str], Answered] = field(default_factory=dict)  # by round and client: visits made ahead

    def __post_init__(self) -> None:
        self.lease, self.homes = time.time_ns() // 1000, self.carrier.homes
        sides = sides_of(self.context.side)
        self.versions = StateVersions(sides, self.homes)
        head, self.leaves = phase_message(sides, self.context.suite)
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
            ready = [state for state in order if state.up(visits)]
            for state, answered in self._answers(task, ready, server):
                client, found = state.client, self._taken(state, answered, task, server)
                if found is not None:
                    state.take(self.context.algorithm.uplink, found)
                visits[client] += 1
                state.place += 1
            while order and order[0].ended:
                ended = order.popleft()
                if ended.total is not None:
                    yield ended.lane.line, ended.total
        server.note({"trips": self.trips - trips})

    def _answers(self, task: Task, ready: Sequence[Ahead], server: RoundServer) -> Iterator[tuple[Ahead, Answered]]:
        """Yield what came of visits: of those that were made ahead at once, of the others by a trip."""
        drafts: dict[str, Draft] = {}
        for state in ready:
            if (early := self.early.pop((task.round, state.client), None)) is not None:
                yield state, early
            else:
                drafts.setdefault(self._home(state.client), Draft()).visits.append(state)
        if not drafts:
            return
        self._look_ahead(task, drafts, ready, server)
        for site, draft, opened in self._trip(task, drafts, server):
            self._keep_early(site, draft, opened)
            yield from ((state, Answered(site, draft, opened, place)) for place, state in enumerate(draft.visits))

    def _look_ahead(self, task: Task, drafts: dict[str, Draft], ready: Sequence[Ahead], server: RoundServer) -> None:
        """Let letters bring the visits of rounds to come too, up to the next evaluation, where clients share nothing.

        A phase in which nothing travels is one errand: what a visit starts from is what the one before left there.
        """
        alone = all(len(state.lane.chain) == 1 and not state.lane.down for state in ready)
        if not alone or self.context.check.layout(task, {}) != {}:
            return
        for coming in itertools.takewhile(lambda one: not one.waits, server.ahead()):
            for client, seed in zip(coming.clients, coming.seeds, strict=True):
                if (coming.round, client) not in self.early:
                    drafts.setdefault(self._home(client), Draft()).later.append(Later(coming.round, client, seed))

    def _keep_early(self, site: str, draft: Draft, opened: Opened) -> None:
        """Keep what came of visits to come, of clients none of whose visits before failed."""
        if opened.why:
            return
        lost = {state.client for place, state in enumerate(draft.visits) if opened.answer.visits[place].error}
        for place, (round, client, _) in enumerate(draft.later, len(draft.visits)):
            if client in lost or opened.answer.visits[place].error:
                lost.add(client)
            else:
                self.early[round, client] = Answered(site, draft, opened, place)

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
                        reply = self._reply(state, Answered(site, draft, opened, place))
                    in_time(self.context, reply)
                except ClientFailed as error:
                    server.refuse(state.client, error)
                    continue
                self._done(reply, server)
                yield state.client, reply.upload

    # ------------------------------------------------------------------------------------------------------- the rest

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        """Ask for rows, which come with the next round's answers, or by themselves where they are awaited before."""
        asked = Asked(request, {client: self.versions.of(client) for client in request.clients})
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
        self.versions.settled(states)

    # ------------------------------------------------------------------------------------------------------- letters

    def _home(self, client: str) -> str:
        require(client in self.homes, f"No connected site holds client '{client}': see that its site is connected.")
        return self.homes[client]

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
        deadline, most = self.context.deadline, max(1, *(drafts[site].count for site in sent))
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
            None if known else self.described,
            tuple(sums),
            tuple(self._visits(draft, task.round, sums, enclosed, server)),
            tuple(
                Masking(client, step.step, sums.index(step.terms), enclosed.place(step.message))
                for step, client in draft.maskings
            ),
            tuple(evaluations_of(draft, enclosed)),
            self.versions.gone(site),
        )
        return letters.write(letter, enclosed.messages)

    def _visits(
        self, draft: Draft, round: int, sums: Sequence[Terms], enclosed: Enclosed, server: RoundServer | None
    ) -> Iterator[Visit]:
        """Yield the visits of a letter; a client's later one goes on from the state that the one before leaves."""
        assert server is not None or not draft.visits
        now = [Later(round, one.client, server.seed(one.client, one.visit)) for one in draft.visits if server]
        nothing: Tree = {}
        downs, latest = [*(one.down for one in draft.visits), *(nothing for _ in draft.later)], dict[str, str]()
        for place, ((number, client, seed), down) in enumerate(zip((*now, *draft.later), downs, strict=True)):
            before = self.versions.of(client)
            states = (*before[:-1], latest.get(client, before[-1]))
            version = latest[client] = f"{self.lease}-{self.number}-{place}"
            visit = Visit(client, number, str(seed), states, version, enclosed.place(down))
            if draft.terms is not None:
                inbox = enclosed.place(draft.inboxes[client])
                visit = replace(visit, sum=sums.index(draft.terms), inbox=inbox)
            yield visit

    # ------------------------------------------------------------------------------------------------------- answers

    def _taken(self, state: Ahead, answered: Answered, task: Task, server: RoundServer) -> Update | None:
        """Return what a visit gave, as the server adds it up; None where it cannot be used."""
        try:
            with client_errors(state.client):
                reply = self._reply(state, answered)
            up = receive(self.context, task, state.down, reply)
        except ClientFailed as error:
            server.refuse(state.client, error)
            for key in [key for key in self.early if key[1] == state.client]:
                del self.early[key]  # a visit made ahead, which went on from this one
            return None
        self._done(reply, server)
        return up

    def _done(self, reply: Reply, server: RoundServer) -> None:
        """Hand on a reply that counts; the version of the client's state before it may be forgotten some time."""
        if reply.state:
            self.versions.replace(reply.client)
        self.count("flower")
        server.take(reply)

    def _reply(self, state: Ahead, answered: Answered) -> Reply:
        """Return one visit's reply; what it took is this side's measurement, its trip included."""
        site, draft, opened, place = answered
        require(not opened.why, f"Its site '{site}' cannot be used: {opened.why}")
        told = opened.answer.visits[place]
        require(not told.error, _words(state.client, told.error))
        message = opened.uploads[place]
        upload, numbers = wire.unpack(message)
        numbers = numbers if draft.terms is None else dict.fromkeys(NUMBERS, 0.0)  # which the sum knows, of all
        lacking = [name for name in NUMBERS if name not in numbers]
        require(not lacking, f"Its upload has no {' and no '.join(lacking)}.")
        own = self.context.task.received(state.client, state.down)
        kept = {AT_SITE: torch.tensor([self.lease, draft.number, place])} if told.state else {}
        bytes_up, seconds = len(message) if upload else 0, opened.seconds / draft.count
        return Reply(state.client, upload, numbers, kept, wire.cost(own), bytes_up, seconds)

    def _take_rows(self, site: str, draft: Draft, opened: Opened) -> None:
        """Take in the rows of a letter's evaluations; a warning tells whom a site did not evaluate."""
        for number, (asked, places) in enumerate(draft.evaluations):
            why = letters.sentence(opened.why or opened.answer.evaluations[number].error)
            try:
                require(not why, why)
                found = [checked_rows(self.context, asked.request, places, part) for part in opened.rows[number]]
                stack_rows([*asked.rows[:1], *found])  # what one site observes must fit what the others do
            except HansaError as error:
                names = ", ".join(f"'{asked.request.clients[place]}'" for place in places)
                warnings.warn(f"Site '{site}' did not evaluate {names}: {error}", HansaWarning, stacklevel=2)
            else:
                asked.rows.extend(found)


def _words(client: str, error: str) -> str:
    """Return why a site could not use a client, whom this side names by itself; no more than a site may tell."""
    return letters.sentence(error.removeprefix(f"Client '{client}': "))


def _told(site: str, opened: Opened, place: int, client: str) -> Tree | ClientFailed:
    """Return a client's message of a step, or why there is none."""
    try:
        with client_errors(client):
            require(not opened.why, f"Its site '{site}' cannot be used: {opened.why}")
            require(not (why := opened.answer.maskings[place].error), _words(client, why))
            return wire.unpack(opened.maskings[place])[0]
    except ClientFailed as error:
        return error
