"""One phase of a run: where it starts from, what each client has of its own, and what the clients deploy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch

from hansa.contract import Algorithm
from hansa.data.federation import Federation
from hansa.engines.session import Engine, PhaseContext, Reply, Visit
from hansa.errors import HansaError
from hansa.io import wire
from hansa.io.store import Store, fingerprint
from hansa.orchestrate.chain import Orchestration
from hansa.running.ledger import Ledger
from hansa.running.metrics import ClassScores, Evaluation, Logits, on_classes, on_clients, on_global_test, union
from hansa.seeds import generator, seed_for
from hansa.task import ClientData, Task
from hansa.tree import Tree, equal, pick


@dataclass(frozen=True)
class Phase:
    """An algorithm, who is visited, for how many rounds, and how often the result is judged.

    `remember` says what the server keeps of single uploads, for a client that may want to be forgotten later.
    """

    name: str
    algorithm: Algorithm
    orchestration: Orchestration
    rounds: int = 1
    evaluate_every: int = 1
    temperature: float = 1.0
    remember: Literal["nothing", "fingerprints", "uploads"] = "nothing"
    minimum: float = 0.5  # share of a round's clients without which the run stops
    deadline: float | None = None  # seconds a visit may take
    outside: bool = False  # whether clients' models are also judged on classes that are not their own


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything a run needs, as objects."""

    task: Task
    federation: Federation
    phases: tuple[Phase, ...]
    engine: Engine
    seed: int = 0
    origin: PhaseRun | None = None  # a phase of another run, which the first phase follows


def restore(experiment: Experiment, store: Store, index: int) -> PhaseRun:
    """The stage of a phase that has been played, as the store remembers it."""
    stage = experiment.origin
    for place in range(index + 1):
        stage = PhaseRun(experiment, place, store, stage)
    assert stage is not None
    return stage


class PhaseRun:
    """A phase of an experiment on a store, following the phase before it."""

    def __init__(self, experiment: Experiment, index: int, store: Store, previous: PhaseRun | None):
        self.experiment, self.index, self.store, self.previous = experiment, index, store, previous
        self.phase = experiment.phases[index]
        # Whether clients may deploy different models: once they have, later phases build on what each has of its own.
        self.individual: bool = self.phase.algorithm.personal or (previous is not None and previous.individual)
        self.place: int = previous.place + 1 if previous else 0  # among all phases, also those of a run continued here
        self.algorithm, self.federation = self.phase.algorithm, experiment.federation
        self.names = list(self.federation.clients)
        prior = previous.algorithm.carry(previous.task, previous.server) if previous else {}
        self.task: Task = replace(
            experiment.task,
            start=pick("model", prior),
            temperature=self.phase.temperature,
            local_labels=self.algorithm.local_labels or (previous is not None and previous.task.local_labels),
        )
        self.server: Tree = store.get(f"{index}/server") or self.algorithm.server_init(self.task, prior)
        self.ledger = Ledger(self.names, store.get(f"{index}/ledger"))
        self.setup_bytes = self._setup_bytes()
        self.round = 0
        self.failed: dict[str, str] = {}  # this round's clients that could not be used, and why

    def _setup_bytes(self) -> int:
        """What a client must be told once before it can take part: learnt leaves that are not broadcast every round."""
        everyone_was_told = self.previous is not None and self.previous.algorithm.one_shot
        known = (self.previous if everyone_was_told and self.previous else self.experiment).task.params()
        told = pick("model", self.algorithm.broadcast(self.server))
        missing = {key: leaf for key, leaf in self.task.start.items() if key not in told}
        news = {key: leaf for key, leaf in missing.items() if not equal({"": leaf}, {"": known[key]})}
        return wire.size(news) if news else 0

    @property
    def context(self) -> PhaseContext:
        """What engines need to know of the phase."""
        chains = self.phase.orchestration.plan(0, self.names, self.sampling_seed)
        own = self.previous is not None and self.previous.individual
        alike = self.phase.remember == "nothing" and not own and not self.task.local_labels
        return PhaseContext(self.algorithm, self.task, self.federation, len(chains), alike, self.phase.deadline)

    def start(self, client: str) -> Tree:
        """The leaves a client carries over: its own model, where an earlier phase personalised it."""
        before = self.previous
        own = before.deployed(client) if before and before.individual else {}
        return {key: leaf for key, leaf in own.items() if leaf is not self.task.start.get(key)}

    def view(self, client: str, data: ClientData) -> Task:
        """The task as the client sees it."""
        return self.task.view(data, self.start(client))

    def deployed(self, client: str) -> Tree:
        """The model a client deploys; one never visited deploys what it would start from."""
        data = self.federation.clients[client].train
        task = self.view(client, data)
        state = self.store.get(f"{self.index}/client", client)
        state = self.algorithm.client_init(task, data) if state is None else state
        rng = generator(self.experiment.seed, "deploy", self.place, client)
        return self.algorithm.deploy(task, self.server, state, data, rng)

    def visit(self, client: str) -> Visit:
        """What the client has of its own (the engine's desk)."""
        state = self.store.get(f"{self.index}/client", client)
        return Visit(client, state, self.start(client), self.seed(client))

    def seed(self, client: str) -> int:
        """What the client's visit of this round draws from (the engine's desk)."""
        return seed_for(self.experiment.seed, "visit", self.place, self.round, client)

    def take(self, reply: Reply) -> None:
        """Keep the client's next state and charge the visit (the engine's desk)."""
        if reply.state:
            self.store.put(f"{self.index}/client", reply.state, reply.client)
        if self.phase.remember != "nothing":
            self.store.put(f"{self.index}/fingerprint", {"mark": fingerprint(reply.upload)}, reply.client)
        if self.phase.remember == "uploads":
            self.store.put(f"{self.index}/upload", reply.upload, reply.client)
        self.ledger.add(reply, self.setup_bytes)

    def refuse(self, client: str, error: Exception) -> None:
        """Note that the round goes on without a client (the engine's desk)."""
        self.failed[client] = str(error)

    def check_failures(self, visited: int) -> None:
        """End the run where too few clients are left; what was committed stays, so it can be resumed."""
        if visited - len(self.failed) < max(1.0, self.phase.minimum * visited):
            where = f"Round {self.round + 1} of phase '{self.phase.name}'"
            raise HansaError(
                f"{where}: {len(self.failed)} of {visited} clients failed. {next(iter(self.failed.values()))}"
            )

    def evaluate(self, outside: bool | None = None) -> Evaluation:
        """Judge what the clients deploy now, on classes outside them too where this phase, or the caller, asks."""
        everyone = None if self.algorithm.personal else self._global_logits()
        return self._judge(everyone, self._own_logits if self.individual else None, outside)

    def evaluate_start(self) -> Evaluation:
        """Judge what the phase begins with: what the phase before left behind, or the untrained model."""
        if self.previous:
            return self.previous.evaluate(self.phase.outside)
        if self.algorithm.personal:
            return self._judge(None, lambda name: _untrained(self.view(name, self.federation.clients[name].train)))
        return self._judge(_untrained(self.task), None)

    def _judge(
        self, everyone: Logits | None, own: Callable[[str], Logits] | None, outside: bool | None = None
    ) -> Evaluation:
        """One model for all, each client's own, or both: the common test set for the first, clients' for the second."""
        clients, classes, test = self.federation.clients, self.federation.num_classes, self.federation.test
        logits = own or (lambda _: cast(Logits, everyone))
        tested = Evaluation({})
        if any(client.test is not None for client in clients.values()):
            rows = ((row, name, client.test) for row, (name, client) in enumerate(clients.items()))
            tested = on_clients(((row, data, logits(name)) for row, name, data in rows if data is not None), classes)
        if self.phase.outside if outside is None else outside:
            tested = tested.with_classes(self._by_class(logits))
        if test is None or everyone is None:
            return tested
        return Evaluation({**on_global_test(everyone, test, classes), **tested.metrics}, tested.scores)

    def _by_class(self, logits: Callable[[str], Logits]) -> ClassScores:
        """Every client's model on a test set of all classes: where there is no common one, everybody's together."""
        federation, held = self.federation, torch.from_numpy(self.federation.label_counts() > 0)
        test = (
            union(client.test for client in federation.clients.values()) if federation.test is None else federation.test
        )
        return on_classes(((row, held[row], logits(name)) for row, name in enumerate(self.names)), test)

    def _global_logits(self) -> Logits:
        model = self.algorithm.model(self.task, self.server, {})
        return lambda x: self.algorithm.logits(self.task, model, x)

    def _own_logits(self, client: str) -> Logits:
        task = self.view(client, self.federation.clients[client].train)
        model = self.deployed(client)
        return lambda x: self.algorithm.logits(task, model, x)

    @property
    def sampling_seed(self) -> int:
        """The same for the first star of every plan, whatever came before: every method sees the same clients."""
        return seed_for(self.experiment.seed, "orchestrate", self._earlier(type(self.phase.orchestration)))

    def _earlier(self, kind: type) -> int:
        before = self.previous
        return 0 if before is None else before._earlier(kind) + (type(before.phase.orchestration) is kind)

    def save(self) -> None:
        """Put the server's state and the ledger into the store; the next commit makes them permanent."""
        self.store.put(f"{self.index}/server", self.server)
        self.store.put(f"{self.index}/ledger", self.ledger.tree())


def _untrained(task: Task) -> Logits:
    model = task.params()
    return lambda x: task.forward(model, x)
