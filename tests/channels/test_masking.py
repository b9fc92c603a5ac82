"""Secure sums as a protocol of messages: what the server opens, what it cannot, and what clients refuse."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hansa.channels.fixed_point import FixedPoint, Words, added
from hansa.channels.masking import Counter, Member, Terms
from hansa.channels.secret_sharing import factors, joined
from hansa.errors import HansaError
from hansa.io import wire
from hansa.payload import Role, Update
from hansa.tree import Tree

UPLINK = {"model": Role.STEP, "ridge": Role.SUM}
LAYOUT = {
    "model.w": (torch.Size([30, 20]), torch.float32),
    "ridge.gram": (torch.Size([6, 6]), torch.float64),
    "ridge.counts": (torch.Size([4]), torch.float64),
}


def upload(seed: int) -> Update:
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(9, 6, generator=rng, dtype=torch.float64)
    sums = {
        "model.w": torch.randn(30, 20, generator=rng),
        "ridge.gram": z.T @ z,
        "ridge.counts": torch.ones(4).double(),
    }
    return Update(sums, 9.0 + seed)


def sent(message: Tree) -> Tree:
    """A message as it arrives."""
    return wire.unpack(wire.pack(message))[0]


class Federation:
    """Members and a server, and whatever travels between them."""

    def __init__(self, count: int, threshold: int):
        registered: dict[str, bytes] = {}
        self.members = {name: Member.new(name, registered) for name in (f"m{place}" for place in range(count))}
        registered.update({name: one.known_by for name, one in self.members.items()})
        self.cards = {name: sent(one.advertise()) for name, one in self.members.items()}
        self.fixed = FixedPoint(LAYOUT, UPLINK, count)
        self.numbers = {name: self.fixed.encode(upload(place)) for place, name in enumerate(self.members)}
        self.terms = Terms("run/0/0", tuple(self.members), threshold, began=1)
        self.counter = Counter(self.terms)
        self.masked: dict[str, Tree] = {}

    def shared(self, silent: Collection[str] = ()) -> dict[str, Tree]:
        cards = sent(self.counter.cards(self.cards))
        offers = {name: sent(one.share(self.terms, cards)) for name, one in self.members.items() if name not in silent}
        return {name: sent(inbox) for name, inbox in self.counter.inboxes(offers).items()}

    def mask(self, inboxes: dict[str, Tree], lost: Collection[str] = ()) -> None:
        """Everybody masks its numbers; what some send is lost."""
        for name, inbox in inboxes.items():
            self.masked[name] = sent(self.members[name].mask(self.terms, inbox, self.numbers[name]))
            if name not in lost:
                self.counter.add(name, self.masked[name])

    def opened(self, silent: Collection[str] = ()) -> Words:
        answered = sent(self.counter.survivors())
        tellers = [name for name in self.members if name in self.counter.answered and name not in silent]
        return self.counter.opened({name: sent(self.members[name].unmask(self.terms, answered)) for name in tellers})

    def total(self, names: Collection[str]) -> Words:
        """What the sum of some members' numbers must be, to the last bit."""
        found: Words = {}
        for name in names:
            one = self.numbers[name]
            found = {key: added(words, one[key]) for key, words in found.items()} if found else one
        return found


def same(left: Words, right: Words) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(words, right[key]) for key, words in left.items())


def test_the_server_opens_the_sum() -> None:
    one = Federation(5, 4)
    one.mask(one.shared())
    opened = one.opened()
    assert same(opened, one.total(one.members))
    sums, weight = one.fixed.decode(opened)
    expected = sum((upload(place) for place in range(1, 5)), upload(0))
    assert weight == expected.weight == 5 * 9 + 10
    assert torch.allclose(sums["ridge.gram"], expected.sums["ridge.gram"], rtol=1e-15, atol=0)
    assert torch.equal(sums["ridge.gram"], sums["ridge.gram"].T)
    exact = sum(upload(place).sums["model.w"].double() for place in range(5))  # which float32 would round
    assert torch.allclose(sums["model.w"].double(), torch.as_tensor(exact), rtol=2.0**-24, atol=5 * 2.0**-25)


@pytest.mark.parametrize(
    ("silent", "lost", "mute"),
    [((), ("m1", "m4", "m9"), ()), (("m0",), ("m3", "m7"), ("m2",)), (("m2", "m5", "m9"), (), ())],
    ids=["after masking", "in every phase", "before masking"],
)
def test_three_of_ten_may_drop_out_and_the_sum_is_exactly_the_others(
    silent: Sequence[str], lost: Sequence[str], mute: Sequence[str]
) -> None:
    one = Federation(10, 6)
    one.mask(one.shared(silent), lost)
    left = [name for name in one.members if name not in (*silent, *lost)]
    assert len(left) == 7 and same(one.opened(mute), one.total(left))


def chi_square(data: bytes) -> float:
    """Pearson's statistic of bytes against all 256 alike: 255 is expected, with a deviation of 22.6."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return float(((counts - len(data) / 256) ** 2).sum() / (len(data) / 256))


def words_of(masked: Tree) -> list[torch.Tensor]:
    return [leaf for key, leaf in masked.items() if key != "signature"]


def test_a_single_payload_looks_uniform() -> None:
    one = Federation(4, 3)
    one.mask(one.shared())
    plain = {name: b"".join(words.tobytes() for words in numbers.values()) for name, numbers in one.numbers.items()}
    for name, masked in one.masked.items():
        seen = b"".join(leaf.numpy().tobytes() for leaf in words_of(masked))
        assert chi_square(seen) < 255 + 6 * 22.6 < chi_square(plain[name]) / 10
    first, again = (b"".join(leaf.numpy().tobytes() for leaf in words_of(one.masked[name])) for name in ("m0", "m1"))
    assert chi_square(bytes(a ^ b for a, b in zip(first, again, strict=True))) < 255 + 6 * 22.6


def test_even_the_sum_looks_uniform_until_clients_unmask_it() -> None:
    one = Federation(4, 3)
    one.mask(one.shared())
    assert chi_square(b"".join(words.tobytes() for words in one.counter.total.values())) < 255 + 6 * 22.6


def test_below_the_threshold_nothing_is_opened() -> None:
    one = Federation(6, 5)
    one.mask(one.shared(), lost=("m0", "m1"))
    with pytest.raises(HansaError, match=r"Only 4 of 6 clients answered, and 5 are needed to open their sum: nothing"):
        one.counter.survivors()
    forced = marked(one, ("m2", "m3", "m4", "m5"))
    for name in ("m2", "m5"):
        with pytest.raises(HansaError, match=r"Only 4 clients answered, and 5 are needed: nothing of the sum"):
            one.members[name].unmask(one.terms, forced)


def marked(one: Federation, names: Collection[str]) -> Tree:
    return {"there": torch.tensor([name in names for name in one.members], dtype=torch.uint8)}


def hiding(one: Federation, inbox: Tree, name: str, there: Collection[str]) -> Tree:
    """What a client hears of those who shared secrets, from a server that hides the others."""
    kept = [place for place, other in enumerate(other for other in one.members if other != name) if other in there]
    return {key: leaf[kept] for key, leaf in inbox.items() if key != "there"} | marked(one, there)


def told(one: Federation, teller: str, answered: Collection[str]) -> list[bytes]:
    """The shares that a client tells a server which tells it that these answered."""
    signed = torch.cat([one.masked[name]["signature"] for name in one.members if name in answered])
    found = one.members[teller].unmask(one.terms, marked(one, answered) | {"signatures": signed})
    return [bytes(row) for row in found["shares"].numpy()]


def opened_of(one: Federation, some: Sequence[str], shares: dict[str, dict[str, list[bytes]]]) -> Words:
    """The sum of some clients' numbers, by shares of everybody's secrets that different clients told."""
    order = [*one.members]
    server = Counter(one.terms)
    server.offers = one.counter.offers
    for name in some:
        server.add(name, one.masked[name])
    total = server.total
    for row, name in enumerate(order):
        by_place = {order.index(teller) + 1: rows[row] for teller, rows in shares[name].items()}
        total = server._without(total, name, joined(by_place, factors([*by_place])))
    return total


def test_a_server_that_hides_clients_from_another_opens_nothing_of_it() -> None:
    """It would need the masks of two clients alone, and have them drop out: nobody tells it shares of these."""
    one = Federation(5, 3)
    inboxes = one.shared()
    inboxes["m0"] = hiding(one, inboxes["m0"], "m0", ("m0", "m3", "m4"))
    one.mask(inboxes)
    left = ("m0", "m1", "m2")
    with pytest.raises(HansaError, match="The keys of 'm0' are not signed"):
        told(one, "m1", left)
    with pytest.raises(HansaError, match="Client 'm3' opens no sum but of its own numbers and of those who shared"):
        told(one, "m3", left)
    with pytest.raises(HansaError, match="Client 'm0' opens no sum but of its own numbers and of those who shared"):
        told(one, "m0", left)


def test_a_server_that_lies_about_who_answered_opens_a_sum_of_no_fewer_than_it_is_said() -> None:
    """Three of five are left out, each by three who heard that it dropped out; nobody is left to leave out a fourth."""
    one = Federation(5, 3)
    one.mask(one.shared())
    dropped = {"m0": ("m2", "m3"), "m1": ("m3", "m4"), "m2": ("m3", "m4"), "m3": ("m2", "m4"), "m4": ("m2", "m3")}
    rows = {
        name: told(one, name, [other for other in one.members if other not in out]) for name, out in dropped.items()
    }
    keys = {name: {teller: rows[teller] for teller, out in dropped.items() if name in out} for name in one.members}
    own = {name: {teller: rows[teller] for teller, out in dropped.items() if name not in out} for name in one.members}
    shares = {name: own[name] if name in ("m0", "m1") else keys[name] for name in one.members}
    assert same(opened_of(one, ("m0", "m1"), shares), one.total(("m0", "m1")))
    assert one.terms.least == 2


@pytest.mark.parametrize(
    ("asked", "needed", "least"), [(3, 3, 3), (4, 3, 3), (5, 3, 2), (6, 4, 3), (10, 7, 6), (9, 9, 9)]
)
def test_how_few_a_lying_server_can_open(asked: int, needed: int, least: int) -> None:
    assert Terms("run", tuple(f"m{place}" for place in range(asked)), needed).least == least


def test_with_a_share_too_few_nothing_is_opened() -> None:
    one = Federation(6, 5)
    one.mask(one.shared())
    with pytest.raises(HansaError, match=r"Only 4 clients told their shares, and 5 are needed"):
        one.opened(silent=("m0", "m1"))
    lying = Federation(6, 5)
    lying.mask(lying.shared())
    answered = lying.counter.survivors()
    told = {name: lying.members[name].unmask(lying.terms, answered) for name in ("m0", "m1", "m2", "m3")}
    lying.counter.terms = replace(lying.terms, threshold=4)  # a server that tries with what it has
    assert not same(lying.counter.opened(told), lying.total(lying.members))


def test_too_few_who_share_secrets_are_sent_nothing() -> None:
    one = Federation(6, 5)
    with pytest.raises(HansaError, match=r"Only 4 of 6 clients shared secrets, and 5 are needed"):
        one.shared(silent=("m0", "m1"))
    one = Federation(4, 3)
    inbox = one.shared()["m0"]
    few = {key: leaf[:1] for key, leaf in inbox.items()} | {"there": torch.tensor([1, 1, 0, 0], dtype=torch.uint8)}
    with pytest.raises(HansaError, match=r"Only 2 clients shared secrets, and 3 are needed: nothing is sent"):
        one.members["m0"].mask(one.terms, few, one.numbers["m0"])


def forged_card(one: Federation) -> None:
    one.cards["m1"] = Member.new("m1", {}).advertise()
    one.shared()


def forged_key(one: Federation) -> None:
    inbox = one.shared()["m0"]
    inbox["key"] = inbox["key"].flip(0)
    one.members["m0"].mask(one.terms, inbox, one.numbers["m0"])


def swapped_share(one: Federation) -> None:
    inboxes = one.shared()
    inbox = inboxes["m0"] | {"shares": inboxes["m1"]["shares"]}
    one.members["m0"].mask(one.terms, inbox, one.numbers["m0"])


def another_round(one: Federation) -> None:
    later = replace(one.terms, name="run/0/1", began=2)
    inbox = one.shared()["m0"]
    one.members["m0"].share(later, one.counter.cards(one.cards))
    one.members["m0"].mask(later, inbox, one.numbers["m0"])


def masked_twice(one: Federation) -> None:
    inboxes = one.shared()
    for _ in range(2):
        one.members["m0"].mask(one.terms, inboxes["m0"], one.numbers["m0"])


def told_twice(one: Federation) -> None:
    one.mask(one.shared())
    for left in (5, 4):  # a second list of survivors would open the masks of somebody who is in the first
        told(one, "m0", [f"m{place}" for place in range(left)])


def begun_again(one: Federation) -> None:
    """With what others sealed the first time a client would tell shares of the other kind, of the same secrets."""
    inboxes = one.shared()
    one.mask(inboxes)
    told(one, "m0", list(one.members))
    one.members["m0"].share(one.terms, one.counter.cards(one.cards))


def begun_before(one: Federation) -> None:
    one.members["m0"].share(replace(one.terms, name="run/0/1", began=2), one.counter.cards(one.cards))
    one.shared()


def stranger(one: Federation) -> None:
    one.members["m1"] = Member.new("m1", {})
    del one.members["m0"].registered["m1"]  # type: ignore[attr-defined]
    one.shared()


def too_few_rows(one: Federation) -> None:
    inbox = one.shared()["m0"]
    one.members["m0"].mask(one.terms, inbox | {"key": inbox["key"][:2]}, one.numbers["m0"])


def misshapen(one: Federation) -> None:
    inbox = one.shared()["m0"]
    one.members["m0"].mask(one.terms, inbox | {"shares": inbox["shares"][:, :9]}, one.numbers["m0"])


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (forged_card, r"The keys of 'm1' are not signed by the key that is registered for it"),
        (forged_key, r"The keys of 'm1' are not signed"),
        (swapped_share, r"What 'm1' sealed was changed on its way|What 'm\d' sealed"),
        (another_round, r"The keys of 'm1' are not signed"),
        (masked_twice, r"Client 'm0' has masked its numbers for the sum 'run/0/0' already"),
        (told_twice, r"Client 'm0' has no secrets of the sum 'run/0/0': it told them already"),
        (begun_again, r"Client 'm0' has drawn secrets for the sum 'run/0/0' or a later one already"),
        (begun_before, r"Client 'm0' has drawn secrets for the sum 'run/0/0' or a later one already"),
        (stranger, r"No key is registered for client 'm1'"),
        (too_few_rows, r"must have 4 rows of 32 bytes under 'key'"),
        (misshapen, r"must have 4 rows of 94 bytes under 'shares'"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_clients_refuse(attempt: Callable[[Federation], None], says: str) -> None:
    with pytest.raises(HansaError, match=says):
        attempt(Federation(5, 4))


@pytest.mark.parametrize(("asked", "needed"), [(4, 2), (4, 5), (1, 1), (3, 1)])
def test_terms_that_would_open_too_much_are_refused(asked: int, needed: int) -> None:
    with pytest.raises(HansaError, match=rf"more than half of the clients.* Got {needed} of {asked}"):
        Terms("run", tuple(f"m{place}" for place in range(asked)), needed)


def test_two_trips_carry_a_sum_once_the_first_has_begun() -> None:
    """A trip asks everybody once; the shares of the next sum ride on the message that unmasks the one before."""
    one, trips = Federation(4, 3), 2  # cards, and the first shares
    inboxes = one.shared()
    for number in range(3):
        trips += 1
        one.mask(inboxes)
        trips += 1
        later = replace(one.terms, name=f"run/0/{number + 1}", began=number + 2)
        answered, cards, after = one.counter.survivors(), one.counter.cards(one.cards), Counter(later)
        replies = {
            name: (member.unmask(one.terms, answered), member.share(later, cards))
            for name, member in one.members.items()
        }
        assert same(one.counter.opened({name: told for name, (told, _) in replies.items()}), one.total(one.members))
        inboxes = after.inboxes({name: offer for name, (_, offer) in replies.items()})
        one.terms, one.counter = later, after
    assert trips == 2 + 2 * 3
