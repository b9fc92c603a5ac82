"""The terms of a secure sum, which its messages are bound to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from hansa.errors import require


@dataclass(frozen=True)
class Terms:
    """The terms of one sum: what it is called, who is asked, and how many must answer before anything is opened.

    No client draws secrets for a sum that began before another one did that it has drawn some for.
    """

    name: str  # of the run, phase and round: nothing of one sum serves another
    members: tuple[str, ...]
    threshold: int
    began: int = 0  # microseconds: when it did

    def __post_init__(self) -> None:
        asked, needed = len(self.members), self.threshold
        fair = asked / 2 < needed <= asked and needed >= 2 and len(set(self.members)) == asked
        says = "A secure sum needs the answers of more than half of the clients that it asks, each of them once"
        require(fair, f"{says}. Got {needed} of {asked}.")

    @property
    def least(self) -> int:
        """Return of how many clients the server can open a sum if it tells each of them of other survivors.

        Whoever is to be left out of it, a threshold t of the n clients must have heard that it dropped out, and each of
        them hears that at most n - t did: so at most (n - t) * n / t can be left out.
        """
        asked, needed = len(self.members), self.threshold
        return asked - (asked - needed) * asked // needed

    def bound(self, *words: str) -> bytes:
        """Return bytes that stand for these terms and some words, and for nothing else."""
        text = json.dumps([self.name, self.members, self.threshold, self.began, words])
        return hashlib.sha256(text.encode()).digest()
