"""The cost of a run before it is run: a rehearsal of every phase, counted on over all rounds that are planned.

Bytes are exact where the sizes of messages follow from a client's classes and samples: the rehearsal gives every size
there is, and the planner who is visited when.  They are not where earlier phases decide who trains with whom, nor where
a guard may go back to a model that clients have.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hansa.algorithms.guarded import Guarded
from hansa.contract import Algorithm
from hansa.data.dataset import Array
from hansa.engines.threads import on_threads, threads_for
from hansa.lazy import torch
from hansa.orchestrate.planner import without
from hansa.running.experiment import Experiment, Phase
from hansa.running.ledger import COUNTS
from hansa.running.phase_run import PhaseRun
from hansa.running.rehearsal import Rehearsed, evaluating, rehearsals
from hansa.running.sizes import BriefSizes, Sizes, Visit
from hansa.task import Task
from hansa.training.wrappers import Wrapper, training_of
from hansa.tree import Tree

Planned = Mapping[Visit, tuple[int, int]]  # how often, and how many clients the server had met before, added up
TOLD = 4096  # different visits whose uploads are looked at where an answer is wanted soon
MATRIX = 512  # rows of the matrices whose product is timed
CALLS = 5  # that are timed


@dataclass(frozen=True, eq=False)
class Traffic:
    """What a phase will send: columns of the ledger, a value a client."""

    name: str
    clients: tuple[str, ...]
    columns: Mapping[str, Array]  # visits, bytes_up, bytes_down and bytes_evaluate
    exact: bool  # whether bytes are; not where what is learnt decides who is visited, or what is sent

    def total(self, column: str) -> float:
        """Return the sum of a column over clients."""
        return float(self.columns[column].sum())


@dataclass(frozen=True, eq=False)
class PhaseCost(Traffic):
    """What a phase will cost: the ledger's column of operations too, and estimates of time and memory."""

    seconds: float  # of this machine, one client after the other
    client_memory: int  # bytes of the client that needs most: weights, gradients, a batch and what it leaves behind
    server_memory: int  # bytes of the server's state and one upload


def predict(experiment: Experiment) -> list[PhaseCost]:
    """Return the cost of every phase; nothing is run but a few rounds on a few samples of every client."""
    return [
        _cost(experiment, phase, found) for phase, found in zip(experiment.phases, rehearsals(experiment), strict=True)
    ]


def predict_traffic(experiment: Experiment) -> list[Traffic]:
    """Return what every phase will send; soon, because only as many visits are rehearsed as tell sizes."""
    found = []
    for phase, one in zip(experiment.phases, rehearsals(experiment, brief=True), strict=True):
        sizes = BriefSizes(one, experiment.federation.clients)
        found.append(_traffic(experiment, phase, sizes, _planned(phase, sizes), TOLD))
    return found


def _cost(experiment: Experiment, phase: Phase, found: Rehearsed) -> PhaseCost:
    run, sizes = found.run, Sizes(found, experiment.federation.clients)
    planned, flops = _planned(phase, sizes), np.zeros(len(run.names))
    sent, row = _traffic(experiment, phase, sizes, planned), {name: place for place, name in enumerate(run.names)}
    for visit, (count, _) in planned.items():
        flops[row[visit.client]] += count * sizes.flops(visit)
    with on_threads(threads_for("auto", run.algorithm, run.task)):  # as many as a round has
        rate = _rate(run)
    overhead = max(0.0, found.seconds - found.flops / rate) / max(found.visits, 1)  # of a visit
    return PhaseCost(
        sent.name,
        sent.clients,
        {**sent.columns, "flops": flops},
        sent.exact,
        float(flops.sum()) / rate + sent.total("visits") * overhead,
        _client_memory(run),
        _bytes(run.server) + max((one.bytes_up for one in found.seen), default=0),
    )


def _traffic(experiment: Experiment, phase: Phase, sizes: Sizes, planned: Planned, most: int | None = None) -> Traffic:
    """Return what is sent; of more than `most` different visits one in so many tells the upload of those after it."""
    run, row = sizes.run, {name: place for place, name in enumerate(sizes.run.names)}
    columns = {key: np.zeros(len(row), dtype=np.int64) for key in COUNTS}
    every, up = 1 if most is None else max(1, len(planned) // most), 0
    for place, (visit, (count, known)) in enumerate(planned.items()):
        at = row[visit.client]
        up = sizes.up(visit) if place % every == 0 else up
        columns["bytes_up"][at] += count * up
        columns["bytes_down"][at] += sizes.down(visit, count, known)
        columns["bytes_down"][at] += 0 if columns["visits"][at] else run.setup_bytes_of(visit.client)
        columns["visits"][at] += count
    told, speaks = _evaluations(sizes.found, phase), evaluating(experiment)
    columns["bytes_evaluate"] += np.array([told[row[speaks.get(name, name)]] for name in row], dtype=np.int64)
    learnt = _guarded(run) or (run.described and phase.orchestration.grouped)
    unknown = sizes.growing or sizes.rough or every > 1 or learnt
    return Traffic(phase.name, tuple(row), columns, exact=not unknown)


def _guarded(run: PhaseRun | None) -> bool:
    """Tell whether a guard may go back to models that clients have already, in this phase or before."""
    if run is None:
        return False
    algorithm: Algorithm | None = run.algorithm
    while algorithm is not None and not isinstance(algorithm, Guarded):
        algorithm = algorithm.inner if isinstance(algorithm, Wrapper) else None
    return algorithm is not None or _guarded(run.previous)


def _planned(phase: Phase, sizes: Sizes) -> Planned:
    """Return how often there is a visit of each kind, and the sum of the clients that the server had met by then."""
    met, found = Counter[str](), dict[Visit, tuple[int, int]]()
    for number, cohort in _cohorts(sizes.run, phase):
        known = len(met)
        for client in cohort:
            visit = sizes.visit(client, number, met[client])
            count, before = found.get(visit, (0, 0))
            found[visit] = (count + 1, before + known)
            met[client] += 1
    return found


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
