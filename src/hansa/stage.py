"""One phase of a run: where it starts from, what each client has of its own, and what the clients deploy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from hansa import wire
from hansa.contract import Algorithm
from hansa.data.federation import Federation
from hansa.engines.visit import Engine, Reply, Visit, Workplace
from hansa.errors import HansaError
from hansa.ledger import Ledger
from hansa.metrics import Evaluation, Logits, on_clients, on_global_test
from hansa.orchestrate.plan import Orchestration
from hansa.seeds import seed_for
from hansa.store import Store, fingerprint
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


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything a run needs, as objects."""

    task: Task
    federation: Federation
    phases: tuple[Phase, ...]
    engine: Engine
    seed: int = 0


class Stage:
    """A phase of an experiment on a store, following the phase before it."""

    def __init__(self, experiment: Experiment, index: int, store: Store, previous: Stage | None):
        self.experiment, self.index, self.store, self.previous = experiment, index, store, previous
        self.phase = experiment.phases[index]
        self.algorithm, self.federation = self.phase.algorithm, experiment.federation
        self.names = list(self.federation.clients)
        prior = previous.algorithm.carry(previous.task, previous.server) if previous else {}
        self.task: Task = replace(experiment.task, start=pick("model", prior), temperature=self.phase.temperature)
        self.server: Tree = store.get(f"{index}/server") or self.algorithm.server_init(self.task, prior)
        self.ledger = Ledger(self.names, store.get(f"{index}/ledger"))
        self.setup_bytes = self._setup_bytes()
        self.round = 0
        self.failed: dict[str, str] = {}  # this round's clients that could not be used, and why

    def _setup_bytes(self) -> int:
        """What a client must be told once before it can take part: learnt leaves that are not broadcast every round."""
        initial, told = self.experiment.task.params(), pick("model", self.algorithm.broadcast(self.server))
        missing = {key: leaf for key, leaf in self.task.start.items() if key not in told}
        news = {key: leaf for key, leaf in missing.items() if not equal({"": leaf}, {"": initial[key]})}
        return wire.size(news) if news else 0

    @property
    def workplace(self) -> Workplace:
        """What engines need to know of the phase."""
        chains = self.phase.orchestration.plan(0, self.names, self.sampling_seed)
        before = self.previous
        alike = self.phase.remember == "nothing" and not (before and before.algorithm.personal)
        return Workplace(self.algorithm, self.task, self.federation, len(chains), alike)

    def start(self, client: str) -> Tree:
        """The leaves a client carries over: its own model, where the phase before personalised it."""
        before = self.previous
        return before.deployed(client) if before and before.algorithm.personal else {}

    def view(self, client: str, data: ClientData) -> Task:
        """The task as the client sees it."""
        return self.task.view(data, self.start(client))

    def deployed(self, client: str) -> Tree:
        """The model a client deploys; one never visited deploys what it would start from."""
        data = self.federation.clients[client].train
        task = self.view(client, data)
        state = self.store.get(f"{self.index}/client", client)
        return self.algorithm.model(
            task, self.server, self.algorithm.client_init(task, data) if state is None else state
        )

    def visit(self, client: str) -> Visit:
        """What the client has of its own (the engine's desk)."""
        seed = seed_for(self.experiment.seed, "visit", self.index, self.round, client)
        return Visit(client, self.store.get(f"{self.index}/client", client), self.start(client), seed)

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

    def evaluate(self) -> Evaluation:
        """Judge what the clients deploy now."""
        tested = Evaluation({})
        if any(client.test is not None for client in self.federation.clients.values()):
            tested = on_clients(self._client_tests(), self.federation.num_classes)
        if self.federation.test is None or self.algorithm.personal:
            return tested
        everyone = on_global_test(self._global_logits(), self.federation.test, self.federation.num_classes)
        return Evaluation({**everyone, **tested.metrics}, tested.scores)

    def _global_logits(self) -> Logits:
        model = self.algorithm.model(self.task, self.server, {})
        return lambda x: self.algorithm.logits(self.task, model, x)

    def _client_tests(self) -> Iterator[tuple[int, ClientData, Logits]]:
        common = None if self.algorithm.personal else self._global_logits()
        for row, (name, client) in enumerate(self.federation.clients.items()):
            test = client.test
            if test is not None:
                yield row, test, common or self._own_logits(name)

    def _own_logits(self, client: str) -> Logits:
        task = self.view(client, self.federation.clients[client].train)
        model = self.deployed(client)
        return lambda x: self.algorithm.logits(task, model, x)

    @property
    def sampling_seed(self) -> int:
        """The same for the first star of every plan, whatever came before: every method sees the same clients."""
        kind = type(self.phase.orchestration)
        earlier = sum(type(phase.orchestration) is kind for phase in self.experiment.phases[: self.index])
        return seed_for(self.experiment.seed, "orchestrate", earlier)

    def save(self) -> None:
        """Put the server's state and the ledger into the store; the next commit makes them permanent."""
        self.store.put(f"{self.index}/server", self.server)
        self.store.put(f"{self.index}/ledger", self.ledger.tree())
