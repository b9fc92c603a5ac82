"""Letters between a server and sites: one to a site and round, and its answer.  Nothing in them can run code.

A letter is a frame of bytes: a head in JSON, which is read as strictly as a plan, and messages as on any wire.  It
describes its phase to a site that has not been told yet, and brings errands: visits, steps of secure sums, and
evaluations.  Errands name messages by their place, so a broadcast travels once however many clients receive it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hansa.channels.terms import Terms
from hansa.engines import framing
from hansa.engines.errands import Message
from hansa.errors import require
from hansa.io.codec import from_table, to_table
from hansa.io.wire import Buffer

FORMAT = 2  # of letters; a site and a server of different ones do not talk
LARGEST = 2**30  # bytes of a letter, where nobody says otherwise
TEXT = 500  # characters of a sentence from the other side


@dataclass(frozen=True)
class Visit:
    """A visit to one client."""

    client: str
    round: int
    seed: str  # a whole number of 63 bits, as text
    states: tuple[str, ...]  # versions of its states in all phases that the phase depends on; empty where it has none
    version: str  # under which the site keeps its next state
    down: int  # the place of the message that the client receives
    sum: int = -1  # the place of the secure sum that its upload is masked for; -1: of none
    inbox: int = -1  # … and of the message by which it is


@dataclass(frozen=True)
class Masking:
    """A step of a secure sum that is no visit: a client shares secrets before it, or tells shares after it."""

    client: str
    step: Literal["share", "unmask"]
    sum: int
    message: int


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of what some clients deploy, or start from."""

    clients: tuple[str, ...]
    states: tuple[tuple[str, ...], ...]  # as in a visit, for every client
    split: Literal["test", "validation"]
    start: bool
    public: bool  # whether samples of all classes follow what is served
    served: int  # the place of that message


@dataclass(frozen=True)
class Superseded:
    """Versions of a client's state that the run will not ask for again."""

    client: str
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Letter:
    """A letter to a site."""

    lease: int  # microseconds: when the server began; a site listens to the latest alone
    number: int  # among the server's letters, so that none counts twice
    phase: str = ""  # the digest of the phase's description; without one the site only tells who is there
    described: dict[str, Any] | None = None  # the phase, whose leaves are the first messages; None where it is known
    sums: tuple[Terms, ...] = ()
    visits: tuple[Visit, ...] = ()
    maskings: tuple[Masking, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    superseded: tuple[Superseded, ...] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        same = f"The other side writes letters of format {self.format}, and this one reads {FORMAT}"
        require(self.format == FORMAT, f"{same}: install the same version of hansa on both.")


@dataclass(frozen=True)
class Visited:
    """What came of a visit: an upload among the messages, or why there is none."""

    error: str = ""
    state: bool = False  # whether the client keeps a state


@dataclass(frozen=True)
class Masked:
    """What came of a step of a secure sum: a message, or why there is none."""

    error: str = ""


@dataclass(frozen=True)
class Evaluated:
    """What came of an evaluation: the number of its messages, or why there are none."""

    error: str = ""
    parts: int = 0


@dataclass(frozen=True)
class ClientFacts:
    """The facts that a site tells of a client: how many samples, and what one is like."""

    client: str
    size: int
    test_size: int
    validation_size: int
    input_shape: tuple[int, ...]
    integers: bool
    inputs: str = ""  # a digest of what its inputs stand for, where they are a table's
    card: str = ""  # what others seal by in secure sums, and its signature: hexadecimal; empty where it has no key


@dataclass(frozen=True)
class Answer:
    """A site's answer: errands in the order of the letter, with their messages in the same order."""

    refused: str = ""  # why the letter was not listened to
    unknown: bool = False  # whether the phase must be described first
    visits: tuple[Visited, ...] = ()
    maskings: tuple[Masked, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()
    clients: tuple[ClientFacts, ...] = ()
    target: dict[str, Any] | None = None  # what its labels are, beside the clients
    format: int = FORMAT


def write(one: Letter | Answer, messages: list[Message]) -> bytes:
    """Return a letter or an answer as bytes."""
    return framing.packed(to_table(one), messages)


def read_letter(data: Buffer) -> tuple[Letter, list[memoryview]]:
    """Read a letter, or tell what is wrong with it."""
    head, messages = framing.unpacked(data)
    return from_table(Letter, head, "letter"), messages


def read_answer(data: Buffer) -> tuple[Answer, list[memoryview]]:
    """Read an answer, or tell what is wrong with it."""
    head, messages = framing.unpacked(data)
    return from_table(Answer, head, "answer"), messages


def sentence(error: object) -> str:
    """Return what went wrong, as far as the other side needs to know it."""
    return str(error)[:TEXT]
