"""Secure sums: Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (2017).

The server learns the sum of the clients' numbers and nothing of a single one's.  Every two clients agree on a stream of
numbers that one adds and the other subtracts, and each adds a stream of its own.  The keys of all these streams are
shared among the clients, so that a threshold of them can take off what is left in the sum: of a client that answered
its own stream, of one that dropped out those that it agreed on with others; never both, of anybody.

The phases are functions of messages, so that whatever carries messages can carry them::

    advertise  client → its sealing key, signed by its registered key   (once, when it joins a federation)
    share      client ← everybody's sealing keys;   → its masking key, signed, and a sealed share for everybody else
    mask       client ← everybody's masking keys, and the shares sealed for it;   → its numbers under masks, and its
               signature on whose masks these are
    unmask     client ← who answered, and their signatures;   → a share of everybody: of its own stream's key, or of its
               masking key

Neither `unmask` of one sum nor `share` of the next needs an answer to the other, so both ride on one message: two trips
a sum, and one more before the first.

A client tells a share of one kind of each other client and once, and the threshold is more than half of those who were
asked.  So a server that lies about who answered cannot open both kinds, unless as many clients help it as twice the
threshold exceeds those who were asked.  Nor does it help to tell a client that few others share secrets with it, and
then to let these drop out: clients tell shares only where all who answered signed the masks that they know of.  A
server that tells every client of other survivors may open the sum of fewer than the threshold, but of no fewer than
`Terms.least`.  It can spoil a sum, not see into it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hansa.channels.fixed_point import Words, added, negated
from hansa.channels.sealing import (
    KEY,
    NONCE,
    SIGNATURE,
    TAG,
    agreed,
    derived,
    private,
    public,
    require_signed,
    sealed,
    stream,
    unsealed,
)
from hansa.channels.secret_sharing import SHARE, factors, joined, split
from hansa.channels.terms import Terms
from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.tree import Tree

SIGNED = {"key": KEY, "signature": SIGNATURE}  # bytes of the parts of a signed key
SEALED = NONCE + 2 * SHARE + TAG  # bytes of a share of both kinds, sealed


@dataclass
class Secrets:
    """A client's secrets of one sum, between its phases."""

    masking: X25519PrivateKey
    own: bytes  # the key of the stream that it adds by itself
    held: dict[str, bytes] = field(default_factory=dict)  # by client: a share of both kinds
    there: tuple[str, ...] = ()  # whose masks are on the client's numbers; empty before it masked them


class Member:
    """A client's side: it keeps its secrets, and trusts registered keys alone.

    The key that others seal with follows from its registered one, so a client that starts again is the same one.  For
    the same reason it draws secrets for no sum twice: what others sealed for the first one could be opened as if it
    were of the second, and then shares of both kinds would be told.  `since` is when the latest sum began that it has
    drawn secrets for.
    """

    def __init__(self, name: str, identity: Ed25519PrivateKey, registered: Mapping[str, bytes], since: int = -1):
        self.name, self.identity, self.registered, self.since = name, identity, registered, since
        self.sealing = derived(identity, _card(name, b""))
        self._sealing_of: dict[str, bytes] = {}  # others' sealing keys, whose signatures were checked
        self._sums: dict[Terms, Secrets] = {}

    @classmethod
    def new(cls, name: str, registered: Mapping[str, bytes]) -> Member:
        """Return a client with a new key to be registered."""
        return cls(name, Ed25519PrivateKey.generate(), registered)

    @property
    def known_by(self) -> bytes:
        """The public key to be registered."""
        return public(self.identity)

    def advertise(self) -> Tree:
        """Return the key by which others seal what is for this client."""
        own = public(self.sealing)
        return {"key": _bytes([own]), "signature": _bytes([self.identity.sign(_card(self.name, own))])}

    def share(self, terms: Terms, cards: Tree) -> Tree:
        """Draw the secrets of a sum; return the masking key, and shares of both secrets for the other members."""
        require(self.name in terms.members, f"Client '{self.name}' is not a member of the sum '{terms.name}'.")
        says = f"Client '{self.name}' has drawn secrets for the sum '{terms.name}' or a later one already"
        require(terms.began > self.since, f"{says}: it draws none twice.")
        self._take_cards(terms, cards)
        self.since = terms.began
        mine = self._sums[terms] = Secrets(X25519PrivateKey.generate(), os.urandom(KEY))
        parts = [split(secret, terms.threshold, len(terms.members)) for secret in (mine.own, private(mine.masking))]
        shares = {other: own + key for other, own, key in zip(terms.members, *parts, strict=True)}
        mine.held[self.name] = shares.pop(self.name)
        about = {other: terms.bound("share", self.name, other) for other in shares}
        letters = [sealed(self._seal(terms, other), share, about[other]) for other, share in shares.items()]
        key = public(mine.masking)
        signature = self.identity.sign(terms.bound("masking", self.name, key.hex()))
        return {"key": _bytes([key]), "signature": _bytes([signature]), "shares": _bytes(letters)}

    def _take_cards(self, terms: Terms, cards: Tree) -> None:
        """Check the sealing keys of clients that this one did not know."""
        keys, signatures = (_rows(cards, name, width, len(terms.members)) for name, width in SIGNED.items())
        for other, key, signature in zip(terms.members, keys, signatures, strict=True):
            if self._sealing_of.get(other) != key:
                require(other in self.registered, f"No key is registered for client '{other}'.")
                require_signed(self.registered[other], signature, _card(other, key), other)
                self._sealing_of[other] = key

    def _seal(self, terms: Terms, other: str) -> bytes:
        return agreed(self.sealing, self._sealing_of[other], terms.bound("seal"))

    def mask(self, terms: Terms, inbox: Tree, numbers: Words) -> Tree:
        """Return numbers under the masks of all who shared secrets, and a signature on who these are.

        With fewer than the threshold nothing.
        """
        mine = self._secrets(terms)
        require(not mine.there, f"Client '{self.name}' has masked its numbers for the sum '{terms.name}' already.")
        there = _there(terms, inbox)
        enough = self.name in there and len(there) >= terms.threshold
        require(enough, f"Only {len(there)} clients shared secrets, and {terms.threshold} are needed: nothing is sent.")
        others = [other for other in there if other != self.name]
        keys, signatures = (_rows(inbox, name, width, len(others)) for name, width in SIGNED.items())
        shares = _rows(inbox, "shares", SEALED, len(others))
        total = _add(numbers, _stream(mine.own, numbers))
        for other, key, signed, share in zip(others, keys, signatures, shares, strict=True):
            require_signed(self.registered[other], signed, terms.bound("masking", other, key.hex()), other)
            about = terms.bound("share", other, self.name)
            mine.held[other] = unsealed(self._seal(terms, other), share, about, other)
            pair = _stream(agreed(mine.masking, key, terms.bound("mask")), numbers)
            total = _add(total, pair if _adds(terms, self.name, other) else _negated(pair))
        mine.there = tuple(there)
        masked = {name: torch.from_numpy(words.view(np.int64)) for name, words in total.items()}
        return masked | {"signature": _bytes([self.identity.sign(terms.bound("masked", self.name, *there))])}

    def unmask(self, terms: Terms, answered: Tree) -> Tree:
        """Return a share of everybody who shared secrets, and forget the sum.

        Nothing with too few answers, without this client's own, or where one that answered masked by others than this
        client did: a server that told it so might take off all masks of that one alone.
        """
        mine, names = self._secrets(terms), _there(terms, answered)
        says = f"Only {len(names)} clients answered, and {terms.threshold} are needed"
        require(len(names) >= terms.threshold, f"{says}: nothing of the sum '{terms.name}' is opened.")
        known = self.name in names and set(names) <= set(mine.there)
        says = f"Client '{self.name}' opens no sum but of its own numbers and of those who shared secrets with it"
        require(known, f"{says}: nothing of the sum '{terms.name}' is opened.")
        for other, signed in zip(names, _rows(answered, "signatures", SIGNATURE, len(names)), strict=True):
            require_signed(self.registered[other], signed, terms.bound("masked", other, *mine.there), other)
        del self._sums[terms]
        held = [(other, mine.held[other]) for other in terms.members if other in mine.held]
        return {"shares": _bytes([both[:SHARE] if other in names else both[SHARE:] for other, both in held])}

    def _secrets(self, terms: Terms) -> Secrets:
        says = f"Client '{self.name}' has no secrets of the sum '{terms.name}'"
        require(terms in self._sums, f"{says}: it told them already, or never had any.")
        return self._sums[terms]


class Counter:
    """The server's side: carries keys and shares, adds numbers under masks, and takes the masks off their sum."""

    def __init__(self, terms: Terms):
        self.terms = terms
        self.offers: Mapping[str, Tree] = {}
        self.signed: dict[str, Tensor] = {}  # by client that answered: its signature on whose masks it added
        self.total: Words = {}

    @property
    def answered(self) -> Collection[str]:
        """Those whose numbers are in the sum."""
        return self.signed.keys()

    def check_offer(self, offer: Tree) -> None:
        """Refuse an offer that the others could not read."""
        for name, width in SIGNED.items():
            _rows(offer, name, width)
        _rows(offer, "shares", SEALED, len(self.terms.members) - 1)

    def check_told(self, told: Tree) -> None:
        """Refuse what cannot be shares of everybody who shared secrets."""
        _rows(told, "shares", SHARE, len(self.offers))

    def cards(self, advertised: Mapping[str, Tree]) -> Tree:
        """Return everybody's sealing keys, for everybody."""
        return _stacked([advertised[name] for name in self.terms.members], ("key", "signature"))

    def inboxes(self, offers: Mapping[str, Tree]) -> dict[str, Tree]:
        """Return for everybody who shared secrets the others' masking keys, and the shares sealed for it."""
        self.offers, order = offers, self.terms.members
        says = f"Only {len(offers)} of {len(order)} clients shared secrets, and {self.terms.threshold} are needed"
        require(len(offers) >= self.terms.threshold, f"{says} for a secure sum.")
        there, found = self._marked(offers), {}
        for name in offers:
            others = [other for other in order if other in offers and other != name]
            places = [order.index(name) - (order.index(name) > order.index(other)) for other in others]
            shares = [offers[other]["shares"][place] for other, place in zip(others, places, strict=True)]
            keys = _stacked([offers[other] for other in others], ("key", "signature"))
            found[name] = keys | {"shares": torch.stack(shares), "there": there}
        return found

    def _marked(self, names: Collection[str]) -> Tensor:
        return torch.tensor([name in names for name in self.terms.members], dtype=torch.uint8)

    def check_masked(self, masked: Tree) -> Tree:
        """Return the words of a client's numbers, once there is a signature beside them."""
        _rows(masked, "signature", SIGNATURE)
        return {key: leaf for key, leaf in masked.items() if key != "signature"}

    def add(self, name: str, masked: Tree) -> None:
        """Add a client's numbers."""
        words = {key: leaf.numpy().view(np.uint64) for key, leaf in self.check_masked(masked).items()}
        self.total = _add(self.total, words) if self.total else words
        self.signed[name] = masked["signature"]

    def survivors(self) -> Tree:
        """Return who answered and their signatures, for everybody who did.

        Where these are too few, the sum stays closed for good.
        """
        answered, needed = len(self.answered), self.terms.threshold
        says = f"Only {answered} of {len(self.terms.members)} clients answered, and {needed} are needed"
        require(answered >= needed, f"{says} to open their sum: nothing was opened.")
        signed = torch.cat([self.signed[name] for name in self.terms.members if name in self.signed])
        return {"there": self._marked(self.answered), "signatures": signed}

    def opened(self, told: Mapping[str, Tree]) -> Words:
        """Return the sum of the numbers of all who answered, from the shares that a threshold of them told."""
        order, needed = self.terms.members, self.terms.threshold
        says = f"Only {len(told)} clients told their shares, and {needed} are needed to open their sum"
        require(len(told) >= needed, f"{says}: nothing was opened.")
        tellers = [name for name in order if name in told][:needed]
        places = [order.index(name) + 1 for name in tellers]
        rows = {name: _rows(told[name], "shares", SHARE, len(self.offers)) for name in tellers}
        counts = factors(places)
        total = self.total
        for row, name in enumerate(one for one in order if one in self.offers):
            shares = {place: rows[teller][row] for place, teller in zip(places, tellers, strict=True)}
            total = self._without(total, name, joined(shares, counts))
        return total

    def _without(self, total: Words, name: str, secret: bytes) -> Words:
        """Take off what a client's secret makes: its own stream, or where it dropped out those it agreed on."""
        if name in self.answered:
            return _add(total, _negated(_stream(secret, total)))
        masking = X25519PrivateKey.from_private_bytes(secret)
        fits = public(masking) == _rows(self.offers[name], "key", KEY)[0]
        require(fits, f"The shares of the key of '{name}', which dropped out, do not give its key: the sum is lost.")
        for other in self.answered:
            key = agreed(masking, _rows(self.offers[other], "key", KEY)[0], self.terms.bound("mask"))
            pair = _stream(key, total)
            total = _add(total, _negated(pair) if _adds(self.terms, other, name) else pair)
        return total


def _card(name: str, key: bytes) -> bytes:
    return json.dumps(["sealing", name, key.hex()]).encode()


def _adds(terms: Terms, name: str, other: str) -> bool:
    """Tell which of two members adds their stream; the other one subtracts it."""
    return terms.members.index(name) < terms.members.index(other)


def _add(left: Words, right: Words) -> Words:
    return {name: added(words, right[name]) for name, words in left.items()}


def _negated(words: Words) -> Words:
    return {name: negated(one) for name, one in words.items()}


def _stream(key: bytes, like: Words) -> Words:
    """Return numbers that look uniform, in the places of some others."""
    numbers = np.frombuffer(stream(key, sum(words.nbytes for words in like.values())), dtype=np.uint64)
    parts = np.split(numbers, np.cumsum([words.size for words in like.values()])[:-1])
    return {name: part.reshape(like[name].shape) for name, part in zip(like, parts, strict=True)}


def _bytes(rows: Sequence[bytes]) -> Tensor:
    """Return rows of bytes as a leaf of a message."""
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).reshape(len(rows), -1)


def _rows(tree: Tree, key: str, width: int, count: int = 1) -> list[bytes]:
    """Return the rows of bytes that a leaf of a message holds."""
    leaf = tree.get(key)
    good = leaf is not None and leaf.dtype == torch.uint8 and leaf.shape == (count, width)
    require(good, f"A message of a secure sum must have {count} rows of {width} bytes under '{key}'.")
    assert leaf is not None
    return [bytes(row) for row in leaf.numpy()]


def _there(terms: Terms, tree: Tree) -> list[str]:
    """Return the members that a message marks."""
    marks = tree.get("there")
    good = marks is not None and marks.shape == (len(terms.members),)
    require(good, "A message of a secure sum must mark its members under 'there'.")
    assert marks is not None
    return [name for name, mark in zip(terms.members, marks.tolist(), strict=True) if mark]


def _stacked(trees: Sequence[Tree], keys: Sequence[str]) -> Tree:
    return {key: torch.cat([tree[key] for tree in trees]) for key in keys}
