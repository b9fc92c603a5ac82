"""Secrets in shares: Shamir, How to Share a Secret (1979), over the integers modulo the first prime above 2²⁵⁶.

Any `threshold` of the shares give a secret of 32 bytes back, and fewer tell nothing of it, whatever one can compute.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return so many shares of a secret; the first belongs to place 1, as place 0 is the secret itself."""
    curve = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(curve, place).to_bytes(SHARE, "big") for place in range(1, count + 1)]


def _value(curve: Sequence[int], place: int) -> int:
    """Return a polynomial's value, by Horner's rule."""
    found = 0
    for coefficient in reversed(curve):
        found = (found * place + coefficient) % PRIME
    return found


def factors(places: Sequence[int]) -> list[int]:
    """Return what the shares of these places count in the value at place 0 (Lagrange); the same for every secret."""
    found = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def joined(shares: Mapping[int, bytes], counts: Sequence[int]) -> bytes:
    """Return the secret of some shares by place, where `counts` are the factors of these places, in their order."""
    numbers = (int.from_bytes(share, "big") for share in shares.values())
    found = sum(count * number for count, number in zip(counts, numbers, strict=True)) % PRIME
    return found.to_bytes(SHARE, "big")[-SECRET:]
