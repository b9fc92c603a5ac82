"""What a visit costs by the papers' formulas: Tables 22 and 23 of Fanì et al. (2025), Table 1 and Appendix F of (2023).

The ledger of a run counts serialised messages; these formulas count numbers, so they can be asked of models and data
sets one does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hansa.errors import HansaError, did_you_mean

Part = Literal["all", "features", "head"]


@dataclass(frozen=True)
class Sizes:
    """The sizes that costs depend on, in numbers (not bytes): b, d, C and C̄."""

    backbone: float  # b: parameters of the feature extractor
    dimension: int  # d, or D of random features
    classes: int  # C
    present: float = 0.0  # C̄: classes a client holds, on average
    head: float | None = None  # parameters of the classifier where they are not d·C

    @property
    def classifier(self) -> float:
        """c, usually d·C."""
        return float(self.dimension * self.classes) if self.head is None else self.head

    def part(self, part: Part) -> float:
        """Parameters of a part of the model."""
        return {
            "all": self.backbone + self.classifier,
            "features": self.backbone,
            "head": self.classifier,
        }[part]


def fed3r_upload(sizes: Sizes) -> float:
    """`½d(d+1) + d·C̄`: the upper triangle and one vector for every class present."""
    return sizes.dimension * (sizes.dimension + 1) / 2 + sizes.dimension * sizes.present


def fed3r_full_upload(sizes: Sizes) -> float:
    """`d² + d·C + C`, the workshop version."""
    return float(sizes.dimension**2 + sizes.dimension * sizes.classes + sizes.classes)


def _both(factor: float) -> Callable[[Sizes, Part], tuple[float, float]]:
    return lambda sizes, part: (factor * sizes.part(part), factor * sizes.part(part))


def _shared(sizes: Sizes, personal: Part) -> tuple[float, float]:
    """Partial personalisation sends what is not personal."""
    sent = sizes.part("head" if personal == "features" else "features")
    return sent, sent


_COMMUNICATION: Mapping[str, Callable[[Sizes, Part], tuple[float, float]]] = {
    "fed3r": lambda sizes, _: (0.0, fed3r_upload(sizes)),
    "fed3r-full": lambda sizes, _: (0.0, fed3r_full_upload(sizes)),
    "fedncm": lambda sizes, _: (0.0, float(sizes.dimension * sizes.classes)),
    "fedavg": _both(1),
    "fedavgm": _both(1),
    "scaffold": _both(2),
    "fedsim": _shared,
    "fedalt": _shared,
    "pfedme": _shared,
    "local": lambda *_: (0.0, 0.0),
}


def communication(method: str, sizes: Sizes, part: Part = "all") -> tuple[float, float]:
    """Numbers down and up for one visit.

    `part` is what trains; for partial personalisation (`fedsim`, `fedalt`, `pfedme`) it is what stays personal.
    """
    if method not in _COMMUNICATION:
        raise HansaError(f"There is no cost formula for '{method}'.{did_you_mean(method, _COMMUNICATION)}")
    return _COMMUNICATION[method](sizes, part)


def computation(method: str, features: float, head: float, sizes: Sizes, part: Part = "all", epochs: int = 1) -> float:
    """Operations a sample, as Table 23 prints them, from the forward costs F_φ and F_ψ; B ≈ 2F."""
    if method == "fed3r":
        return features + fed3r_upload(sizes)
    if method == "fedncm":
        return features
    factor = 6 if method == "pfedme" else 3
    trained = "head" if method in ("fedsim", "fedalt", "pfedme") and part == "head" else part
    return factor * epochs * (features + 3 * head if trained == "head" else features + head)
