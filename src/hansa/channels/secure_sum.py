"""The secure sum as a plan names it.  What it does is in `masking`, which needs the library `cryptography`."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass

from hansa.channels.channel import Channel
from hansa.errors import require


@dataclass(frozen=True)
class SecureSum(Channel):
    """Adds uploads under masks, so that the server learns their sum and no single one (Bonawitz et al. 2017).

    Steps travel in 64 bits and statistics in 128, in the same layout for every client: its weight among them, what it
    computed not.  A round's sum is opened with the answers of `threshold` of the clients that were asked, and of at
    least `fewest`; whoever drops out is left out of it exactly.
    """

    threshold: float = 0.66
    fewest: int = 3

    def __post_init__(self) -> None:
        good = 0.5 < self.threshold <= 1
        require(good, f"The 'threshold' of secure-sum must lie above 0.5 and at most at 1. Got {self.threshold}.")
        few = self.fewest >= 2
        require(few, f"The 'fewest' of secure-sum must be a whole number ≥ 2: of one is no sum. Got {self.fewest}.")

    def needed(self, asked: int) -> int:
        """Return how many of the clients that a round asks must answer."""
        return max(self.fewest, math.ceil(self.threshold * asked - 1e-9))

    @staticmethod
    def require_library() -> None:
        """Tell how to get what makes keys and streams."""
        there = importlib.util.find_spec("cryptography") is not None
        require(there, "A secure sum needs the cryptography library: pip install 'hansa[secure]'.")
