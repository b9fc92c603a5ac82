"""The cost of a run before it is run: a rehearsal of every phase, counted on over all rounds that are planned.

Bytes are exact where the sizes of messages follow from a client's classes and samples: the rehearsal gives every size
there is, and the planner who is visited when.  They are not where earlier phases decide who trains with whom.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hansa.data.dataset import Array
from hansa.data.federation import Client
from hansa.engines.session import NUMBERS
from hansa.engines.threads import on_threads, threads_for
from hansa.io import wire
from hansa.lazy import torch
from hansa.orchestrate.planner import without
from hansa.running.experiment import Experiment, Phase
from hansa.running.ledger import COUNTS
from hansa.running.phase_run import PhaseRun
from hansa.running.rehearsal import STEPS, FewSamples, Rehearsed, Seen, classes_of, evaluating, rehearsals
from hansa.task import ClientData, Task
from hansa.training.visits import AddsUp
from hansa.training.wrappers import client_side, training_of
from hansa.tree import Tree

Group = tuple[Hashable, ...]  # of visits: a kind of group, and which one
EVERY: Group = ("all",)
MATRIX = 512  # rows of the matrices whose product is timed
CALLS = 5  # that are timed


@dataclass(frozen=True, eq=False)
class PhaseCost:
    """What a phase will cost: the ledger's columns, a value a client, and estimates of time and memory."""

    name: str
    clients: tuple[str, ...]
    columns: Mapping[str, Array]  # visits, bytes_up, bytes_down, bytes_evaluate and flops
    seconds: float  # of this machine, one client after the other
    client_memory: int  # bytes of the client that needs most: weights, gradients, a batch and what it leaves behind
    server_memory: int  # bytes of the server's state and one upload
    exact: bool  # whether bytes are; not where what earlier phases learn decides who is visited

    def total(self, column: str) -> float:
        """Return the sum of a column over clients."""
        return float(self.columns[column].sum())


def predict(experiment: Experiment) -> list[PhaseCost]:
    """Return the cost of every phase; nothing is run but a few rounds on a few samples of every client."""
    return [
        _cost(experiment, phase, found) for phase, found in zip(experiment.phases, rehearsals(experiment), strict=True)
    ]


def _cost(experiment: Experiment, phase: Phase, found: Rehearsed) -> PhaseCost:
    run, row = found.run, {name: place for place, name in enumerate(found.run.names)}
    columns = {key: np.zeros(len(row), dtype=np.int64) for key in COUNTS} | {"flops": np.zeros(len(row))}
    sizes, visits = Sizes(found, experiment.federation.clients), Counter[str]()
    for number, cohort in _cohorts(run, phase):
        known = len(visits)
        for client in cohort:
            at, before = row[client], visits[client]
            columns["visits"][at] += 1
            columns["bytes_up"][at] += sizes.up(client, number, before)
            columns["bytes_down"][at] += sizes.down(client, number, known)
            columns["bytes_down"][at] += 0 if before else run.setup_bytes_of(client)
            columns["flops"][at] += sizes.flops(client, number, before)
            visits[client] += 1
    told, speaks = _evaluations(found, phase), evaluating(experiment)
    columns["bytes_evaluate"] += np.array([told[row[speaks.get(name, name)]] for name in row], dtype=np.int64)
    with on_threads(threads_for("auto", run.algorithm, run.task)):  # as many as a round has
        rate = _rate(run)
    overhead = max(0.0, found.seconds - found.flops / rate) / max(found.visits, 1)  # of a visit
    return PhaseCost(
        phase.name,
        tuple(row),
        columns,
        float(columns["flops"].sum()) / rate + visits.total() * overhead,
        _client_memory(run),
        _bytes(run.server) + max((one.bytes_up for one in found.seen), default=0),
        exact=not sizes.growing and not sizes.rough and not (run.described and phase.orchestration.grouped),
    )


def _cohorts(run: PhaseRun, phase: Phase) -> Iterator[tuple[int, list[str]]]:
    """Yield who is visited, round by round."""
    for number in range(phase.rounds):
        cohort = number // run.algorithm.exchanges
        missing = run.planner.missing(cohort)
        yield number, [name for leg in run.planner.round(cohort) for name in without(leg.chain, missing)]


def _evaluations(found: Rehearsed, phase: Phase) -> Array:
    last, every = len(found.evaluated) - 1, phase.evaluate_every
    due = [number for number in range(phase.rounds) if (number + 1) % every == 0 or number + 1 == phase.rounds]
    total: Array = found.before + sum(
        (found.evaluated[min(number, last)] for number in due), start=np.zeros(1, np.int64)
    )
    return total


class Sizes:
    """Sizes of messages and operations of a visit, from the visit of the rehearsal that is most like it."""

    def __init__(self, found: Rehearsed, clients: Mapping[str, Client]):
        self.run, self.clients, self.seen = found.run, clients, found.seen
        self.period, self.rounds = self.run.algorithm.exchanges, self.run.phase.rounds
        self._networks = {name: self.run.task.networks.get(name) for name in self.run.names}
        self._classes = {name: classes_of(self.run.federation.clients[name]) for name in self.run.names}
        self._like: dict[Hashable, Seen | None] = {}
        self._lines: dict[Hashable, tuple[float, float]] = {}
        self._own: dict[str, int] = {}
        self.rough = False  # whether a client's classes were never rehearsed, and uploads depend on them

    def up(self, client: str, number: int, visits: int) -> int:
        """Return the bytes of an upload."""
        adding = client_side(self.run.algorithm)
        if not isinstance(adding, AddsUp) or self.run.experiment.channel is not None:
            found, group = self._visit(client, number, visits)
            self.rough = self.rough or (group[0] in ("network", "all") and self._unlike(group))
            return found.bytes_up
        if client not in self._own:  # which may depend on how many samples it has
            shape = adding.upload_shape(self.run.task, _labels(self.run.federation.clients[client]))
            self._own[client] = wire.cost(shape, NUMBERS)
        return self._own[client]

    def down(self, client: str, number: int, known: int) -> int:
        """Return the bytes of the round's message, where the server has met so many clients before."""
        stage, network = self._round(number), ("network", self._networks[client])
        found = self._seen_in(network if network in self._groups else EVERY, stage)
        return found.bytes_down + (round(self.growing * (known - found.known)) if stage >= self.period else 0)

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

    def flops(self, client: str, number: int, visits: int) -> float:
        """Return the operations of a visit, which grow in a line with the samples that are computed on."""
        key = self._work_of(self._visit(client, number, visits)[0])
        if key not in self._lines:
            alike = [one for one in self.seen if self._work_of(one) == key]
            self._lines[key] = _line([self._samples(one.samples) for one in alike], [one.flops for one in alike])
        fixed, each = self._lines[key]
        return fixed + each * self._samples(self.clients[client].size)

    def _work_of(self, one: Seen) -> Hashable:
        """Return what the operations of a visit depend on beside samples."""
        first = one.round < self.period
        return self._networks[one.client], one.round % self.period, first, min(one.visit, 1)

    def _round(self, number: int) -> int:
        """Return the round of the rehearsal that stands for another: of a step of several exchanges the same one."""
        last = self.rounds - self.period
        return number if number < last else last + (number - last) % self.period

    def _visit(self, client: str, number: int, visits: int) -> tuple[Seen, Group]:
        """Return the visit of the rehearsal that is most like another one: of the client, of its classes, or any."""
        stage, again = self._round(number), min(visits // self.period, 1)
        network = self._networks[client]
        own, alike, any_of = ("client", client), ("classes", network, self._classes[client]), ("network", network)
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
            classes = ("classes", network, self._classes[one.client])
            for group in (("client", one.client), classes, ("network", network), EVERY):
                found.setdefault(group, []).append(one)
        return found

    def _samples(self, size: int) -> float:
        """Return the samples that a visit computes on."""
        training = training_of(self.run.algorithm)
        return size if training is None else training.samples(size)


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


# ----------------------------------------------------------------------------------------------------- time and memory


def _bytes(tree: Tree) -> int:
    return sum(leaf.nbytes for leaf in tree.values())


def _largest(run: PhaseRun) -> str:
    sizes = run.federation.sizes()
    return max(run.names, key=lambda name: sizes[name])


def _batch(run: PhaseRun) -> tuple[Task, torch.Tensor]:
    """Return the view and a batch of the client with the most samples; the same few samples fill it."""
    name = _largest(run)
    data = run.federation.clients[name].train
    training = training_of(run.algorithm)
    size = run.federation.clients[name].size
    count = min(training.batch_size, size) if training else size
    rows = torch.arange(max(2, count)) % len(data)  # norms over a batch need two samples
    return run.side.view(name, data), data.x[rows]


def _client_memory(run: PhaseRun) -> int:
    """Estimate what the client with the most samples needs at a time."""
    view, x = _batch(run)
    params, training = view.params(), training_of(run.algorithm)
    down = run.broadcast()
    state = run.store.get(f"{run.index}/client", _largest(run)) or {}
    fixed = _bytes(params) + _bytes(down) + _bytes(state) + x.nbytes
    if training is None:
        return fixed
    moving = training.weights(view, params)
    moments = {"sgd": int(training.momentum > 0)}.get(training.optimiser, 2)
    return fixed + (1 + moments) * _bytes(moving) + _kept_for_gradients(view, moving, params, x)


def _kept_for_gradients(view: Task, moving: Tree, params: Tree, x: torch.Tensor) -> int:
    """Return the bytes that a forward pass of one batch keeps until its backward pass, beside the weights."""
    kept, weights = dict[int, int](), {leaf.data_ptr() for leaf in params.values()}

    def keep(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.data_ptr() not in weights:
            kept[leaf.data_ptr()] = leaf.nbytes
        return leaf

    traced = {key: leaf.clone() for key, leaf in params.items()}
    traced |= {key: leaf.detach().requires_grad_() for key, leaf in moving.items()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda leaf: leaf):
        view.forward(traced, x, training=True)
    return sum(kept.values())


def _rate(run: PhaseRun) -> float:
    """Measure operations a second: of a step of training, or of a product of matrices where nothing trains."""
    training = training_of(run.algorithm)
    if training is None:
        matrix = torch.ones(MATRIX, MATRIX)
        return 2 * MATRIX**3 / _time(lambda: matrix @ matrix)
    view, x = _batch(run)
    params = view.params()
    moving = {key: leaf.detach().requires_grad_() for key, leaf in training.weights(view, params).items()}

    def step() -> None:
        out = view.forward({**{key: leaf.clone() for key, leaf in params.items()}, **moving}, x, training=True)
        torch.autograd.grad(out.square().sum(), list(moving.values()), allow_unused=True)

    return max(training.flops(view) * len(x) / _time(step), 1.0)


def _time(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some calls: the first one warms up, and others share the machine."""
    taken = list[float]()
    for _ in range(CALLS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return max(min(taken), 1e-9)
