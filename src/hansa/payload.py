"""The uploads of clients, and their combination in a cohort and along a chain."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.tree import Tree, scale, union

WEIGHT = "weight"  # among a client's EACH leaves: what the client weighs, as the sum of all weights does not tell it


class Role(enum.Enum):
    """The server's permitted use of a leaf of an upload.  The first part of a leaf's key decides its role."""

    STEP = "step"  # weight × displacement of a broadcast leaf: averaged over a cohort, added along a chain
    SUM = "sum"  # a sufficient statistic: always added
    EACH = "each"  # the server needs every client's own value; secure sums refuse it


@dataclass(frozen=True, slots=True)
class Update:
    """An upload, or the sum of many: a commutative monoid, so a server adds as they come and never holds a round.

    A client may lack leaves that others have (its columns, its rank, its part of the model).  Sums add over the union
    of keys, and `without` notes for every such leaf the weight of those who did not send it.
    """

    sums: Tree
    weight: float = 1.0
    count: int = 1  # clients folded in so far
    flops: float = 0.0  # what the clients computed, by their own account
    each: Mapping[str, Tree] = field(default_factory=dict)  # by client: the leaves that must not be summed
    without: Mapping[str, float] = field(default_factory=dict)  # by leaf: the weight of those who did not send it

    def __add__(self, other: Update) -> Update:
        return Update(
            union(self.sums, other.sums),
            self.weight + other.weight,
            self.count + other.count,
            self.flops + other.flops,
            {**self.each, **other.each},
            lacking((self.sums, self.weight, self.without), (other.sums, other.weight, other.without)),
        )

    def mean(self) -> Tree:
        """Return the weighted mean of every leaf over those who sent it: for STEP leaves the cohort's displacement."""
        if not self.without:
            return scale(self.sums, 1.0 / self.weight)
        return {key: leaf / (self.weight - self.without.get(key, 0.0)) for key, leaf in self.sums.items()}


Part = tuple[Mapping[str, object], float, Mapping[str, float]]  # leaves, weight, and what is noted as not sent


def lacking(*parts: Part) -> dict[str, float]:
    """Return, for every leaf that some parts of a sum lack, the weight of those who did not send it."""
    if all(part[0].keys() == parts[0][0].keys() and not part[2] for part in parts):
        return {}
    keys = {key: None for part in parts for key in part[0]}
    found = {key: sum(noted.get(key, 0.0) if key in own else weight for own, weight, noted in parts) for key in keys}
    return {key: weight for key, weight in found.items() if weight}


def role_of(uplink: Mapping[str, Role], key: str) -> Role:
    """Return the role of a leaf, by the first part of its key."""
    return uplink[key.partition(".")[0]]


def set_apart(uplink: Mapping[str, Role], client: str, up: Update) -> Update:
    """File a client's EACH leaves and its weight under its name; the rest stays summable."""
    if Role.EACH not in uplink.values():
        return up
    require(0 < up.weight < float("inf"), f"Client '{client}' must weigh a number > 0. Got {up.weight}.")
    own = {key: leaf for key, leaf in up.sums.items() if role_of(uplink, key) is Role.EACH}
    each = {client: own | {WEIGHT: torch.tensor(up.weight, dtype=torch.float64)}}
    return replace(up, sums={key: leaf for key, leaf in up.sums.items() if key not in own}, each=each)


def relay(uplink: Mapping[str, Role], down: Tree, up: Update) -> Tree:
    """Return the next message of a chain: the last one moved by the STEP leaves just uploaded."""
    stuck = sorted({key.partition(".")[0] for own in up.each.values() for key in own if key in down})
    says = f"A chain hands {stuck} on from client to client, and here the server needs every client's own"
    require(not stuck, f"{says}: use the orchestration 'star' or 'sweep', or leave out the robust rule.")
    moved = {key: down[key] + total / up.weight for key, total in up.sums.items() if role_of(uplink, key) is Role.STEP}
    return {**down, **moved}


def join(uplink: Mapping[str, Role], first: Update, then: Update) -> Update:
    """Join one client after the other: displacements add up, statistics add up, weights add up."""
    weight = first.weight + then.weight

    def step(key: str) -> Tensor:
        parts = [up.sums[key] / up.weight for up in (first, then) if key in up.sums]
        return weight * (parts[0] + parts[1] if len(parts) == 2 else parts[0])

    steps = {key: step(key) for key in {**first.sums, **then.sums} if role_of(uplink, key) is Role.STEP}
    sums, each = union(first.sums, then.sums) | steps, {**first.each, **then.each}
    return Update(sums, weight, first.count + then.count, first.flops + then.flops, each)
