"""Partitions by label: iid, Dirichlet, classes per client, shards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hansa.data.checks import number, whole
from hansa.data.dataset import Array, Dataset
from hansa.data.partitions.dealing import (
    apportion,
    client_names,
    dirichlet,
    labels_of,
    members,
    parts,
    proportional,
    raise_to_minimum,
    require_room,
)
from hansa.errors import HansaError, require


@dataclass(frozen=True)
class Iid:
    """Every client gets an equal share of the shuffled samples."""

    clients: int = 10

    def __post_init__(self) -> None:
        whole(self, "clients")

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Deal out shares whose sizes differ by at most one."""
        require_room("Iid", self.clients, 1, len(data.train))
        return parts(rng.permutation(len(data.train)) % self.clients, client_names(self.clients))


@dataclass(frozen=True)
class Dirichlet:
    """Label skew of strength α: small α gives clients few classes each.

    As a rule the samples of every class are divided among clients in proportions drawn from Dir(α) (sizes differ too).
    With `balanced` all clients are of one size, and each draws its label proportions from Dir(α p), p the class shares
    (Hsu et al., 2019).  With α = 0 every client holds one class, sizes as equal as that allows.
    """

    clients: int = 10
    alpha: float = 0.5
    min_samples: int = 1
    balanced: bool = False

    def __post_init__(self) -> None:
        whole(self, "clients")
        number(self, "alpha")
        whole(self, "min_samples")

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Split, and fill clients below `min_samples` up with random samples of the others."""
        y = labels_of(data, "The dirichlet partition")
        require_room("Dirichlet", self.clients, self.min_samples, len(y))
        if self.alpha == 0:
            owner = one_class_each(y, self.clients, self.min_samples, rng)
        elif self.balanced:
            owner = equal_sizes(y, self.clients, self.alpha, rng)
        else:
            owner = skewed(y, self.clients, self.alpha, self.min_samples, rng)
        return parts(owner, client_names(self.clients))


def skewed(y: Array, clients: int, alpha: float, minimum: int, rng: np.random.Generator) -> Array:
    """Return the client of every sample: each class is divided in proportions from Dir(α) over clients."""
    owner = np.empty(len(y), dtype=np.int64)
    for group in members(y):
        counts = proportional(dirichlet(np.full(clients, alpha), rng), len(group))
        owner[rng.permutation(group)] = np.repeat(np.arange(clients), counts)
    return raise_to_minimum(owner, clients, minimum, rng)


def equal_sizes(y: Array, clients: int, alpha: float, rng: np.random.Generator) -> Array:
    """Return each sample's client: sizes differ by at most one, each client draws label proportions from Dir(α p)."""
    pools = [rng.permutation(group) for group in members(y)]
    left = np.asarray([len(pool) for pool in pools])
    prior = left / left.sum()
    owner = np.empty(len(y), dtype=np.int64)
    for client, size in enumerate(proportional(np.ones(clients), len(y))):
        taken = _draw(dirichlet(alpha * prior, rng), left, int(size), rng)
        for group in np.flatnonzero(taken):
            owner[pools[group][left[group] - taken[group] : left[group]]] = client
        left = left - taken
    return owner


def _draw(shares: Array, left: Array, size: int, rng: np.random.Generator) -> Array:
    """Draw `size` samples by class, only from classes with samples left, so every turn finishes or exhausts one."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        rest = left - taken
        open_ = np.flatnonzero(rest)
        weights = (
            shares[open_] + 1e-30 * rest[open_]
        )  # where nothing is left of what a client prefers, anything will do
        taken[open_] += np.minimum(rng.multinomial(missing, weights / weights.sum()), rest[open_])
    return taken


def one_class_each(y: Array, clients: int, minimum: int, rng: np.random.Generator) -> Array:
    """Return the client of every sample: each client holds one class, larger classes have more clients."""
    groups = members(y)
    sizes = np.asarray([len(group) for group in groups])
    room = sizes // minimum
    if clients < len(groups):
        raise HansaError(
            f"With alpha = 0 every client holds one class, so {len(groups)} classes need at least as many clients. "
            f"Got {clients}; use more clients or alpha > 0."
        )
    if room.min() < 1 or room.sum() < clients:
        raise HansaError(
            f"With alpha = 0 there cannot be {clients} clients with at least {minimum} samples of one class each: "
            f"classes have {sizes.min()} to {sizes.max()} samples. "
            "Use fewer clients, a smaller 'min_samples' or alpha > 0."
        )
    owner = np.empty(len(y), dtype=np.int64)
    seats = apportion(sizes, clients, room)
    first = np.cumsum(seats) - seats
    for group, seat, start in zip(groups, seats, first, strict=True):
        owner[rng.permutation(group)] = start + np.arange(len(group)) % seat
    return rng.permutation(clients)[owner]


@dataclass(frozen=True)
class ClassesPerClient:
    """Every client holds exactly `classes` classes, chosen at random; those who hold a class share it equally."""

    clients: int = 10
    classes: int = 2
    min_samples: int = 1

    def __post_init__(self) -> None:
        whole(self, "clients")
        whole(self, "classes")
        whole(self, "min_samples")

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Split, or refuse when not every class finds a client, or a class has too few samples for its clients."""
        groups = members(labels_of(data, "The classes partition"))
        sizes = np.asarray([len(group) for group in groups])
        self._check(sizes)
        holders = _assign(apportion(sizes, self.clients * self.classes, np.minimum(sizes, self.clients)), self, rng)
        owner = np.empty(len(data.train), dtype=np.int64)
        for group, holder in zip(groups, holders, strict=True):
            owner[rng.permutation(group)] = holder[np.arange(len(group)) % len(holder)]
        smallest = int(np.bincount(owner, minlength=self.clients).min())
        require(
            smallest >= self.min_samples,
            f"ClassesPerClient leaves a client with {smallest} samples, fewer than 'min_samples' = {self.min_samples}; "
            "use fewer clients or a smaller minimum.",
        )
        return parts(owner, client_names(self.clients))

    def _check(self, sizes: Array) -> None:
        require_room("ClassesPerClient", self.clients, self.min_samples, int(sizes.sum()))
        slots = self.clients * self.classes
        require(
            self.classes <= len(sizes),
            f"The 'classes' of ClassesPerClient must be at most the {len(sizes)} there are. Got {self.classes}.",
        )
        require(
            slots >= len(sizes),
            f"ClassesPerClient gives {self.clients} clients {self.classes} classes each, "
            f"too few for all {len(sizes)} classes; use more clients or more classes per client.",
        )
        require(
            int(np.minimum(sizes, self.clients).sum()) >= slots,
            f"ClassesPerClient cannot give {self.clients} clients {self.classes} classes each: "
            "some classes have too few samples; use fewer clients or fewer classes per client.",
        )


def _assign(degrees: Array, setting: ClassesPerClient, rng: np.random.Generator) -> list[Array]:
    """Draw each class's clients: each class as often as its degree says, each client `classes` different ones.

    Client by client, classes are drawn by how many clients they still want; a class that wants every client that is
    left must be taken, and there are never more of those than a client has room for, so the last client comes out even.
    """
    wanted = degrees.astype(np.float64)
    holders: list[list[int]] = [[] for _ in degrees]
    for turn, client in enumerate(rng.permutation(setting.clients)):
        with np.errstate(divide="ignore"):
            keys = np.log(wanted) + rng.gumbel(size=len(wanted))
        keys[wanted >= setting.clients - turn] = np.inf
        chosen = np.argsort(-keys, kind="stable")[: setting.classes]
        wanted[chosen] -= 1
        for group in chosen:
            holders[group].append(int(client))
    return [np.asarray(clients) for clients in holders]


@dataclass(frozen=True)
class Shards:
    """Samples sorted by label are cut into equal shards and each client gets some at random (McMahan et al., 2017)."""

    clients: int = 10
    shards_per_client: int = 2

    def __post_init__(self) -> None:
        whole(self, "clients")
        whole(self, "shards_per_client")

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Cut shards whose sizes differ by at most one."""
        shards, y = self.clients * self.shards_per_client, labels_of(data, "The shards partition")
        require_room(
            f"Shards with {self.shards_per_client} shards a client",
            self.clients,
            self.shards_per_client,
            len(y),
        )
        order = rng.permutation(len(y))
        order = order[np.argsort(y[order], kind="stable")]
        shard = np.repeat(np.arange(shards), proportional(np.ones(shards), len(order)))
        owner = np.empty(len(order), dtype=np.int64)
        owner[order] = (rng.permutation(shards) % self.clients)[shard]
        return parts(owner, client_names(self.clients))
