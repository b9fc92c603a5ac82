"""Forgetting along chains: what a model still knows of a chain's earlier clients once later ones have trained it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hansa.data.federation import has_samples
from hansa.engines.session import ClientFailed, Lane, PhaseContext, perform, receive
from hansa.metrics.facts import CHAIN
from hansa.metrics.suite import Suite, evaluate_outputs, finite, outputs
from hansa.payload import relay
from hansa.running.phase_run import PhaseRun
from hansa.running.round_book import RoundBook
from hansa.tree import Tree, pick


def along_chain(run: PhaseRun, lane: Lane) -> dict[str, float]:
    """Return how good a chain's model is on its earlier clients: after each one's own turn, and at the chain's end.

    R_ii and R_Ti of Lopez-Paz and Ranzato (2017), each the mean over all clients but the last; the difference is
    their backward transfer.  The chain is trained by itself before its round is, so that visits find the states and
    seeds that they will find again, and nothing of it is stored or charged.
    """
    replay, down, own = Replay(run), lane.down, dict[str, float | None]()
    for client, visit in zip(lane.chain, lane.visits, strict=True):
        if (moved := replay.visit(client, visit, down)) is not None:
            down = moved
            own.pop(client, None)  # of several turns the last one counts
            own[client] = replay.score(client, down)
    earlier = {client: score for client, score in list(own.items())[:-1] if score is not None}
    ends = [score for client in earlier if (score := replay.score(client, down)) is not None]
    return replay.named(list(earlier.values()), ends) if ends else {}


@dataclass(eq=False)
class Replay:
    """A chain of the round at hand, trained client by client without leaving a trace in the run."""

    run: PhaseRun
    states: dict[str, Tree] = field(default_factory=dict)  # after the visits so far

    def __post_init__(self) -> None:
        stored, headline = self.run.side.stored, self.run.experiment.suite.headline
        side = replace(self.run.side, stored=lambda client: self.states.get(client) or stored(client))
        self.context: PhaseContext = replace(self.run.context, side=side, deadline=None)
        self.suite, self.book = Suite((headline,), headline=headline), RoundBook(self.run)
        tested = any(has_samples(client, "test") for client in self.run.federation.clients.values())
        self.split = "test" if tested else "train"

    def visit(self, client: str, visit: int, down: Tree) -> Tree | None:
        """Return the message that a client hands on; None where it fails, as it will in the round."""
        task, context = self.run.round_task, self.context
        try:
            reply = perform(context.side, task, client, self.book.seed(client, visit), down)
            up = receive(context, task, down, reply)
        except ClientFailed:
            return None
        self.states |= {client: reply.state} if reply.state else {}
        return relay(context.algorithm.uplink, down, up)

    def score(self, client: str, down: Tree) -> float | None:
        """Return how good a message's model is on a client's samples; None where it has none, NaN for no answer."""
        samples, algorithm = self.run.federation.clients[client], self.context.algorithm
        if self.split == "test" and not has_samples(samples, "test"):
            return None
        data, view = getattr(samples, self.split), self.context.side.view(client, samples.train, self.run.round_task)
        model = view.params() | pick("model", down)
        found = evaluate_outputs(self.suite, outputs(lambda x: algorithm.outputs(view, model, x), data.x), data.y)
        return found.get(self.suite.headline.name, float("nan"))

    def named(self, own: list[float], end: list[float]) -> dict[str, float]:
        """Return both means by name, which tells on which samples; none where a model's answers are no numbers."""
        name = f"{CHAIN}{'' if self.split == 'test' else 'train_'}{self.suite.headline.name}"
        found = finite({f"{name}_own": sum(own) / len(own), f"{name}_end": sum(end) / len(end)})
        return found if len(found) == 2 else {}
