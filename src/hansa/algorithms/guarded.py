"""A guard of fine-tuning: it goes back to the best model and trains more slowly where the clients' loss has grown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.private import Private
from hansa.algorithms.wima import Wima
from hansa.channels.accounting import Release
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.local import Turn, judging
from hansa.training.visits import Visit, changed
from hansa.training.wrappers import Wrapper, layers, training_of
from hansa.tree import Tree, copy, nest, pick, zeros_like

GROUP = "guard"
WORSE, PACE = f"{GROUP}.worse", f"{GROUP}.pace"  # what a client reports, and what it is told
MEMORY = 0.7  # share of the smoothed loss that a round leaves as it was
LARGEST = 1e15  # a number of an upload from which training has overflowed, or soon would at the server
WORST = 1e3  # the most that a client reports, also where its loss is not finite


@dataclass(frozen=True)
class Guarded(Wrapper):
    """Wraps an algorithm that trains one model for all, and never deploys one that did worse than the phase's start.

    A visited client reports the paired loss `g_k = f_k(wᵗ) − f_k(w⁰)` of the model it received against the start w⁰,
    which it has: the mean cross-entropy, or squared error, on its training samples; and g_k².  The server smooths the
    cohort's mean, `s ← 0.7·s + 0.3·ḡ` from s = 0 on, and knows its standard error σ, `σ² ← 0.7²·σ² + 0.3²·var(ḡ)`,
    where `var(ḡ) = (1 − m/K)·var(g)/m` of m clients out of K.  Of the models that are better than w⁰ beyond doubt,
    `s < −doubt·σ`, the one with the lowest s is the best so far; it is what is deployed, and before any is found, w⁰
    is.  Where s rises above half of the lowest by more than `slack` and than `doubt·σ`, the server goes back to
    the best and divides all rates by `shrink`; the lowest counts half from then on, until cohorts confirm it, and one
    that is left within `slack` of zero was luck: the start is the best again.

    After `patience` rounds without a return all rates are multiplied by `grow`, up to `most` times the first ones: a
    head that goes further fits training samples alone.  Where a calibration has slowed the features down, since a head
    of long columns moves them far in its worst direction, they may grow on to the rate of a head that was just
    initialised.  Every return doubles the patience: the longer a phase, the less is tried.

    The model goes back, and momentum, the server's optimiser's or Mime's, begins anew, since it would repeat the way;
    what belongs together with clients' states, such as controls, stays.  The last round's step is never deployed, since
    nobody has judged it.  Of an algorithm of several exchanges the last one is judged, in which models move.  A client
    whose training overflows stays where it was and reports the worst.
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = FedAvg()
    doubt: float = 2.0
    slack: float = 0.02
    shrink: float = 4.0
    grow: float = 2.0
    patience: int = 3
    most: float = 4.0

    def __post_init__(self) -> None:
        require(not (why := unguarded(self.inner)), why)
        for key in ("doubt", "slack"):
            value = getattr(self, key)
            require(value >= 0, f"The '{key}' of a guard must be a number ≥ 0. Got {value}.")
        require(self.shrink > 1, f"The 'shrink' of a guard must be a number > 1. Got {self.shrink}.")
        for key in ("grow", "patience", "most"):
            value = getattr(self, key)
            require(value >= 1, f"The '{key}' of a guard must be a number ≥ 1. Got {value}.")

    @property
    def uplink(self) -> Mapping[str, Role]:
        """The wrapped algorithm's, and the paired loss and its square."""
        return {**self.inner.uplink, GROUP: Role.SUM}

    def server_init(self, task: Task) -> Tree:
        """Return the wrapped state, whose model is the best so far, and what the guard remembers."""
        inner = copy(self.inner.server_init(task))  # a start that is deployed is served, as after a resume
        has_model = bool(pick("model", inner))
        require(has_model, f"A guard goes back to the server's model, and {type(self.inner).__name__} keeps none.")
        return nest("inner", inner) | _model(inner) | _remembered(1.0, 0.0, 0.0, 0.0, 0.0, self.patience)

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the wrapped message, and the factor on all rates."""
        return self.inner.broadcast(task, pick("inner", server), rng) | {PACE: server[PACE]}

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out the wrapped visit at the pace told; report how the received model does against the start."""
        turns: list[Turn] = []

        def noted(turn: Turn) -> Turn:
            turns.append(turn)
            return turn

        paced = self.at_pace(task, float(down[PACE]))
        told = {key: leaf for key, leaf in down.items() if key != PACE}
        up, new = yield from changed(self.inner.visit(paced, told, state, data, rng), noted)
        received = yield judging(turns[0], turns[0].start)
        start = yield judging(turns[0], task.params())
        worse = received.loss - start.loss
        if not all(bool(leaf.abs().max() < LARGEST) for leaf in up.sums.values()):
            up, new, worse = replace(up, sums=zeros_like(up.sums)), state, WORST
        worse = max(-WORST, min(WORST, worse if worse == worse else WORST))
        reported = {WORSE: up.weight * torch.tensor([worse, worse**2], dtype=torch.float64)}
        flops = up.flops + 2 * len(data) * (task.features_flops + task.head_flops)
        return replace(up, sums=up.sums | reported, flops=flops), new

    def check(self, task: Task, up: Update) -> str:
        """Return why no client can have this loss, or what the wrapped algorithm finds."""
        mean, square = (up.sums[WORSE] / up.weight).tolist()
        told = abs(mean) <= WORST and math.isclose(square, mean**2, rel_tol=1e-6, abs_tol=1e-12)
        return self.inner.check(task, _inner(up)) if told else f"it reports a change of its loss beyond ±{WORST:g}"

    def encode(self, sums: Tree) -> Tree:
        """Encode as the wrapped algorithm does; the loss travels as it is."""
        return self.inner.encode(_rest(sums)) | {WORSE: sums[WORSE]}

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Invert `encode`."""
        return self.inner.decode(task, _rest(wire)) | {WORSE: wire[WORSE]}

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Judge the model that was sent, take the wrapped step, and go back where the model was worse."""
        pace, score, error, low, good, patience = (float(server[f"guard.{key}"]) for key in GUARD)
        inner, best = pick("inner", server), _model(server)
        stepped = self.inner.server_step(task, inner, _inner(cohort))
        if (task.round + 1) % self.exchanges:
            return server | nest("inner", stepped)
        mean, square = (cohort.sums[WORSE] / cohort.weight).tolist()
        score = MEMORY * score + (1 - MEMORY) * mean
        unseen = max(0.0, 1 - cohort.count / task.population)  # where everybody has spoken, nothing is left to chance
        variance = unseen * max(0.0, square - mean**2) / cohort.count
        error = math.hypot(MEMORY * error, (1 - MEMORY) * math.sqrt(variance))
        chance = max(self.slack, self.doubt * error)  # cohorts that differ would else stop what trains well
        if score > low / 2 + chance:
            low /= 2  # some of it was the cohort's luck
            if low > -self.slack:
                best, low = _model(self.inner.server_init(task)), 0.0
            back = _remembered(pace / self.shrink, low, 0.0, low, 0.0, 2 * patience)
            return nest("inner", stepped | self._calm(task) | best) | best | back
        if score < min(low, -self.doubt * error):
            best, low = _model(inner), score
        good += 1
        if good >= patience:
            pace, good = min(self._reach(task), self.grow * pace), 0.0
        return nest("inner", stepped) | best | _remembered(pace, score, error, low, good, patience)

    def _reach(self, task: Task) -> float:
        """Return the largest pace: `most`, or what gives features back the rate that a calibration took from them."""
        return max(self.most, 1 / task.rates[1]) if task.rates else self.most

    def at_pace(self, task: Task, pace: float) -> Task:
        """Return the task at a pace; what goes beyond `most` hastens the features alone."""
        whole = min(pace, self.most)
        rates = (task.rates[0], task.rates[1] * pace / whole) if task.rates else ()
        return replace(task, pace=whole, rates=rates)

    def _calm(self, task: Task) -> Tree:
        """Return the wrapped algorithm's momentum as it began."""
        fresh = self.inner.server_init(task)
        return {key: leaf for key, leaf in fresh.items() if key.partition(".")[0] in ("optimiser", "momentum")}

    def _best(self, server: Tree) -> Tree:
        """Return the wrapped state with the best model so far."""
        return pick("inner", server) | _model(server)

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the best model so far."""
        return self.inner.model(task, self._best(server))

    def serve(self, task: Task, server: Tree) -> Tree:
        """Return what the wrapped algorithm would serve of the best model."""
        return self.inner.serve(task, self._best(server))

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Show the rates of the next round, beside the wrapped algorithm's exhibits, of the best model."""
        local, paced = training_of(self.inner), self.at_pace(task, float(server[PACE]))
        trained = {key.partition(".")[0]: key for key in task.params() if local is not None and local.trains(key)}
        rates = {part: [local.rate(paced, key)] for part, key in trained.items() if local is not None}
        note = f"At the guard's pace of {float(server[PACE]):g}, of which the head takes {self.most:g} at most."
        own = (Exhibit("learning rates", "curve", rates, note),) if rates else ()
        return (*own, *self.inner.exhibits(task, self._best(server), observed))

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return None: nothing protects what clients report."""
        return None


GUARD = ("pace", "score", "error", "low", "good", "patience")  # what the guard remembers, in this order


def unguarded(algorithm: Algorithm) -> str:
    """Return why no guard can stand around an algorithm; empty where one can."""
    name, roles = type(algorithm).__name__, set(algorithm.uplink.values())
    if training_of(algorithm) is None or algorithm.personal or Role.STEP not in roles:
        return f"A guard needs an algorithm that trains one model for all. Got {name}."
    if isinstance(algorithm, Wima):
        return "A guard stands inside WIMA, around what trains: WIMA then averages the best models so far."
    if Role.EACH in roles or algorithm.partial:
        return f"A guard judges a round by the sum of its uploads, and {name} needs more than that."
    if any(isinstance(one, (Private, Guarded)) for one in layers(algorithm)):
        return f"A guard cannot wrap {name}: nothing would protect the losses beside it, and a second guard is none."
    return ""


def _model(server: Tree) -> Tree:
    """Return the model of a state: what goes back."""
    return nest("model", pick("model", server))


def _remembered(*numbers: float) -> Tree:
    return nest("guard", {key: torch.tensor(one, dtype=torch.float64) for key, one in zip(GUARD, numbers, strict=True)})


def _rest(tree: Tree) -> Tree:
    return {key: leaf for key, leaf in tree.items() if key != WORSE}


def _inner(up: Update) -> Update:
    return replace(up, sums=_rest(up.sums))
