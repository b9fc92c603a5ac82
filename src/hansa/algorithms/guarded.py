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
from hansa.lazy import Tensor, torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Role, Update
from hansa.server import strata
from hansa.task import ClientData, Task
from hansa.training.judging import counts_by_class
from hansa.training.local import Turn, judging
from hansa.training.visits import Visit, changed
from hansa.training.wrappers import Wrapper, layers, training_of
from hansa.tree import Tree, copy, nest, pick, zeros_like

GROUP = "guard"
WORSE, SURPRISE = f"{GROUP}.worse", f"{GROUP}.surprise"  # what a client reports
PACE, MEAN, EXPECTED = f"{GROUP}.pace", f"{GROUP}.mean", f"{GROUP}.expected"  # what it is told
LEFT = 0.75  # of the lowest score, what must be left
KEPT = 0.8  # what a round leaves of the weight of those before it
LARGEST = 1e15  # a number of an upload from which training has overflowed, or soon would at the server
WORST = 1e3  # the most that a client reports, also where its loss is not finite


@dataclass(frozen=True)
class Guarded(Wrapper):
    """Wraps an algorithm that trains one model for all, and deploys none that clients found worse than its start.

    What is judged, and deployed, is a mean of the server's models since the phase began or it went back, in
    which one counts `memory` times what the next one does: the model of one round has just been trained on a few
    clients, and has forgotten something of all others.  Clients train from the newest model wᵗ and receive both.  With
    `memory` = 0, or where everybody takes part in every round, the mean w̄ᵗ is wᵗ itself.

    A visited client reports the paired loss `ℓ(w̄ᵗ) − ℓ(w⁰)` against the start w⁰, which it has: the cross-entropy on
    its training samples, summed by class, the counts of these, and how far its mean is from what is expected of its
    classes.  A cohort's own mean says most of all which classes it happens to have, so the server estimates that over
    all samples class by class (`hansa.server.strata`), by the shares that a calibration has counted; without these,
    with `by_class` = False, and for real targets, by the cohort's own.  Its score s is the mean of recent estimates.
    How far clients differ in what they surprise by gives its standard error σ, which is none where everybody was heard.

    Of the models that are better than w⁰ beyond doubt, `s < −doubt·σ`, the one with the lowest s is the best so far; it
    is what is deployed, and before any is found, w⁰ is.  Where s rises above three quarters of the lowest by more than
    `slack` and than `doubt·σ`, the server goes back to the best and divides all rates by `shrink`, or takes the last
    growth of them back.  The best was chosen for what a few cohorts said, so it is judged again after a return, and
    what had been said of it counts half; if it is then no better than the start, the start is the best again.

    After `patience` rounds that each found a better model, or have surely not moved the loss by `slack`, all rates are
    multiplied by `grow`, up to `most` times the first ones: a head that goes further fits training samples alone.
    Where a calibration has slowed the features down, since a head of long columns moves them far in its worst
    direction, they may grow on to the rate of a head that was just initialised.  A growth that is taken back doubles
    the patience: the longer a phase, the less is tried.  Once 2·`patience` rounds (the setting's) were none of these,
    chance is no excuse: where less than three quarters of the lowest are left the server goes back as well.  Else noise
    keeps the score from falling: the last growth is taken back, or rates are divided by `grow`, and what is there
    stays; it is the best if it is better than w⁰ beyond doubt, and this round's clients say no less.

    The model goes back, and momentum, the server's optimiser's or Mime's, begins anew, since it would repeat the way;
    what belongs together with clients' states, such as controls, stays.  The last round's step is never deployed, since
    nobody has judged it.  Of an algorithm of several exchanges the last one is judged, in which models move.  A client
    whose training overflows stays where it was and reports the worst.
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = FedAvg()
    memory: float = 0.8
    by_class: bool = True
    doubt: float = 2.0
    slack: float = 0.02
    shrink: float = 4.0
    grow: float = 2.0
    patience: int = 3
    most: float = 4.0

    def __post_init__(self) -> None:
        require(not (why := unguarded(self.inner)), why)
        require(0 <= self.memory < 1, f"The 'memory' of a guard must lie in [0, 1). Got {self.memory}.")
        for key in ("doubt", "slack"):
            value = getattr(self, key)
            require(value >= 0, f"The '{key}' of a guard must be a number ≥ 0. Got {value}.")
        require(self.shrink > 1, f"The 'shrink' of a guard must be a number > 1. Got {self.shrink}.")
        for key in ("grow", "patience", "most"):
            value = getattr(self, key)
            require(value >= 1, f"The '{key}' of a guard must be a number ≥ 1. Got {value}.")

    @property
    def uplink(self) -> Mapping[str, Role]:
        """The wrapped algorithm's, the paired loss by class, and how far it surprises."""
        return {**self.inner.uplink, GROUP: Role.SUM}

    def server_init(self, task: Task) -> Tree:
        """Return the wrapped state, whose model is the best so far, and what the guard remembers."""
        inner = copy(self.inner.server_init(task))  # a start that is deployed is served, as after a resume
        has_model = bool(pick("model", inner))
        require(has_model, f"A guard goes back to the server's model, and {type(self.inner).__name__} keeps none.")
        known = strata.unheard(len(self._shares(task)))
        classes = nest("classes", known | {"best": known["recent"]})
        return nest("inner", inner) | _model(inner) | self._mean(_model(inner)) | classes | Notes(self.patience).tree()

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the wrapped message, the factor on all rates, the mean, and what is expected of classes."""
        own = {PACE: server[f"{GROUP}.pace"], EXPECTED: strata.expected(pick("classes", server))}
        own |= nest(MEAN, pick("mean", server))
        return self.inner.broadcast(task, pick("inner", server), rng) | own

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out the wrapped visit at the pace told; report how the mean does against the start."""
        turns: list[Turn] = []

        def noted(turn: Turn) -> Turn:
            turns.append(turn)
            return turn

        own, told = pick(GROUP, down), {key: leaf for key, leaf in down.items() if not key.startswith(f"{GROUP}.")}
        paced = self.at_pace(task, float(down[PACE]))
        up, new = yield from changed(self.inner.visit(paced, told, state, data, rng), noted)
        mean = task.params() | pick("mean", own) if self.memory else turns[0].start
        judged, start = (yield judging(turns[0], mean)).losses, (yield judging(turns[0], task.params())).losses
        assert judged is not None and start is not None, "a turn that judges tells losses"
        worst, counted = WORST * len(data), counts_by_class(task, data)
        worse = (judged - start).nan_to_num(worst).clamp(-worst, worst)
        if not all(bool(leaf.abs().max() < LARGEST) for leaf in up.sums.values()):
            up, new, worse = replace(up, sums=zeros_like(up.sums)), state, WORST * counted
        summed = torch.stack([worse, counted])
        summed = summed if down[EXPECTED].numel() > 1 else summed.sum(1, keepdim=True)
        surprise = max(-WORST, min(WORST, strata.surprise(down[EXPECTED], *summed)))
        squares = up.weight * torch.tensor([surprise, surprise**2], dtype=torch.float64)
        reported = {WORSE: up.weight / len(data) * summed, SURPRISE: squares}
        flops = up.flops + 2 * len(data) * (task.features_flops + task.head_flops)
        return replace(up, sums=up.sums | reported, flops=flops), new

    def check(self, task: Task, up: Update) -> str:
        """Return why no client can have these losses, or what the wrapped algorithm finds."""
        (worse, counted), (surprise, square) = up.sums[WORSE] / up.weight, (up.sums[SURPRISE] / up.weight).tolist()
        whole = bool((counted >= 0).all()) and math.isclose(float(counted.sum()), 1.0, rel_tol=1e-6)
        told = abs(surprise) <= WORST and math.isclose(square, surprise**2, rel_tol=1e-6, abs_tol=1e-12)
        if not (whole and told and bool((worse.abs() <= WORST).all())):
            return f"it reports a change of its loss beyond ±{WORST:g}, or classes that it cannot have"
        return self.inner.check(task, _inner(up))

    def encode(self, sums: Tree) -> Tree:
        """Encode as the wrapped algorithm does; the losses travel as they are."""
        return self.inner.encode(_rest(sums)) | _own(sums)

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Invert `encode`."""
        return self.inner.decode(task, _rest(wire)) | _own(wire)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Judge the mean that was sent, take the wrapped step, and go back where the mean was worse."""
        inner, best, now = pick("inner", server), _model(server), Notes.of(server)
        stepped = self.inner.server_step(task, inner, _inner(cohort))
        if (task.round + 1) % self.exchanges:
            return server | nest("inner", stepped)
        before = pick("classes", server)
        known = strata.heard(before, cohort.sums[WORSE], KEPT) | {"best": before["best"]}
        unseen = max(0.0, 1 - cohort.count / task.population)  # where everybody has spoken, nothing is left to chance
        expected, last = strata.mean(before, self._shares(task)), now.score
        now = now.after(expected, cohort.sums[SURPRISE] / cohort.weight, unseen / cohort.count)
        if now.again and now.low < 0:
            if now.score >= 0:
                start, nothing = _model(self.inner.server_init(task)), torch.tensor([[0.0], [1.0]]).double()
                known["best"] = known["best"] * nothing
                return self._gone_back(task, stepped, start, known, replace(now, score=0.0, low=0.0))
            now, known["best"] = replace(now, low=now.score), known["recent"]
        better, proven = now.score < now.low, now.score < -self.doubt * now.error
        still = abs(now.score) + self.doubt * now.error < self.slack  # known to have moved nowhere yet
        now = now.counted(still or (better and proven))
        stale = now.stale >= 2 * self.patience
        # Cohorts that differ would stop what trains well, but not for ever.
        chance = 0.0 if stale else max(self.slack, self.doubt * now.error)
        if now.score > LEFT * now.low + chance:
            return self._gone_back(task, stepped, best, known, now.back(self.shrink))
        now = now.slower(self.grow) if stale else now
        if proven and (better or (stale and now.score < last)):  # else this model may be the one that broke
            best, now = nest("model", pick("mean", server) or pick("model", inner)), replace(now, low=now.score)
            known["best"] = known["recent"]
        now = replace(now, age=1 + self.memory * now.age if unseen else 1.0)
        if now.good >= now.patience:
            now = now.faster(min(self._reach(task), self.grow * now.pace))
        newest = pick("model", stepped)
        mean = {key: leaf.lerp(newest[key], 1 / now.age) for key, leaf in pick("mean", server).items()}
        return nest("inner", stepped) | best | nest("mean", mean) | nest("classes", known) | now.tree()

    def _gone_back(self, task: Task, stepped: Tree, model: Tree, known: Tree, now: Notes) -> Tree:
        """Return the state in which training goes on from a model that was there before, which is judged again."""
        inner, classes = stepped | self._calm(task) | model, known | {"recent": known["best"]}
        notes = replace(now, age=1.0, again=1.0).tree()
        return nest("inner", inner) | model | self._mean(model) | nest("classes", classes) | notes

    def _shares(self, task: Task) -> Tensor:
        """Return the shares of the classes whose losses are known by themselves, or of all of them together."""
        even = any(getattr(one, "weights", "samples") != "samples" for one in layers(self.inner))  # not by samples
        shares = task.shares if self.by_class and not even else ()
        return torch.tensor(shares or (1.0,), dtype=torch.float64)

    def _mean(self, model: Tree) -> Tree:
        """Return the mean of one model, where a mean is judged."""
        return nest("mean", pick("model", model)) if self.memory else {}

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
        local, paced = training_of(self.inner), self.at_pace(task, float(server[f"{GROUP}.pace"]))
        trained = {key.partition(".")[0]: key for key in task.params() if local is not None and local.trains(key)}
        rates = {part: [local.rate(paced, key)] for part, key in trained.items() if local is not None}
        note = (
            f"At the guard's pace of {float(server[f'{GROUP}.pace']):g}, of which the head takes {self.most:g} at most."
        )
        own = (Exhibit("learning rates", "curve", rates, note),) if rates else ()
        return (*own, *self.inner.exhibits(task, self._best(server), observed))

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return None: nothing protects what clients report."""
        return None


@dataclass(frozen=True)
class Notes:
    """What the guard remembers from round to round, beside models and classes."""

    patience: float  # good rounds until rates grow
    pace: float = 1.0  # the factor on all rates
    score: float = 0.0  # the change of loss, and its standard error
    error: float = 0.0
    low: float = 0.0  # the lowest score, that of the best model
    good: float = 0.0  # rounds that spoke for faster training since rates changed, and rounds since the last of them
    stale: float = 0.0
    former: float = 0.0  # the pace before the last growth; 0 where it has fallen since
    again: float = 0.0  # whether the next round judges the best model again
    age: float = 1.0  # what the models of the mean weigh together, where the newest one weighs 1
    heard: float = 0.0  # what the cohorts behind the score weigh together, likewise

    @classmethod
    def of(cls, server: Tree) -> Notes:
        """Return what a state remembers."""
        return cls(**{key: float(leaf) for key, leaf in pick(GROUP, server).items()})

    def tree(self) -> Tree:
        """Return it as leaves of a state."""
        return nest(GROUP, {key: torch.tensor(value, dtype=torch.float64) for key, value in vars(self).items()})

    def after(self, expected: float, surprise: Tensor, share: float) -> Notes:
        """Return it with the next score; `share` of the variance of what surprised is that of the cohort's mean."""
        mean, square = surprise.tolist()
        deviation, former = math.sqrt(share * max(0.0, square - mean**2)), KEPT * self.heard
        heard = 1 + former
        score = (former * self.score + expected + mean) / heard
        return replace(self, score=score, error=math.hypot(former * self.error, deviation) / heard, heard=heard)

    def counted(self, good: bool) -> Notes:
        """Return it after a round that speaks for faster training, or does not."""
        return replace(self, again=0.0, good=self.good + good, stale=0.0 if good else self.stale + 1)

    def faster(self, pace: float) -> Notes:
        """Return it at a higher pace, if there is one."""
        return replace(self, pace=pace, good=0.0, former=self.pace if pace > self.pace else 0.0)

    def slower(self, factor: float) -> Notes:
        """Return it at a lower pace: a growth is taken back, and more patience asked for; others are divided."""
        longer, pace = (2 * self.patience, self.former) if self.former else (self.patience, self.pace / factor)
        return replace(self, patience=longer, pace=pace, good=0.0, stale=0.0, former=0.0)

    def back(self, shrink: float) -> Notes:
        """Return it after a return to the best model; what was said when it was chosen counts half from then on."""
        return replace(self.slower(shrink), score=self.low, error=0.0, heard=self.heard / 2)


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


def _own(tree: Tree) -> Tree:
    return {key: tree[key] for key in (WORSE, SURPRISE)}


def _rest(tree: Tree) -> Tree:
    return {key: leaf for key, leaf in tree.items() if key not in (WORSE, SURPRISE)}


def _inner(up: Update) -> Update:
    return replace(up, sums=_rest(up.sums))
