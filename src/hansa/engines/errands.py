"""A phase in messages: how it is described to whoever holds clients, and what is carried out there by them.

The process engine and sites that are elsewhere do the same: they read a phase from a message, visit clients, and
evaluate what these deploy.  Only how messages travel, and where samples and states come from, differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hansa.channels.fixed_point import FixedPoint, Words
from hansa.data.federation import Client
from hansa.engines.client_side import ClientSide
from hansa.engines.evaluation import rows_of_clients
from hansa.engines.session import EvaluationRequest, PhaseContext, Reply, client_errors, perform, receive
from hansa.engines.trainer import on_device
from hansa.errors import HansaError, require
from hansa.io import wire
from hansa.io.codec import piece_from_table, piece_to_table
from hansa.io.trust import Trust
from hansa.metrics.suite import Suite
from hansa.task import ClientData
from hansa.task_table import task_from_table, task_to_table
from hansa.training.carried import Summed, carried, uncarried
from hansa.training.visits import Carry
from hansa.tree import Tree, nest, pick

Message = Sequence[wire.Buffer]
States = Callable[[int, str], Tree | None]  # by the depth of a phase, 0 the first, and by client


def sides_of(side: ClientSide) -> list[ClientSide]:
    """Return the phases that a client's start depends on, the first one first."""
    found = [side]
    while found[0].individual_start and found[0].before is not None:
        found.insert(0, found[0].before)
    return found


def describe(side: ClientSide) -> dict[str, Any]:
    """Return one phase as JSON; its leaves travel beside it."""
    algorithm, channel = uncarried(side.algorithm)
    through = {} if channel is None else {"channel": piece_to_table("channel", channel)}
    return {
        "algorithm": piece_to_table("algorithm", algorithm),
        **through,
        "task": task_to_table(side.task),
        "seed": side.seed,
        "place": side.place,
    }


def describe_suite(suite: Suite) -> dict[str, Any]:
    """Return the metrics of a run as JSON."""
    return {
        "metrics": [piece_to_table("metric", metric) for metric in suite.metrics],
        "tables": [piece_to_table("metric", table) for table in suite.tables],
        "headline": suite.metrics.index(suite.headline),
    }


def phase_message(sides: Sequence[ClientSide], suite: Suite) -> tuple[dict[str, Any], list[Message]]:
    """Return a phase, and those that a client's start depends on, as a head and a message of leaves for each."""
    head = {"sides": [describe(side) for side in sides], **describe_suite(suite)}
    return head, [wire.parts(nest("start", one.task.start) | nest("served", one.served or {})) for one in sides]


def request_message(request: EvaluationRequest) -> tuple[dict[str, Any], list[Message]]:
    """Return a request for evaluation as a head and messages: what is served, and public samples where there are."""
    public = [] if request.public is None else [wire.parts({"x": request.public.x, "y": request.public.y})]
    head = {"clients": list(request.clients), "split": request.split, "start": request.start, "public": bool(public)}
    return head, [wire.parts(request.served), *public]


class Errands:
    """A phase as messages describe it, where clients are: visits and evaluations.

    Whoever makes it says what it trusts; no message can.
    """

    def __init__(
        self,
        head: Mapping[str, Any],
        trees: Sequence[Tree],
        clients: Mapping[str, Client],
        states: States,
        trust: Trust,
        device: str = "cpu",
    ):
        self.clients, self.states, self.trust = clients, states, trust
        self.carry: Carry | None = None if device == "cpu" else on_device(device)
        self.depth = len(head["sides"]) - 1
        self.side = self._sides(head["sides"], trees)
        self.context = PhaseContext(self.side.algorithm, self.side.task, self.side)
        self.task = self.side.task  # in the round at hand
        metrics = tuple(piece_from_table("metric", table, trust=trust) for table in head["metrics"])
        tables = tuple(piece_from_table("metric", table, trust=trust) for table in head["tables"])
        self.suite = Suite(metrics, tables, metrics[head["headline"]])

    def _sides(self, heads: Sequence[Mapping[str, Any]], trees: Sequence[Tree]) -> ClientSide:
        """Return the client's side of the last phase, on top of those before it."""
        side: ClientSide | None = None
        for depth, (head, tree) in enumerate(zip(heads, trees, strict=True)):
            task = task_from_table(head["task"], pick("start", tree), trust=self.trust)
            algorithm = piece_from_table("algorithm", head["algorithm"], trust=self.trust)
            table = head.get("channel")
            channel = piece_from_table("channel", table, trust=self.trust) if table else None
            side = ClientSide(
                carried(algorithm, channel),
                task,
                self.clients,
                self._stored(depth),
                head["seed"],
                head["place"],
                side,
                pick("served", tree),
            )
        require(side is not None, "A message describes no phase.")
        assert side is not None
        return side

    def _stored(self, depth: int) -> Callable[[str], Tree | None]:
        return lambda client: self.states(depth, client)

    def visit(self, client: str, seed: int, round: int, down: Tree) -> Reply:
        """Carry out a visit; ClientFailed where it cannot be."""
        with client_errors(client):
            require(client in self.clients, "It is not held here.")
            self.task = self.task if self.task.round == round else replace(self.side.task, round=round)
            return perform(self.side, self.task, client, seed, down, self.carry)

    @property
    def summed(self) -> bool:
        """Whether uploads of this phase are for a secure sum."""
        return isinstance(self.side.algorithm, Summed)

    def words(self, reply: Reply, down: Tree, clients: int) -> Words:
        """Return a visit's upload as a secure sum of so many adds it, once it has passed the check that no server can.

        ClientFailed where it does not pass, or does not fit.
        """
        up = receive(self.context, self.task, down, reply)
        with client_errors(reply.client):
            layout = self.context.check.layout(self.task, down, fresh=True)
            require(layout is not None, "The layout of its uploads is not known before a visit.")
            return FixedPoint(layout or {}, self.side.algorithm.uplink, clients).encode(up)

    def evaluate(self, head: Mapping[str, Any], trees: Sequence[Tree]) -> list[Tree]:
        """Return rows of metrics; ClientFailed where they cannot be made."""
        with client_errors(head["clients"][0]):
            strangers = [client for client in head["clients"] if client not in self.clients]
            require(not strangers, f"Client '{strangers[0] if strangers else ''}' is not held here.")
            public = ClientData(trees[1]["x"], trees[1]["y"]) if head["public"] else None
            request = EvaluationRequest(head["clients"], trees[0], self.suite, head["split"], public, head["start"])
            return list(rows_of_clients(self.side, request))


def strangers_errands(
    head: Mapping[str, Any], trees: Sequence[Tree], clients: Mapping[str, Client], states: States, trust: Trust
) -> Errands:
    """Read a phase that a stranger describes, with a sentence for whatever is odd about it."""
    try:
        return Errands(head, trees, clients, states, trust)
    except HansaError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise HansaError(f"A message describes no phase: {type(error).__name__}: {error}"[:300]) from error
