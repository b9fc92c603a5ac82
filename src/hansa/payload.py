"""What a client uploads, and how uploads combine in a cohort and along a chain."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from hansa.errors import require
from hansa.tree import Tree, add, scale

WEIGHT = "weight"  # among a client's EACH leaves: what the client weighs, as the sum of all weights does not tell it


class Role(enum.Enum):
    """What the server may do with a leaf of an upload.  The first part of a leaf's key decides its role."""

    STEP = "step"  # weight × displacement of a broadcast leaf: averaged over a cohort, added along a chain
    SUM = "sum"  # a sufficient statistic: always added
    EACH = "each"  # the server needs every client's own value; secure sums refuse it


@dataclass(frozen=True, slots=True)
class Update:
    """An upload, or the sum of many: a commutative monoid, so a server adds as they come and never holds a round."""

    sums: Tree
    weight: float = 1.0
    count: int = 1  # clients folded in so far
    flops: float = 0.0  # what the clients computed, by their own account
    each: Mapping[str, Tree] = field(default_factory=dict)  # by client: the leaves that must not be summed

    def __add__(self, other: Update) -> Update:
        return Update(
            add(self.sums, other.sums),
            self.weight + other.weight,
            self.count + other.count,
            self.flops + other.flops,
            {**self.each, **other.each},
        )

    def mean(self) -> Tree:
        """The weighted mean: for STEP leaves the cohort's displacement."""
        return scale(self.sums, 1.0 / self.weight)


def role_of(uplink: Mapping[str, Role], key: str) -> Role:
    """The role of a leaf, by the first part of its key."""
    return uplink[key.partition(".")[0]]


def require_summable(uplink: Mapping[str, Role], name: str) -> None:
    """Refuse an algorithm where the server learns the sum of a round's uploads and nothing else."""
    apart = ", ".join(f"'{group}'" for group, role in uplink.items() if role is Role.EACH)
    says = f"Secure aggregation hides single uploads, and {name} needs every client's own {apart}"
    require(not apart, f"{says}: leave out one of the two.")


def set_apart(uplink: Mapping[str, Role], client: str, up: Update) -> Update:
    """File a client's EACH leaves and its weight under its name; the rest stays summable."""
    if Role.EACH not in uplink.values():
        return up
    require(0 < up.weight < float("inf"), f"Client '{client}' must weigh a number > 0. Got {up.weight}.")
    own = {key: leaf for key, leaf in up.sums.items() if role_of(uplink, key) is Role.EACH}
    each = {client: own | {WEIGHT: torch.tensor(up.weight, dtype=torch.float64)}}
    return replace(up, sums={key: leaf for key, leaf in up.sums.items() if key not in own}, each=each)


def relay(uplink: Mapping[str, Role], down: Tree, up: Update) -> Tree:
    """What the next client of a chain receives: the message moved by the STEP leaves just uploaded."""
    stuck = sorted({key.partition(".")[0] for own in up.each.values() for key in own if key in down})
    says = f"A chain hands {stuck} on from client to client, and here the server needs every client's own"
    require(not stuck, f"{says}: use the orchestration 'star' or 'sweep', or leave out the robust rule.")
    moved = {key: down[key] + total / up.weight for key, total in up.sums.items() if role_of(uplink, key) is Role.STEP}
    return {**down, **moved}


def join(uplink: Mapping[str, Role], first: Update, then: Update) -> Update:
    """One client after the other: displacements add up, statistics add up, weights add up."""
    weight = first.weight + then.weight
    sums = {
        key: weight * (total / first.weight + then.sums[key] / then.weight)
        if role_of(uplink, key) is Role.STEP
        else total + then.sums[key]
        for key, total in first.sums.items()
    }
    return Update(sums, weight, first.count + then.count, first.flops + then.flops, {**first.each, **then.each})
