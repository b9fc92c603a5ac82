"""Carriers bring letters to sites, and know nothing of what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hansa.engines.session import PhaseContext
from hansa.engines.site import Site
from hansa.engines.site_members import keys_of_sites
from hansa.errors import require
from hansa.io.store import DiskStore
from hansa.training.carried import Summed

Answers = Iterator[tuple[str, bytes | str]]  # by site: its answer, or in words why there is none


class Carrier(Protocol):
    """An open way to sites."""

    @property
    def homes(self) -> Mapping[str, str]:
        """The site of every client."""
        ...

    @property
    def cards(self) -> Mapping[str, str]:
        """What clients advertise for secure sums, of those whose sites have keys."""
        ...

    def ask(self, letters: Mapping[str, bytes], patience: float) -> Answers:
        """Bring letters to sites, by name, and yield every site's answer as it comes; none is waited for longer."""
        ...


class Carriage(Protocol):
    """A piece that opens a way to sites."""

    def open(self, context: PhaseContext) -> AbstractContextManager[Carrier]:
        """Get ready for a phase."""
        ...


@dataclass(frozen=True)
class Loopback:
    """Divides the clients over `sites` in this process, which see letters and nothing else.

    A rehearsal of a deployment with data that is here.  Each site keeps its clients' states in a folder of its own
    below `folder`.
    """

    folder: str = "sites"
    sites: int = 3

    def __post_init__(self) -> None:
        require(self.sites >= 1, f"The 'sites' of a carrier must be a whole number ≥ 1. Got {self.sites}.")

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[Carrier]:
        """Open the sites' folders; they are closed with the phase."""
        clients = list(context.side.clients.items())
        parts = {f"site-{place}": dict(clients[place :: self.sites]) for place in range(min(self.sites, len(clients)))}
        keys = keys_of_sites(parts) if isinstance(context.algorithm, Summed) else {}
        with ExitStack() as stack:
            found = {}
            for name, part in parts.items():
                path = Path(self.folder) / name
                path.mkdir(parents=True, exist_ok=True)
                store = stack.enter_context(closing(DiskStore(path / "state.sqlite")))
                found[name] = Site(part, store, keys=keys.get(name))
            yield Sites(found)


@dataclass(frozen=True, eq=False)
class Sites:
    """Some sites at hand."""

    sites: Mapping[str, Site]

    @property
    def homes(self) -> Mapping[str, str]:
        """The site of every client."""
        return {client: name for name, site in self.sites.items() for client in site.clients}

    @property
    def cards(self) -> Mapping[str, str]:
        """What clients advertise for secure sums."""
        return {client: site.members.card(client) for site in self.sites.values() for client in site.clients}

    def ask(self, letters: Mapping[str, bytes], patience: float) -> Answers:
        """Let one site after the other answer."""
        for name, letter in letters.items():
            yield name, self.sites[name].answer(letter)
