"""The way to sites by a Flower federation that `hansa deploy` started: a socket of its relay, and who is where."""

from __future__ import annotations

import json
import socket
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hansa.data.clients import FarClient
from hansa.data.federation import Federation
from hansa.data.targets import target_from_table
from hansa.engines import framing, letters
from hansa.engines.carriers import Answers, Carrier
from hansa.engines.letters import Answer, ClientFacts, Letter
from hansa.engines.session import PhaseContext
from hansa.errors import HansaError, HansaWarning, require
from hansa.io.codec import from_table, to_table
from hansa.io.files import write_whole

SOCKET, KNOWN = "link.sock", "sites.json"  # in a federation's folder
GREETING = 60.0  # seconds in which a site must say who is there


@dataclass(frozen=True)
class SuperLink:
    """Sends letters by Flower, through the federation whose `folder` `hansa deploy init` wrote."""

    folder: str = "federation"

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[Carrier]:
        """Open nothing: every trip has a connection of its own, so the relay may be started anew in between."""
        known = self._known()
        homes = {one.client: site for site, answer in known.items() for one in answer.clients}
        cards = {one.client: one.card for answer in known.values() for one in answer.clients if one.card}
        yield Relay(Path(self.folder) / SOCKET, homes, cards)

    def federation(self) -> Federation:
        """Ask all connected sites who is there; of one that is away now, what it said before counts."""
        relay, known = Relay(Path(self.folder) / SOCKET), self._known()
        hello = letters.write(Letter(time.time_ns() // 1000, 1), [])
        for site, data in relay.ask(dict.fromkeys(relay.sites(), hello), GREETING):
            try:
                known[site] = _hello(data)
            except HansaError as error:
                warnings.warn(f"Site '{site}' did not say who is there: {error}", HansaWarning, stacklevel=2)
        require(bool(known), "No site is connected: see 'hansa deploy status', and 'hansa deploy doctor' at a site.")
        found = federation_of(known)  # what does not fit together is not remembered
        write_whole(Path(self.folder) / KNOWN, json.dumps({site: to_table(one) for site, one in known.items()}))
        return found

    def _known(self) -> dict[str, Answer]:
        path = Path(self.folder) / KNOWN
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return {site: from_table(Answer, told, f"{KNOWN}.{site}") for site, told in found.items()}


def _hello(data: bytes | str) -> Answer:
    """Return what a site tells of itself, or refuse what no site could be like."""
    require(isinstance(data, bytes), str(data))
    assert isinstance(data, bytes)
    answer, _ = letters.read_answer(data)
    require(not answer.refused, answer.refused)
    target_from_table(answer.target or {})
    for one in answer.clients:
        sizes = (one.test_size, one.validation_size)
        good = one.size > 0 and min(sizes) >= 0 and min(one.input_shape, default=1) > 0
        require(good, f"It tells of client '{one.client}' what no client is like: {one}."[:300])
    return answer


def federation_of(known: Mapping[str, Answer]) -> Federation:
    """Return what a server knows of the clients of some sites; refuse sites that do not fit together."""
    homes: dict[str, tuple[str, ClientFacts]] = {}
    (first, told), *others = known.items()
    for site, answer in others:
        says = f"Sites '{first}' and '{site}' do not predict the same: {told.target} and {answer.target}"
        require(answer.target == told.target, f"{says}. Agree on 'classes' in the site files."[:400])
    for site, answer in known.items():
        for facts in answer.clients:
            twice = f"Sites '{homes[facts.client][0] if facts.client in homes else ''}' and '{site}' both have a client"
            require(facts.client not in homes, f"{twice} '{facts.client}': give one another name in its site file.")
            homes[facts.client] = site, facts
    _warn_of_inputs(homes.values())
    kinds = {facts.integers for _, facts in homes.values()}
    require(len(kinds) < 2, "Some sites hold token numbers and some real inputs: no model reads both.")
    found = {name: _client(homes[name][1]) for name in sorted(homes)}
    require(bool(found), "The connected sites have no clients.")
    return Federation(found, target_from_table(told.target or {}))


def _warn_of_inputs(homes: Iterable[tuple[str, ClientFacts]]) -> None:
    """Tell of sites whose tables have as many columns, and other ones, which a model of all would mix up."""
    seen: dict[tuple[int, ...], tuple[str, ClientFacts]] = {}
    for site, facts in homes:
        other, first = seen.setdefault(facts.input_shape, (site, facts)) if facts.inputs else (site, facts)
        if facts.inputs != first.inputs:
            says = f"Sites '{other}' and '{site}' have as many columns, and other ones or in another order"
            does = "agree on 'inputs' in their files, unless clients keep what reads their columns, as FLIC's do"
            warnings.warn(f"{says}: {does}.", HansaWarning, stacklevel=3)
            return


def _client(facts: ClientFacts) -> FarClient:
    return FarClient(facts.size, facts.test_size, facts.validation_size, facts.input_shape, facts.integers)


@dataclass(frozen=True)
class Relay:
    """The socket of a running relay."""

    path: Path
    homes: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, str] = field(default_factory=dict)

    def sites(self) -> list[str]:
        """Return the names of the sites whose nodes are connected."""
        with self._connection(GREETING) as stream:
            framing.write(stream, {"kind": "nodes"}, [])
            names: list[str] = framing.read(stream)[0]["nodes"]
        return names

    def ask(self, letters: Mapping[str, bytes], patience: float) -> Answers:
        """Hand letters over, and yield answers as they come."""
        head = {"kind": "ask", "sites": list(letters), "patience": patience}
        with self._connection(patience + GREETING) as stream:
            framing.write(stream, head, [[letter] for letter in letters.values()])
            while not (answer := framing.read(stream))[0].get("end"):
                told, messages = answer
                yield told["site"], bytes(messages[0]) if messages else str(told["error"])

    @contextmanager
    def _connection(self, patience: float) -> Iterator[Any]:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(patience)
            try:
                link.connect(str(self.path))
                with link.makefile("rwb") as stream:
                    yield stream
            except (OSError, EOFError) as error:
                says = f"The federation in '{self.path.parent}' cannot be reached ({error})"
                raise HansaError(f"{says}: start it with 'hansa deploy up {self.path.parent}'.") from error
