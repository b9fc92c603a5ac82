"""Partitions that come with the data: by client name, by domain, by domain and label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hansa.data.checks import number, whole
from hansa.data.dataset import Array, Dataset
from hansa.data.partitions.dealing import (
    client_names,
    dirichlet,
    labels_of,
    members,
    parts,
    proportional,
    require_room,
)
from hansa.data.partitions.label import one_class_each, skewed
from hansa.errors import HansaError, require


@dataclass(frozen=True)
class Natural:
    """Each client named by the source is a client; those below `min_samples` or beyond `max_clients` are left out."""

    min_samples: int = 1
    max_clients: int | None = None  # so many at random, where there are more

    def __post_init__(self) -> None:
        whole(self, "min_samples")
        whole(self, "max_clients", optional=True)

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Split; the only partition that leaves samples out by its nature: those of the clients left out."""
        if data.client is None:
            raise HansaError(
                "The natural partition needs a client name for every sample, and the source gives none. "
                "Set the source's 'client', or use another partition such as 'dirichlet'."
            )
        large = {str(data.client[group[0]]): group for group in members(data.client) if len(group) >= self.min_samples}
        require(len(large) > 0, f"No client has 'min_samples' = {self.min_samples} samples; use a smaller number.")
        if self.max_clients is None or self.max_clients >= len(large):
            return large
        chosen = np.sort(rng.permutation(len(large))[: self.max_clients])
        names = list(large)
        return {names[number]: large[names[number]] for number in chosen}


def _domains(data: Dataset, who: str) -> dict[str, Array]:
    if data.domain is None:
        raise HansaError(
            f"The {who} partition needs a domain for every sample, and the source gives none. "
            "Set the source's 'domain', or use another partition such as 'dirichlet'."
        )
    return {str(data.domain[group[0]]): group for group in members(data.domain)}


def _names(domain: str, clients: int) -> list[str]:
    return [domain] if clients == 1 else client_names(clients, domain, width=1)


def _first_of_each_class(y: Array, count: int) -> Array:
    """Return the positions of the first `count` of every class."""
    return np.concatenate([group[:count] for group in members(y)])


@dataclass(frozen=True)
class Domain:
    """Feature shift: every client's samples come from one domain, with the domain's labels dealt out iid.

    With `samples_per_class` a client keeps at most so many of every class and the rest is left out.
    """

    clients_per_domain: int = 1
    samples_per_class: int | None = None

    def __post_init__(self) -> None:
        whole(self, "clients_per_domain")
        whole(self, "samples_per_class", optional=True)

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Split into clients named after their domain."""
        found: dict[str, Array] = {}
        for domain, index in _domains(data, "domain").items():
            require_room(f"Domain '{domain}'", self.clients_per_domain, 1, len(index))
            order = rng.permutation(index)
            shares = [order[start :: self.clients_per_domain] for start in range(self.clients_per_domain)]
            chosen = [self._chosen(data, share) for share in shares]
            found |= dict(zip(_names(domain, self.clients_per_domain), chosen, strict=True))
        return found

    def _chosen(self, data: Dataset, index: Array) -> Array:
        if self.samples_per_class is not None:
            y = labels_of(data, "The domain partition with 'samples_per_class'")
            index = index[_first_of_each_class(y[index], self.samples_per_class)]
        return np.sort(index)


@dataclass(frozen=True)
class DomainLabel:
    """Feature and label shift: the samples of every domain are divided among its clients by Dirichlet(α).

    With `samples_per_class` = s each client instead keeps about s × classes samples of an equal share of its domain, in
    label proportions drawn from Dir(α), and the rest is left out; then one client a domain makes sense too.
    """

    clients_per_domain: int = 2
    alpha: float = 0.5
    min_samples: int = 1
    samples_per_class: int | None = None

    def __post_init__(self) -> None:
        whole(self, "clients_per_domain")
        number(self, "alpha")
        whole(self, "min_samples")
        whole(self, "samples_per_class", optional=True)
        require(
            self.clients_per_domain > 1 or self.samples_per_class is not None,
            "The 'clients_per_domain' of DomainLabel must be >= 2 unless 'samples_per_class' is set: "
            "a domain's only client would get all its labels.",
        )

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Split into clients named after their domain."""
        found: dict[str, Array] = {}
        labels = labels_of(data, "The domain-label partition")
        for domain, index in _domains(data, "domain-label").items():
            require_room(f"Domain '{domain}'", self.clients_per_domain, self.min_samples, len(index))
            y = labels[index]
            own = self._sampled(y, rng) if self.samples_per_class is not None else self._dealt(y, rng)
            names = _names(domain, self.clients_per_domain)
            found |= {name: np.sort(index[part]) for name, part in zip(names, own, strict=True)}
        return found

    def _dealt(self, y: Array, rng: np.random.Generator) -> list[Array]:
        if self.alpha == 0:
            owner = one_class_each(y, self.clients_per_domain, self.min_samples, rng)
        else:
            owner = skewed(y, self.clients_per_domain, self.alpha, self.min_samples, rng)
        return list(parts(owner, client_names(self.clients_per_domain)).values())

    def _sampled(self, y: Array, rng: np.random.Generator) -> list[Array]:
        order = rng.permutation(len(y))
        shares = [order[start :: self.clients_per_domain] for start in range(self.clients_per_domain)]
        return [share[self._draw(y[share], rng)] for share in shares]

    def _draw(self, y: Array, rng: np.random.Generator) -> Array:
        """Draw the positions of a client's samples: class sizes follow Dir(α), as far as there are samples."""
        groups = members(y)
        total = (self.samples_per_class or 0) * len(groups)
        wanted = proportional(dirichlet(np.full(len(groups), self.alpha), rng), total)
        chosen = np.concatenate([group[:count] for group, count in zip(groups, wanted, strict=True)])
        return self._fill(chosen, len(y))

    def _fill(self, chosen: Array, count: int) -> Array:
        others = np.setdiff1d(np.arange(count), chosen)
        return np.concatenate([chosen, others[: max(0, self.min_samples - len(chosen))]])
