"""A site: holds its clients' data and states, and answers the letters of one server."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hansa.channels.terms import Terms
from hansa.data.federation import Client, facts_of
from hansa.data.targets import Classes, Target, target_to_table
from hansa.engines import letters
from hansa.engines.errands import Errands, Message, strangers_errands
from hansa.engines.letters import (
    Answer,
    ClientFacts,
    Evaluated,
    Evaluation,
    Letter,
    Masked,
    Masking,
    Visit,
    Visited,
    sentence,
)
from hansa.engines.session import ClientFailed, Reply, client_errors
from hansa.engines.site_members import SiteMembers, SumKeys
from hansa.errors import HansaError, require
from hansa.io import wire
from hansa.io.store import Store
from hansa.io.trust import NOBODY, Trust
from hansa.tree import Tree

NO_LABELS = Classes(())  # of a site that nobody asks
PATHS = re.compile(r"'[^']*[/\\][^']*'")  # in a sentence, where values stand in quotes
AHEAD = 86400.0  # seconds by which a server's clock may be ahead of a site's


def _aside(told: str) -> None:
    print(f"hansa: {told}", file=sys.stderr, flush=True)


class Site:
    """Answers letters.  Whatever these say, it runs nothing but what it was started to trust, and sends no samples.

    A client's states are kept by version, because the server alone knows which one its last commit counts on.  They
    and the place of the last letter become permanent before an answer leaves, so a site may be killed at any moment.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        store: Store,
        target: Target = NO_LABELS,
        *,
        inputs: Mapping[str, str] | None = None,
        keys: SumKeys | None = None,
        trust: Trust = NOBODY,
        largest: int = letters.LARGEST,
        tell: Callable[[str], None] = _aside,
    ):
        self.clients, self.store, self.target, self.inputs = clients, store, target, inputs or {}
        self.members = SiteMembers(keys, self._note().get("sum", -1))
        self.trust, self.largest, self.tell = trust, largest, tell
        self.phase = ""
        self.errands: Errands | None = None  # of that phase
        self.versions: dict[tuple[int, str], str] = {}  # by phase and client: the states that an errand is about

    def answer(self, letter: wire.Buffer) -> bytes:
        """Return the answer to a letter; a letter that cannot be listened to is refused with a sentence."""
        try:
            most = f"A letter of {len(letter)} bytes is larger than this site reads ({self.largest})"
            require(len(letter) <= self.largest, f"{most}: raise 'largest' in its site file.")
            read, messages = letters.read_letter(letter)
            if not read.phase:  # whoever only asks who is there takes no run away from its server
                return letters.write(self._hello(), [])
            self._admit(read)
            answer = letters.write(*self._answer(read, [wire.unpack(message)[0] for message in messages]))
            self.store.commit({"lease": read.lease, "number": read.number, "sum": self.members.since})
            return answer
        except Exception as error:  # a defect here must not look like silence there
            return letters.write(Answer(refused=self._told(error)), [])

    def _told(self, error: Exception) -> str:
        """Return what the server may know of an error, and tell this side the whole.

        Our own sentences are about letters and pieces, but for paths.  Any other error may quote a sample.
        """
        met = (error.__cause__ if isinstance(error, ClientFailed) else None) or error
        known = isinstance(met, (HansaError, ClientFailed))
        self.tell(f"A letter was not carried out: {error if met is not error or known else repr(error)}")
        if known:
            return sentence(PATHS.sub("'…'", str(error)))
        return f"{type(met).__name__}, of which the site's own log has the rest."

    def _note(self) -> dict[str, Any]:
        """Return the place of the last letter, and when the latest secure sum began that clients drew secrets for."""
        return self.store.progress() or {"lease": 0, "number": 0}

    def _admit(self, letter: Letter) -> None:
        """Refuse the letters of servers that were followed by another, and those that came before."""
        note = self._note()
        late = letter.lease / 1e6 - time.time()
        require(late < AHEAD, f"The server's clock is {late:.0f} s ahead of this site's: set one of both.")
        newer = letter.lease >= note["lease"]
        require(newer, "Another server has begun since with this site, so this one is not listened to any more.")
        again = letter.lease == note["lease"] and letter.number <= note["number"]
        require(not again, f"Letter {letter.number} came before: it is not listened to twice.")
        if letter.lease > note["lease"]:
            self.members.forget()

    def _answer(self, letter: Letter, trees: Sequence[Tree]) -> tuple[Answer, list[Message]]:
        if letter.described is not None:
            self._describe(letter, trees)
        if self.errands is None or self.phase != letter.phase:
            return Answer(unknown=True), []
        for one in letter.superseded:
            for version in one.versions:
                self.store.drop(_name(version), one.client)
        done = [self._visit(self.errands, visit, letter, trees) for visit in letter.visits]
        steps = [self._mask(one, letter, trees) for one in letter.maskings]
        rows = [self._evaluate(self.errands, one, trees) for one in letter.evaluations]
        messages = [message for _, found in (*done, *steps, *rows) for message in found]
        visits, maskings = tuple(one for one, _ in done), tuple(one for one, _ in steps)
        return Answer(visits=visits, maskings=maskings, evaluations=tuple(one for one, _ in rows)), messages

    def _hello(self) -> Answer:
        """Tell who is here: names, numbers of samples and what one is like; no sample and no label."""
        told = {name: (*facts_of(one), self.inputs.get(name, "")) for name, one in self.clients.items()}
        clients = tuple(ClientFacts(name, *facts, self.members.card(name)) for name, facts in told.items())
        return Answer(clients=clients, target=target_to_table(self.target))

    def _describe(self, letter: Letter, trees: Sequence[Tree]) -> None:
        head = letter.described or {}
        count = len(head["sides"]) if isinstance(head.get("sides"), list) else 0
        self.errands = strangers_errands(head, trees[:count], self.clients, self._state, self.trust)
        self.phase = letter.phase

    def _state(self, depth: int, client: str) -> Tree | None:
        """Return the version of a client's state that the errand at hand names."""
        version = self.versions.get((depth, client), "")
        if not version:
            return None
        found = self.store.get(_name(version), client)
        require(found is not None, f"The state of client '{client}' that the server asks for is not here any more.")
        return found

    def _counting_on(self, errands: Errands, states: Mapping[str, Sequence[str]]) -> None:
        """Look at these versions of some clients' states from now on."""
        for client, versions in states.items():
            good = len(versions) == errands.depth + 1
            require(good, f"A letter must name {errands.depth + 1} states of client '{client}'. Got {len(versions)}.")
        self.versions = {(depth, name): one for name, versions in states.items() for depth, one in enumerate(versions)}

    def _visit(
        self, errands: Errands, visit: Visit, letter: Letter, trees: Sequence[Tree]
    ) -> tuple[Visited, list[Message]]:
        try:
            with client_errors(visit.client):
                self._counting_on(errands, {visit.client: visit.states})
                require(visit.seed.isdecimal() and len(visit.seed) < 20, "A visit's seed must be a whole number.")
                self._require_way(errands, visit)
                self._require_sum(errands)
                down = _message(trees, visit.down)
                reply = errands.visit(visit.client, int(visit.seed), visit.round, down)
                upload = self._upload(errands, visit, letter, trees, reply)
        except ClientFailed as error:
            return Visited(self._told(error)), []
        if reply.state:
            self.store.put(_name(visit.version), reply.state, visit.client)
        return Visited(state=bool(reply.state)), [upload]

    def _upload(self, errands: Errands, visit: Visit, letter: Letter, trees: Sequence[Tree], reply: Reply) -> Message:
        """Return what leaves the site of a visit: its upload, or in a secure sum words under masks."""
        if not errands.summed:
            return wire.parts(reply.upload, reply.numbers)
        terms = _terms(letter, visit.sum)
        member, inbox, counted = self.members.of(visit.client, terms), _message(trees, visit.inbox), errands.task.opened
        says = (
            f"A client's share of the noise is for sums that {counted} open, and {terms.threshold} could open this one"
        )
        require(terms.threshold >= counted, f"{says}: nothing is sent.")
        words = errands.words(reply, _message(trees, visit.down), len(terms.members))
        return wire.parts(member.mask(terms, inbox, words))

    def _require_way(self, errands: Errands, visit: Visit) -> None:
        """Refuse to send what a secure sum hides in another way."""
        same = errands.summed == (visit.sum >= 0)
        require(
            same, "A phase's uploads all go through a secure sum, or none does: the server asks for something else."
        )

    def _require_sum(self, errands: Errands) -> None:
        """Refuse phases whose uploads go through no secure sum, where the site insists on it, evaluations as well.

        What clients tell for exhibits is of their training samples, like an upload.
        """
        keys, sends = self.members.keys, bool(errands.side.algorithm.uplink)
        open_ = errands.summed or not sends or keys is None or not keys.only
        require(open_, "This site sends uploads through secure sums alone: set channel = 'secure-sum' in the plan.")

    def _mask(self, asked: Masking, letter: Letter, trees: Sequence[Tree]) -> tuple[Masked, list[Message]]:
        try:
            with client_errors(asked.client):
                require(asked.client in self.clients, "It is not held here.")
                told = _message(trees, asked.message)
                found = self.members.step(asked.client, asked.step, _terms(letter, asked.sum), told)
        except ClientFailed as error:
            return Masked(self._told(error)), []
        return Masked(), [wire.parts(found)]

    def _evaluate(self, errands: Errands, asked: Evaluation, trees: Sequence[Tree]) -> tuple[Evaluated, list[Message]]:
        try:
            require(bool(asked.clients), "An evaluation must name clients.")
            self._require_sum(errands)
            self._counting_on(errands, dict(zip(asked.clients, asked.states, strict=True)))
            head = {"clients": asked.clients, "split": asked.split, "start": asked.start, "public": asked.public}
            sent = [_message(trees, asked.served + place) for place in range(1 + asked.public)]
            rows = errands.evaluate(head, sent)
        except (ClientFailed, ValueError) as error:
            return Evaluated(self._told(error)), []
        return Evaluated(parts=len(rows)), [wire.parts(part) for part in rows]


def _terms(letter: Letter, place: int) -> Terms:
    good = 0 <= place < len(letter.sums)
    require(good, f"A letter about {len(letter.sums)} secure sums has none at place {place}.")
    return letter.sums[place]


def _message(trees: Sequence[Tree], place: int) -> Tree:
    require(0 <= place < len(trees), f"A letter of {len(trees)} messages has none at place {place}.")
    return trees[place]


def _name(version: str) -> str:
    return f"state/{version}"
