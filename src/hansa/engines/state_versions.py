"""Versions of states that stay at their sites: which ones the run counts on, and which ones sites may forget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hansa.engines.client_side import AT_SITE, ClientSide
from hansa.engines.letters import Superseded
from hansa.engines.session import States
from hansa.errors import require
from hansa.tree import Tree

NO_STATE = ""


@dataclass
class StateVersions:
    """The versions of a phase, and of those before it that a client's start depends on."""

    sides: Sequence[ClientSide]
    homes: Mapping[str, str]  # by client: its site
    replaced: dict[str, list[str]] = field(default_factory=dict)  # by client: versions before the one of the run
    superseded: dict[str, list[str]] = field(default_factory=dict)  # … of which no site needs to keep any

    def of(self, client: str) -> tuple[str, ...]:
        """Return the versions of a client's states that the run counts on, in all phases that this one depends on."""
        return tuple(_version(side.stored(client)) for side in self.sides)

    def replace(self, client: str) -> None:
        """Take note that the client's latest state is about to be followed by another."""
        if (before := self.of(client)[-1]) != NO_STATE:
            self.replaced.setdefault(client, []).append(before)

    def settled(self, states: States) -> None:
        """Let sites forget the versions that the run, as it is committed, does not have any more."""
        for client, versions in self.replaced.items():
            kept = {_version(tree) for tree in states(client)}
            gone = [version for version in versions if version not in kept]
            self.superseded.setdefault(client, []).extend(gone)
            self.replaced[client] = [version for version in versions if version in kept]

    def gone(self, site: str) -> tuple[Superseded, ...]:
        """Return what a site may forget, which it is told once; one that does not hear it keeps a few more versions."""
        clients = [client for client in self.superseded if self.homes.get(client) == site]
        found = {client: tuple(self.superseded.pop(client)) for client in clients}
        return tuple(Superseded(client, versions) for client, versions in found.items() if versions)


def _version(state: Tree | None) -> str:
    """Return the version of a state that a run's store has a reference to; empty where there is none."""
    if state is None:
        return NO_STATE
    require(
        AT_SITE in state, "A state of this run is in its own store and at no site: go on with the engine it began on."
    )
    return "-".join(str(number) for number in state[AT_SITE].tolist())
