"""Fixed point: sums that are exact, numbers that are refused, and secrets in shares."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.channels.fixed_point import FixedPoint, Words, added
from hansa.channels.secret_sharing import PRIME, factors, joined, split
from hansa.errors import HansaError
from hansa.payload import Role, Update

UPLINK = {"step": Role.STEP, "sum": Role.SUM}


def summed(fixed: FixedPoint, ups: list[Update]) -> Words:
    found = fixed.encode(ups[0])
    for up in ups[1:]:
        one = fixed.encode(up)
        found = {key: added(words, one[key]) for key, words in found.items()}
    return found


def to_grid(value: float, bits: int) -> Fraction:
    """A float as a multiple of 2⁻ᵇ, in exact arithmetic."""
    return Fraction(round(Fraction(value) * 2**bits), 2**bits)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_sums_are_those_of_exact_arithmetic(rows: list[list[float]]) -> None:
    leaf = torch.Size([3]), torch.float64
    fixed = FixedPoint({"step.a": leaf, "sum.b": leaf}, UPLINK, len(rows))
    tensors = [torch.tensor(row, dtype=torch.float64) for row in rows]
    total = summed(fixed, [Update({"step.a": one, "sum.b": one}, 2.0) for one in tensors])
    sums, weight = fixed.decode(total)
    for key, bits in (("step.a", 24), ("sum.b", 64)):
        expected = [sum(to_grid(row[place], bits) for row in rows) for place in range(3)]
        found = [Fraction(value) for value in sums[key].tolist()]
        # a float64 that holds the exact sum is it, and otherwise the nearest one or a neighbour
        assert all(abs(a - b) <= abs(b) * Fraction(1, 2**52) for a, b in zip(found, expected, strict=True))
        assert all(a == b for a, b in zip(found, expected, strict=True) if Fraction(float(b)) == b)
    assert weight == 2.0 * len(rows)


def test_the_layout_is_the_triangle_and_all_classes() -> None:
    layout = {"sum.gram": (torch.Size([4, 4]), torch.float64), "sum.moment": (torch.Size([4, 3]), torch.float64)}
    fixed = FixedPoint(layout, UPLINK, 2)
    gram = torch.arange(16.0).reshape(4, 4).double()
    gram = gram + gram.T
    few, many = (Update({"sum.gram": gram, "sum.moment": torch.ones(4, 3).double() * k}, 1.0) for k in (0.0, 1.0))
    assert {key: words.shape for key, words in fixed.encode(few).items()} == {"steps": (1, 0), "sums": (2, 10 + 12 + 1)}
    assert fixed.encode(many)["sums"].shape == fixed.encode(few)["sums"].shape  # whatever classes a client has
    sums, _ = fixed.decode(summed(fixed, [few, many]))
    assert torch.equal(sums["sum.gram"], 2 * gram) and torch.equal(sums["sum.moment"], torch.ones(4, 3).double())


@pytest.mark.parametrize(("key", "largest"), [("step.a", 2.0**39 / 8), ("sum.b", 2.0**63 / 8)])
def test_what_does_not_fit_is_refused_and_not_clipped(key: str, largest: float) -> None:
    leaf = torch.Size([2]), torch.float64
    fixed = FixedPoint({key: leaf}, UPLINK, 8)
    below, above = np.nextafter(largest, 0), largest
    ups = [
        Update({key: torch.tensor([sign * below, 0.5], dtype=torch.float64)}, 1.0) for sign in (1, -1) for _ in range(4)
    ]
    sums, _ = fixed.decode(summed(fixed, [ups[0]] * 8))
    assert float(sums[key][0]) == pytest.approx(8 * below, rel=1e-6) and float(sums[key][1]) == 4.0
    assert float(fixed.decode(summed(fixed, ups))[0][key][0]) == 0.0
    with pytest.raises(
        HansaError, match=r"The upload holds a number of size .*, and in a secure sum of 8 clients .* bits"
    ):
        fixed.encode(Update({key: torch.tensor([0.0, -above], dtype=torch.float64)}, 1.0))


def test_any_threshold_of_the_shares_gives_the_secret_and_fewer_do_not() -> None:
    secret = bytes(range(32))
    shares = dict(enumerate(split(secret, 3, 5), start=1))
    for places in itertools.combinations(shares, 3):
        assert joined({place: shares[place] for place in places}, factors(places)) == secret
    for places in itertools.combinations(shares, 2):
        assert joined({place: shares[place] for place in places}, factors(places)) != secret
    assert split(secret, 3, 5) != list(shares.values())  # other draws


def test_one_share_too_few_fits_every_secret() -> None:
    """For whatever secret one guesses there is a curve through it and the shares that one has."""
    shares = dict(enumerate(split(bytes(32), 3, 5), start=1))
    for guess in (1, 12345, PRIME - 1):
        points = {0: guess, 1: int.from_bytes(shares[1], "big"), 2: int.from_bytes(shares[2], "big")}
        third = _at(points, 3)
        made = {place: points[place].to_bytes(33, "big") for place in (1, 2)} | {3: third.to_bytes(33, "big")}
        assert joined(made, factors((1, 2, 3))) == guess.to_bytes(33, "big")[-32:]


def _at(points: dict[int, int], where: int) -> int:
    """The value of the curve through some points, by Lagrange's formula."""
    total = 0
    for place, value in points.items():
        for other in points:
            if other != place:
                value = value * (where - other) * pow(place - other, -1, PRIME) % PRIME
        total += value
    return total % PRIME


def test_the_modulus_is_prime() -> None:
    """By Miller and Rabin, for the first 20 primes as bases; shares would otherwise have no inverse now and then."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71):
        powers = [pow(base, odd * 2**k, PRIME) for k in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers
