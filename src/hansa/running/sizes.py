"""Sizes of messages and operations of visits that are planned, from those of a rehearsal."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np

from hansa.data.federation import Client
from hansa.engines.session import NUMBERS
from hansa.io import wire
from hansa.lazy import torch
from hansa.running.rehearsal import STEPS, FewSamples, Rehearsed, Seen, classes_of
from hansa.task import ClientData
from hansa.training.visits import AddsUp
from hansa.training.wrappers import client_side, training_of

Group = tuple[Hashable, ...]  # of visits: a kind of group, and which one
EVERY: Group = ("all",)


class Visit(NamedTuple):
    """A kind of visit: whose, in which round of the rehearsal it would be, and whether for the first time (0)."""

    client: str
    stage: int
    again: int


class Sizes:
    """Sizes of messages and operations of a visit, from the visit of the rehearsal that is most like it."""

    def __init__(self, found: Rehearsed, clients: Mapping[str, Client]):
        self.found, self.run, self.clients, self.seen = found, found.run, clients, found.seen
        self.period, self.rounds = self.run.algorithm.exchanges, self.run.phase.rounds
        self._networks = {name: self.run.task.networks.get(name) for name in self.run.names}
        self._classes: dict[str, tuple[int, ...]] = {}
        self._like: dict[Hashable, Seen | None] = {}
        self._lines: dict[Hashable, tuple[float, float]] = {}
        self._own: dict[str, int] = {}
        self._grows: dict[Hashable, tuple[float, float]] = {}  # bytes without any class, and of each, by kind of visit
        self.rough = False  # whether a client's classes were never rehearsed, and uploads depend on them

    def visit(self, client: str, number: int, visits: int) -> Visit:
        """Return the kind of a visit, by its round and how often the client was visited before."""
        return Visit(client, self._round(number), min(visits // self.period, 1))

    def classes(self, client: str) -> tuple[int, ...]:
        """Return the classes that a client has."""
        if client not in self._classes:
            self._classes[client] = classes_of(self.run.federation.clients[client])
        return self._classes[client]

    def up(self, visit: Visit) -> int:
        """Return the bytes of an upload."""
        adding, client = client_side(self.run.algorithm), visit.client
        if not isinstance(adding, AddsUp) or self.run.experiment.channel is not None:
            return self._up(visit)
        if client not in self._own:  # which may depend on how many samples it has
            shape = adding.upload_shape(self.run.task, _labels(self.run.federation.clients[client]))
            self._own[client] = wire.cost(shape, NUMBERS)
        return self._own[client]

    def _up(self, visit: Visit) -> int:
        """Return the bytes of an upload that was rehearsed; of classes that were not, by their number."""
        found, group = self._rehearsed(visit)
        return self._by_classes(visit, group) if group[0] in ("network", "all") else found.bytes_up

    def _by_classes(self, visit: Visit, group: Group) -> int:
        """Return the bytes of an upload that grows in a line with classes, by other clients' of a group."""
        key = (group, visit.stage, visit.again)
        if key not in self._grows:
            fits = (self._seen_as(group, visit.stage, visit.again, loose) for loose in range(3))
            like = next(one for one in fits if one is not None)
            alike = [one for one in self._groups[group] if (one.round, one.visit) == (like.round, like.visit)]
            sizes, classes = [float(one.bytes_up) for one in alike], [float(one.classes) for one in alike]
            self._grows[key] = _line(classes, sizes) if len(set(classes)) > 1 else (float(np.mean(sizes)), 0.0)
        self.rough = self.rough or self._unlike(group)
        fixed, each = self._grows[key]
        return round(fixed + (each * len(self.classes(visit.client)) if each else 0))

    def down(self, visit: Visit, count: int, known: int) -> int:
        """Return the bytes of so many messages; the clients that the server had met before each add up to `known`."""
        network = ("network", self._networks[visit.client])
        found = self._seen_in(network if network in self._groups else EVERY, visit.stage)
        grown = self.growing * (known - count * found.known) if visit.stage >= self.period else 0
        return count * found.bytes_down + round(grown)

    def _seen_in(self, group: Group, stage: int) -> Seen:
        """Return a visit of a group in a round, or where there is none in the last one."""
        key = ("down", group, stage)
        if key not in self._like:
            self._like[key] = max(self._groups[group], key=lambda one: (one.round == stage, one.round))
        found = self._like[key]
        assert found is not None
        return found

    @functools.cached_property
    def growing(self) -> float:
        """The bytes by which messages grow with every client that the server meets; 0 where they do not."""
        last = {self._networks[one.client]: one for one in self.seen if one.round == self.rounds - self.period}
        before = {self._networks[one.client]: one for one in self.seen if one.round == self.rounds - 2 * self.period}
        pairs = [(one, last[network]) for network, one in before.items() if network in last]
        if self.rounds < STEPS * self.period or not pairs or pairs[0][0].known == pairs[0][1].known:
            return 0.0
        first, then = pairs[0]
        return (then.bytes_down - first.bytes_down) / (then.known - first.known)

    def flops(self, visit: Visit) -> float:
        """Return the operations of a visit, which grow in a line with the samples that are computed on."""
        key = self._work_of(self._rehearsed(visit)[0])
        if key not in self._lines:
            alike = [one for one in self.seen if self._work_of(one) == key]
            self._lines[key] = _line([self._samples(one.samples) for one in alike], [one.flops for one in alike])
        fixed, each = self._lines[key]
        return fixed + each * self._samples(self.clients[visit.client].size)

    def _work_of(self, one: Seen) -> Hashable:
        """Return what the operations of a visit depend on beside samples."""
        first = one.round < self.period
        return self._networks[one.client], one.round % self.period, first, min(one.visit, 1)

    def _round(self, number: int) -> int:
        """Return the round of the rehearsal that stands for another: of a step of several exchanges the same one."""
        last = self.rounds - self.period
        return number if number < last else last + (number - last) % self.period

    def _rehearsed(self, visit: Visit) -> tuple[Seen, Group]:
        """Return the visit of the rehearsal that is most like another one: of the client, of its classes, or any."""
        client, stage, again = visit
        network = self._networks[client]
        own, alike, any_of = ("client", client), ("classes", network, self.classes(client)), ("network", network)
        ways = ((own, 0), (alike, 0), (own, 1), (alike, 1), (any_of, 0), (any_of, 1), (EVERY, 1), (EVERY, 2))
        found = ((self._seen_as(group, stage, again, loose), group) for group, loose in ways)
        return next((one, group) for one, group in found if one is not None)

    def _unlike(self, group: Group) -> bool:
        """Tell whether uploads of a group have different sizes in the same round."""
        sizes: dict[int, int] = {}
        return any(sizes.setdefault(one.round, one.bytes_up) != one.bytes_up for one in self._groups[group])

    def _seen_as(self, group: Group, stage: int, again: int, loose: int) -> Seen | None:
        """Return the last visit of a group in such a round, for the first time or again, or where loose in any."""
        key = (group, stage, again, loose)
        if key not in self._like:
            fitting = [one for one in self._groups.get(group, ()) if loose > 1 or self._fits(one, stage, again, loose)]
            self._like[key] = max(fitting, key=lambda one: one.round, default=None)
        return self._like[key]

    def _fits(self, one: Seen, stage: int, again: int, loose: int) -> bool:
        same = one.round % self.period == stage % self.period and (one.round < self.period) == (stage < self.period)
        return same and (loose == 1 or min(one.visit, 1) == again)

    @functools.cached_property
    def _groups(self) -> dict[Group, list[Seen]]:
        """The visits of the rehearsal by client, by network and classes, by network, and all."""
        found: dict[Group, list[Seen]] = {}
        for one in self.seen:
            network = self._networks[one.client]
            classes = ("classes", network, self.classes(one.client))
            for group in (("client", one.client), classes, ("network", network), EVERY):
                found.setdefault(group, []).append(one)
        return found

    def _samples(self, size: int) -> float:
        """Return the samples that a visit computes on."""
        training = training_of(self.run.algorithm)
        return size if training is None else training.samples(size)


class BriefSizes(Sizes):
    """Sizes from a brief rehearsal, whose clients lack classes, so that no upload is a client's own."""

    def _up(self, visit: Visit) -> int:
        network = ("network", self._networks[visit.client])
        return self._by_classes(visit, network if network in self._groups else EVERY)


def _line(x: list[float], y: list[float]) -> tuple[float, float]:
    """Return the line through some points; one through the origin where all lie at one place."""
    if len(set(x)) < 2:
        return 0.0, float(np.mean(y)) / max(float(np.mean(x)), 1.0)
    each, fixed = np.polyfit(x, y, 1)
    return float(fixed), float(each)


def _labels(client: Client) -> ClientData:
    """Return a client's labels without its inputs."""
    assert isinstance(client, FewSamples)
    y = torch.from_numpy(client.labels)
    return ClientData(y.new_empty(len(y), 0), y)
