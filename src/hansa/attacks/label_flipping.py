"""Label flipping: clients that train on swapped labels (Tolpegin et al. 2020; Silvi et al., FedSeq, section V.A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from hansa.attacks.attack import count, drawn
from hansa.attacks.relabelled import relabelled
from hansa.data.clients import FarClient
from hansa.data.dataset import Array
from hansa.data.federation import Client, Federation
from hansa.data.targets import Real
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.orchestrate.planner import Chain, Orchestration
from hansa.seeds import numpy_generator

Criterion = Literal["fixed", "random"]


@dataclass(frozen=True)
class LabelFlipping:
    """Some clients train on labels that are swapped in pairs; what they are tested on stays true.

    With `superclients` (L_S), a share of them is attacked and `clients` (L) is the share of each one's clients;
    without, L is the share of all clients.  By the `criterion` γ all attackers swap the same `pairs` of classes
    (`fixed`), or each pairs the classes named there anew for itself (`random`); without pairs these are all classes,
    each two neighbours, 0 ↔ 1, 2 ↔ 3, ….  `groups_of` is the orchestration whose superclients are meant where the
    phase's own has none or others, so that a star is compared at the same attackers.
    """

    clients: float = 0.1
    superclients: float | None = None
    criterion: Criterion = "fixed"
    pairs: tuple[tuple[int, int], ...] = ()
    groups_of: Annotated[Orchestration | None, Piece("orchestration")] = None

    def __post_init__(self) -> None:
        for name, share in (("clients", self.clients), ("superclients", self.superclients)):
            good = share is None or 0 <= share <= 1
            require(good, f"The '{name}' of label flipping are a share and must lie in [0, 1]. Got {share}.")
        named = [one for pair in self.pairs for one in pair]
        good = len(set(named)) == len(named) and min(named, default=0) >= 0
        says = "The 'pairs' of label flipping must be pairs of class numbers ≥ 0, and a class may stand in one only"
        require(good, f"{says}. Got {[list(pair) for pair in self.pairs]}.")
        grouped = self.groups_of is None or self.groups_of.grouped
        says = "The 'groups_of' label flipping must be an orchestration with superclients, such as 'fedseq'"
        require(grouped, f"{says}. Got {self.groups_of}.")
        needed = self.superclients is not None or self.groups_of is None
        require(needed, "Label flipping has 'groups_of' and no share of them: set 'superclients', or leave it out.")

    def misfit(self, orchestration: Orchestration) -> str:
        """Return why a share of superclients cannot be attacked: where there are none."""
        if self.superclients is None or (self.groups_of or orchestration).grouped:
            return ""
        says = f"label flipping asks for a share of superclients, and {type(orchestration).__name__} has none"
        return f"{says}: name those that are meant with 'groups_of', or leave 'superclients' out"

    def check(self, federation: Federation) -> None:
        """Refuse real targets, classes that are not there, and clients whose samples are elsewhere."""
        real = isinstance(federation.target, Real)
        require(not real, "Label flipping swaps classes, and the targets are real numbers: leave 'attack' out.")
        classes = federation.outputs
        odd = next((one for pair in self.pairs for one in pair if one >= classes), 0)
        require(odd < classes, f"Label flipping swaps class {odd}, and the classes are 0 to {classes - 1}.")
        far = next((name for name, one in federation.clients.items() if isinstance(one, FarClient)), None)
        says = f"An attack is on simulated clients, and the samples of client '{far}' are elsewhere"
        require(far is None, f"{says}: leave 'attack' out, or run it on a federation whose samples are here.")

    def told(self, classes: int) -> dict[str, Any]:
        """Return the criterion, and the pairs that are swapped, or whose classes each attacker pairs anew."""
        return {"criterion": self.criterion, "pairs": self._paired(self._named(classes)).tolist()}

    def _named(self, classes: int) -> Array:
        return np.array(self.pairs).ravel() if self.pairs else np.arange(classes)

    @staticmethod
    def _paired(named: Array) -> Array:
        """Return classes in pairs (n × 2); the last of an odd number has none."""
        pairs: Array = named[: len(named) // 2 * 2].reshape(-1, 2)
        return pairs

    def attackers(self, names: Sequence[str], groups: Sequence[Chain], seed: int) -> tuple[str, ...]:
        """Return a share of all clients, or of those in a share of the superclients, in the order of their names."""
        chosen = [tuple(names)] if self.superclients is None else self._attacked(groups, seed)
        found = {name for members in chosen for name in drawn(members, self.clients, seed)}
        return tuple(name for name in names if name in found)

    def _attacked(self, groups: Sequence[Chain], seed: int) -> list[Chain]:
        """Return a share of the superclients, in one random order for every share."""
        require(bool(groups), "Label flipping asks for a share of superclients, and there are none: set 'groups_of'.")
        order = numpy_generator(seed, "attack", "superclients").permutation(len(groups))
        return [groups[one] for one in order[: count(self.superclients or 0.0, len(groups))]]

    def corrupted(self, federation: Federation, attackers: Sequence[str], seed: int) -> Mapping[str, Client]:
        """Return all clients, of whom the attackers train on swapped labels."""
        self.check(federation)
        labels = {name: self.swapped(name, federation.outputs, seed) for name in attackers}
        return relabelled(federation.clients, labels)

    def swapped(self, attacker: str, classes: int, seed: int) -> Array:
        """Return what an attacker makes of every class."""
        named = self._named(classes)
        if self.criterion == "random":
            named = numpy_generator(seed, "attack", "pairs", attacker).permutation(named)
        labels, (one, other) = np.arange(classes), self._paired(named).T
        labels[one], labels[other] = other, one
        return labels
