"""A site's clients as members of secure sums: the site's own key, the others' that it knows, and what it insists on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hansa.channels.terms import Terms
from hansa.errors import require
from hansa.lazy import torch
from hansa.tree import Tree

if TYPE_CHECKING:  # of a library that may be missing
    from hansa.channels.masking import Member

CARD = {"key": 32, "signature": 64}  # bytes of what a client advertises


@dataclass(frozen=True, eq=False)
class SumKeys:
    """The keys of a site for secure sums.

    `registered` are the public keys of all clients, which sites tell each other and never take from a server: whoever
    chose them could be every other member.
    """

    identity: Any  # an Ed25519 private key
    registered: Mapping[str, bytes]
    fewest: int = 3  # clients that a sum must be of, whatever a server says
    only: bool = False  # whether uploads leave in no other way


class SiteMembers:
    """The members among a site's clients.  Their secrets live as long as the process, and no sum needs them longer.

    `since` is when the latest sum began that they had drawn secrets for before: what a site keeps of them.
    """

    def __init__(self, keys: SumKeys | None, since: int = -1):
        self.keys, self._before = keys, since
        self._members: dict[str, Member] = {}

    def forget(self) -> None:
        """Forget the secrets of all sums: another server has begun."""
        self._before, self._members = self.since, {}

    @property
    def since(self) -> int:
        """When the latest sum began that they have drawn secrets for."""
        return max([self._before, *(member.since for member in self._members.values())])

    def card(self, client: str) -> str:
        """Return what a client advertises; empty where the site has no key."""
        if self.keys is None:
            return ""
        card = self._member(client).advertise()
        return b"".join(bytes(card[name].numpy()) for name in CARD).hex()

    def step(self, client: str, step: Literal["share", "unmask"], terms: Terms, message: Tree) -> Tree:
        """Carry out a step of a sum."""
        member = self.of(client, terms)
        return member.share(terms, message) if step == "share" else member.unmask(terms, message)

    def of(self, client: str, terms: Terms) -> Member:
        """Return a client as a member of a sum; refuse sums of fewer than the site insists on."""
        says = f"This site has no key for secure sums, so client '{client}' cannot be in one"
        require(self.keys is not None, f"{says}: see 'hansa site key'.")
        assert self.keys is not None
        says = f"A secure sum that {terms.threshold} of {len(terms.members)} clients open can be one of {terms.least}"
        does = "visit more clients a round, or raise the channel's 'threshold' or 'fewest'"
        require(terms.least >= self.keys.fewest, f"{says}, and this site insists on {self.keys.fewest}: {does}.")
        return self._member(client)

    def _member(self, client: str) -> Member:
        from hansa.channels.masking import Member

        assert self.keys is not None
        if client not in self._members:
            self._members[client] = Member(client, self.keys.identity, self.keys.registered, self._before)
        return self._members[client]


def card_tree(card: str) -> Tree:
    """Return what a client advertised as its message; refuse what is none."""
    good = len(card) == 2 * sum(CARD.values()) and all(letter in "0123456789abcdef" for letter in card)
    require(good, "What a client advertised for secure sums is no key with a signature.")
    data = torch.frombuffer(bytearray.fromhex(card), dtype=torch.uint8)
    return {"key": data[None, : CARD["key"]], "signature": data[None, CARD["key"] :]}


def keys_of_sites(sites: Mapping[str, Mapping[str, object]]) -> dict[str, SumKeys]:
    """Return new keys for some sites at hand, by the clients of each, which all know each other's."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from hansa.channels.sealing import public

    registered: dict[str, bytes] = {}
    found = {site: SumKeys(Ed25519PrivateKey.generate(), registered) for site in sites}
    registered |= {client: public(found[site].identity) for site, clients in sites.items() for client in clients}
    return found
