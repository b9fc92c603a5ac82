"""A guard that every client is to itself: it goes back, and trains more slowly, where its own loss has grown."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedalt import FedAlt
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedbn import FedBN
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.fedrep import FedRep
from hansa.algorithms.fedsim import FedSim
from hansa.algorithms.lg_fedavg import LGFedAvg
from hansa.algorithms.local import Local
from hansa.algorithms.personal import Personal
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.task import ClientData, Task
from hansa.training.local import Trained, Turn, judging
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper, layers
from hansa.tree import Tree

PACE = "guard.pace"  # in a client's state: the factors on the rates of its turns
# Their clients take plain steps on their own loss, so that staying where one was is a visit like any other.
STEPS = (Personal, FedSim, FedAlt, FedPer, FedRep, FedBN, LGFedAvg, Ditto, Local, FedAvg, FedProx)


@dataclass(frozen=True)
class SelfGuarded(Wrapper):
    """Wraps an algorithm whose clients deploy models of their own; each trains at the pace that its own loss allows.

    Rates from statistics fit all samples together.  A client's own may bend its loss far more, or far less, and nobody
    else hears of its model: so it judges that itself.  After every epoch it compares the loss on its training samples,
    with the pull of an anchor where there is one, with the lowest of the visit.  An epoch that did not make it grow is
    kept.  Any other is taken back, all rates of the client are divided by `shrink`, and it is tried again, `tries`
    times in all: then the client stays where it is until its next visit.  After an epoch that was kept at once all
    rates are multiplied by `grow`; none becomes higher than the training's `lr`, below which statistics had held it,
    and those of features that are shared no higher than the first ones: others' heads stand above them.  The first turn
    of a visit and those after it have a pace each, which is a part of the client's state.

    What is taken back moves nothing at the server either, and nothing more is sent.  The guard keeps training from
    breaking what was there; of samples that a client has not trained on it knows nothing.
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = FedSim()
    shrink: float = 4.0
    grow: float = 4.0
    tries: int = 5

    def __post_init__(self) -> None:
        require(not (why := not_self_guarded(self.inner)), why)
        require(self.shrink > 1, f"The 'shrink' of a client's guard must be a number > 1. Got {self.shrink}.")
        for key in ("grow", "tries"):
            value = getattr(self, key)
            require(value >= 1, f"The '{key}' of a client's guard must be a number ≥ 1. Got {value}.")

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return the wrapped state and a pace of one."""
        return self.inner.client_init(task, data) | _noted([1.0, 1.0])

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out the wrapped visit, of whose turns no epoch is kept that made the loss grow."""
        paces, number = state[PACE].tolist(), 0
        visit = self.inner.visit(task, down, _rest(state), data, rng)
        turn = next(visit)
        try:
            while True:
                if turn.measures:
                    trained = yield turn
                else:
                    trained, paces[number] = yield from self._guarded(turn, down, state, data, paces[number])
                    number = 1
                turn = visit.send(trained)
        except StopIteration as end:
            up, new = end.value
        return up, new | _noted(paces)

    def _guarded(
        self, turn: Turn, down: Tree, state: Tree, data: ClientData, pace: float
    ) -> Generator[Turn, Trained, tuple[Trained, float]]:
        """Carry out a turn epoch by epoch; return what of it was kept, and the pace of the next one."""
        remembers = turn.remembers or turn.training.momentum > 0 or turn.training.optimiser != "sgd"
        to_judge = len(data) * (turn.task.features_flops + turn.task.head_flops)
        own = _own_features(turn, down, state)
        best, flops = Trained(turn.start, 0, 0.0, turn.memory, turn.correction.anchor), to_judge
        lowest, _ = yield from _judged(turn, turn.start, len(data))
        for epoch in _epochs(turn):
            before = pace
            for _ in range(self.tries):
                task = at_pace(turn.task, pace, own)
                trained = yield replace(epoch, task=task, start=best.params, memory=best.memory, remembers=remembers)
                height, params = yield from _judged(turn, trained.params, len(data))
                flops += trained.flops + to_judge
                if height <= lowest:
                    break
                pace /= self.shrink
            else:
                break
            best, lowest = trained._replace(params=params, steps=best.steps + trained.steps), height
            pace = min(_fastest(turn, own), self.grow * pace) if pace == before else pace  # kept at once
        return best._replace(flops=flops, memory=best.memory if turn.remembers else {}), pace

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Deploy as the wrapped algorithm does."""
        return self.inner.deploy(task, served, _rest(state), data, rng)


def at_pace(task: Task, pace: float, own: bool) -> Task:
    """Return the task at a pace; one above 1 brings rates nearer to what they were before statistics lowered them."""
    if pace <= 1:
        return replace(task, pace=task.pace * pace)
    largest, factor = task.rates
    return replace(task, rates=(largest * pace, min(1.0, factor * pace) if own else factor))


def _fastest(turn: Turn, own: bool) -> float:
    """Return the pace at which all rates that may grow are those of the training itself."""
    if not turn.task.rates:
        return 1.0
    largest, factor = turn.task.rates
    return max(1.0, turn.training.lr / largest, 1 / factor if own else 1.0)


def _own_features(turn: Turn, down: Tree, state: Tree) -> bool:
    """Tell whether all features that train are the client's own: they start from its state, and not from a message."""
    moving = [key for key in turn.training.weights(turn.task, turn.start) if key.startswith("features.")]
    told = any(turn.start[key] is down.get(f"model.{key}") for key in moving)
    return not told and all(turn.start[key] is state.get(f"own.{key}") for key in moving)


def _judged(turn: Turn, params: Tree, samples: int) -> Generator[Turn, Trained, tuple[float, Tree]]:
    """Return what a turn minimises at some parameters, but for its weight decay, and the parameters."""
    told = yield judging(turn, params)
    assert told.losses is not None, "a turn that judges tells losses"
    anchor, strength = turn.correction.anchor, turn.correction.strength
    away = sum(float((told.params[key] - leaf).square().sum()) for key, leaf in anchor.items()) if strength else 0.0
    return float(told.losses.sum()) / samples + strength / 2 * away, told.params


def _epochs(turn: Turn) -> Iterator[Turn]:
    """Yield the epochs of a turn; one that counts steps is taken or left as a whole."""
    whole = turn.training.steps is not None
    once = turn if whole else replace(turn, training=replace(turn.training, epochs=1))
    yield from (once for _ in range(1 if whole else turn.training.epochs))


def not_self_guarded(algorithm: Algorithm) -> str:
    """Return why clients cannot guard themselves under an algorithm; empty where they can."""
    name, odd = type(algorithm).__name__, [one for one in layers(algorithm) if not isinstance(one, STEPS)]
    if not algorithm.personal:
        says = "A client's own guard needs clients that deploy models of their own; use 'guarded' for one of all."
        return f"{says} Got {name}."
    if odd:
        says = "A client's own guard needs plain steps on the client's loss, and"
        return f"{says} {type(odd[0]).__name__} takes others; leave the guard out."
    return ""


def _noted(paces: Sequence[float]) -> Tree:
    return {PACE: torch.tensor(paces, dtype=torch.float64)}


def _rest(state: Tree) -> Tree:
    return {key: leaf for key, leaf in state.items() if key != PACE}
