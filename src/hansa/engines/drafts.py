"""Letters to sites while they are written, and their answers as they are opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hansa.channels.terms import Terms
from hansa.engines import letters
from hansa.engines.errands import Message, request_message
from hansa.engines.lanes import Ahead
from hansa.engines.letters import Answer, Evaluation, sentence
from hansa.engines.members import SumStep
from hansa.engines.session import EvaluationRequest
from hansa.errors import HansaError, require
from hansa.io import wire
from hansa.tree import Tree


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


class Later(NamedTuple):
    """A visit of a round to come, which needs nothing that the server does not have yet."""

    round: int
    client: str
    seed: int


@dataclass
class Draft:
    """A letter while it is written: errands, and the messages that they name by their place."""

    visits: list[Ahead] = field(default_factory=list)
    later: list[Later] = field(default_factory=list)  # visits of rounds to come, after these
    inboxes: Mapping[str, Tree] = field(default_factory=dict)  # by client, where uploads are masked for the sum of
    terms: Terms | None = None  # … these terms
    maskings: list[tuple[SumStep, str]] = field(default_factory=list)  # and the client
    evaluations: list[tuple[Asked, list[int]]] = field(default_factory=list)  # and the places of clients in a request
    number: int = 0  # of the letter

    @property
    def count(self) -> int:
        """The visits of the letter."""
        return len(self.visits) + len(self.later)

    def sums(self) -> list[Terms]:
        """Return the terms of all secure sums that the letter is about."""
        visited = [] if self.terms is None else [self.terms]
        return list(dict.fromkeys([*visited, *(step.terms for step, _ in self.maskings)]))


def evaluations_of(draft: Draft, enclosed: Enclosed) -> Iterator[Evaluation]:
    """Yield the evaluations of a letter, and enclose what they need."""
    for asked, chosen in draft.evaluations:
        head, sent = request_message(asked.request)
        clients = tuple(asked.request.clients[place] for place in chosen)
        states = tuple(asked.states[client] for client in clients)
        same = {key: head[key] for key in ("split", "start", "public")}
        yield Evaluation(clients, states, served=len(enclosed.messages), **same)
        enclosed.messages.extend(sent)


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
        asked = (draft.count, len(draft.maskings), len(draft.evaluations))
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


class Answered(NamedTuple):
    """A visit of a letter that was answered, by its place there."""

    site: str
    draft: Draft
    opened: Opened
    place: int
