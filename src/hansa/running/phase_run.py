"""A phase while it runs: the server's state, where clients start from, and what must not be lost."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hansa.channels.secure_sum import SecureSum
from hansa.contract import Algorithm
from hansa.data.federation import Client
from hansa.engines.client_side import ClientSide
from hansa.engines.session import PhaseContext
from hansa.errors import require
from hansa.io import wire
from hansa.io.store import Store
from hansa.lazy import torch
from hansa.orchestrate.clock import Paces, Timeline
from hansa.orchestrate.planner import Orchestration, Planner, Roster
from hansa.payload import Update
from hansa.running.experiment import Experiment, Phase
from hansa.running.ledger import Ledger
from hansa.seeds import generator, seed_for
from hansa.task import Task
from hansa.training.carried import carried
from hansa.training.wrappers import training_of
from hansa.tree import Tree, nest, pick, unlike


def reached(progress: Mapping[str, Any] | None, phases: Sequence[Phase], index: int) -> bool:
    """Tell whether a phase's rounds have all been run, by the note of a store's last commit."""
    return progress is not None and (progress["phase"], progress["round"]) >= (index, phases[index].rounds)


def restore(experiment: Experiment, store: Store, index: int) -> PhaseRun:
    """Return a phase that has been run, as the store has it."""
    phases, run = experiment.phases, experiment.origin
    says = f"Phase '{phases[index].name}' is not finished, as its checkpoint says"
    require(reached(store.progress(), phases, index), f"{says}: continue its run with 'hansa resume'.")
    for place in range(index + 1):
        run = PhaseRun(experiment, place, store, run)
    assert run is not None
    return run


APART = "\x1f"  # between a client's name and the name of a leaf


@dataclass(slots=True)
class Line:
    """A model that outlives a round: the message its next client receives, and what its clients uploaded so far."""

    down: Tree
    total: Update

    def tree(self) -> Tree:
        """Return the line as the store keeps it."""
        numbers = torch.tensor([self.total.weight, self.total.count, self.total.flops], dtype=torch.float64)
        each = {f"{client}{APART}{key}": leaf for client, own in self.total.each.items() for key, leaf in own.items()}
        return nest("down", self.down) | nest("sums", self.total.sums) | nest("each", each) | {"numbers": numbers}

    @classmethod
    def from_tree(cls, tree: Tree) -> Line:
        """Return the line that a tree holds."""
        weight, count, flops = tree["numbers"].tolist()
        each: dict[str, Tree] = {}
        for key, leaf in pick("each", tree).items():
            client, _, name = key.partition(APART)
            each.setdefault(client, {})[name] = leaf
        return cls(pick("down", tree), Update(pick("sums", tree), weight, int(count), flops, each))


class PhaseRun:
    """A phase of an experiment on a store, following the phase before it."""

    def __init__(self, experiment: Experiment, index: int, store: Store, previous: PhaseRun | None):
        self.experiment, self.index, self.store, self.previous = experiment, index, store, previous
        self.adds_to = experiment.adds_to if index == 0 else None
        self.phase = experiment.phases[index]
        self.algorithm: Algorithm = self.phase.algorithm
        self.carried = carried(self.algorithm, experiment.channel)  # as clients see it
        self.federation = experiment.federation
        says = f"The samples have weights, by which {type(self.algorithm).__name__} does not count them"
        require(self.algorithm.weighs or not self.federation.weighed, f"{says}: leave them out, or use 'fedavg'.")
        self.names = list(self.federation.clients)
        self.place: int = previous.place + 1 if previous else 0  # among all phases, also those of a run continued here
        self.task: Task = replace(
            experiment.task,
            start=previous.learnt() if previous else {},
            temperature=1.0 if experiment.task.real else self.phase.temperature,  # real targets have no logits
            local_labels=self.algorithm.local_labels or (previous is not None and previous.task.local_labels),
            rounds=self.phase.rounds,
            rates=self._rates(),
            shares=previous.shares if previous else (),
            samples=experiment.task.samples or self.federation.mass(),
            place=self.place,
            cohort=self.phase.orchestration.scale(len(self.names) or experiment.task.population).visits,
            visits=self._most_visits(),
            opened=self._opened(),
        )
        self.server: Tree = store.get(f"{index}/server") or self._first_server()
        self.lines = {int(line): Line.from_tree(store.get(f"{index}/line", line) or {}) for line in self._lines()}
        self.ledger = Ledger(self.names, store.get(f"{index}/ledger"))
        self.round = 0
        self.timeline = Timeline()

    def _first_server(self) -> Tree:
        """Return the server's state before the first round: that of another run's phase where this one adds to it."""
        return self.adds_to.server if self.adds_to else self.algorithm.server_init(self.task)

    def _rates(self) -> tuple[float, ...]:
        """Return the rates that earlier phases found, where this phase asks for them."""
        if self.phase.rates == "paper":
            return ()
        found = self.previous.rates if self.previous else ()
        says = f"Phase '{self.phase.name}' takes its rates from statistics, and no phase before it has told them"
        require(bool(found), f"{says}: put a phase 'calibrate' before it, or set rates = \"paper\".")
        return found

    @property
    def rates(self) -> tuple[float, ...]:
        """The latest rates that this phase or an earlier one found."""
        return self.algorithm.rates(self.task, self.server) or (self.previous.rates if self.previous else ())

    @property
    def shares(self) -> tuple[float, ...]:
        """The latest shares of the classes that this phase or an earlier one counted."""
        return self.algorithm.shares(self.task, self.server) or (self.previous.shares if self.previous else ())

    def _lines(self) -> list[str]:
        return list(self.store.clients(f"{self.index}/line"))

    def learnt(self) -> Tree:
        """Return the leaves of the network that the next phase starts from."""
        own = self.experiment.task.params()
        found = self.algorithm.model(self.task, self.server)
        return {key: leaf for key, leaf in found.items() if key in own and leaf.shape == own[key].shape}

    @functools.cached_property
    def side(self) -> ClientSide:
        """The client's side of the phase, where the data is."""
        stored = functools.partial(self.store.get, f"{self.index}/client")
        return self.side_with(self.clients, stored, self.previous.side if self.previous else None)

    def side_with(
        self, clients: Mapping[str, Client], stored: Callable[[str], Tree | None], before: ClientSide | None
    ) -> ClientSide:
        """Return the client's side of the phase for some clients: their states, and their side of the phase before."""
        served = self.previous.served() if self.previous and before and before.individual else None
        return ClientSide(self.carried, self.task, clients, stored, self.experiment.seed, self.place, before, served)

    @property
    def clients(self) -> Mapping[str, Client]:
        """The clients as they train: those who attack do not hold what is theirs."""
        attack = self.phase.attack
        if attack is None:
            return self.federation.clients
        return attack.corrupted(self.federation, self.attackers, self.experiment.seed)

    @functools.cached_property
    def attackers(self) -> tuple[str, ...]:
        """The names of those who attack, where the phase asks for it; found by superclients where there are any."""
        attack = self.phase.attack
        if attack is None:
            return ()
        grouping = attack.groups_of or self.phase.orchestration
        return attack.attackers(self.names, grouping.groups(self.roster(grouping)), self.experiment.seed)

    def served(self) -> Tree:
        """Return what a client must receive to deploy its model."""
        return self.algorithm.serve(self.task, self.current())

    def current(self) -> Tree:
        """Return the server's state; with models under way, as if they were merged now."""
        if not self.lines:
            return self.server
        parts = [line.total for line in self.lines.values()]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return self.algorithm.server_step(self.task, self.server, total)

    def deployed(self, client: str) -> tuple[Task, Tree]:
        """Return a client's view of the task and the model it deploys."""
        return self.side.deployed(client, self.served())

    @property
    def context(self) -> PhaseContext:
        """The facts that engines need to know of the phase."""
        scale = self.phase.orchestration.scale(len(self.names))
        looked_at = self.phase.remember != "nothing"
        deadline, suite = self.phase.deadline, self.experiment.suite
        return PhaseContext(self.carried, self.task, self.side, scale, looked_at, deadline, suite)

    # ------------------------------------------------------------------------------------------------------- planning

    @functools.cached_property
    def planner(self) -> Planner:
        """The planner of who is visited, round by round."""
        return self.phase.orchestration.open(self.roster(self.phase.orchestration))

    def roster(self, orchestration: Orchestration) -> Roster:
        """Return what an orchestration may know of the clients."""
        sizes, counted = self.federation.sizes(), self.experiment.counted if self.adds_to else ()
        names = [name for name in self.names if name not in counted] if counted else self.names
        counts, task = [sizes[name] for name in names], self.experiment.task
        classes = 0 if task.real else task.outputs
        return Roster(names, counts, self._seed_of(orchestration), self.described, classes=classes)

    @functools.cached_property
    def paces(self) -> Paces | None:
        """What the clients are like in simulated time, the same for every phase and plan of a seed."""
        return None if self.phase.clock is None else self.phase.clock.open(self.names, self.experiment.seed)

    def samples_of(self, client: str) -> float:
        """Count the samples that a visit of a client computes on."""
        training, size = training_of(self.algorithm), self.federation.clients[client].size
        return size if training is None else training.samples(size)

    @property
    def described(self) -> dict[str, torch.Tensor]:
        """The knowledge of earlier phases about single clients; the latest to describe a client counts."""
        return self.previous.describing if self.previous else {}

    @property
    def describing(self) -> dict[str, torch.Tensor]:
        """The knowledge about single clients that later phases find."""
        return {**self.described, **self.algorithm.describes(self.server)}

    @property
    def described_as(self) -> str:
        """The kind of what this phase and earlier ones learnt about single clients."""
        return self.algorithm.described_as or (self.previous.described_as if self.previous else "")

    def _seed_of(self, orchestration: Orchestration) -> int:
        """Return a seed by how many phases of its kind came before: every method's first star sees the same clients."""
        return seed_for(self.experiment.seed, "orchestrate", self._earlier(type(orchestration)))

    def _earlier(self, kind: type) -> int:
        before = self.previous
        return 0 if before is None else before._earlier(kind) + (type(before.phase.orchestration) is kind)

    @property
    def cohort(self) -> int:
        """The number of the round's cohort: a step of several exchanges visits one cohort."""
        return self.round // self.algorithm.exchanges

    def due(self, round: int) -> bool:
        """Tell whether what a round leaves is evaluated."""
        return (round + 1) % self.phase.evaluate_every == 0 or round + 1 == self.phase.rounds

    @property
    def round_task(self) -> Task:
        """The task in the round at hand."""
        return replace(self.task, round=self.round)

    def _most_visits(self) -> int:
        """Count the rounds that visit the most visited client, where an account of privacy asks for it; else 0."""
        if not self.names or not self.algorithm.releases(self.experiment.task, {}):
            return 0
        rounds = (self.planner.round(number // self.algorithm.exchanges) for number in range(self.phase.rounds))
        visits = Counter(client for legs in rounds for client in {client for leg in legs for client in leg.chain})
        return max(visits.values())

    def _opened(self) -> int:
        """Count the clients without whom no sum is opened, where each of them brings a share of the noise; else 0."""
        channel, releases = self.experiment.channel, self.algorithm.releases(self.experiment.task, {}) or ()
        shared = isinstance(channel, SecureSum) and any(one.trust == "distributed" for one in releases)
        if not shared or not isinstance(channel, SecureSum):
            return 0
        return channel.needed(self.phase.orchestration.scale(len(self.names) or self.experiment.task.population).visits)

    def broadcast(self) -> Tree:
        """Return the server's message of the round at hand."""
        rng = generator(self.experiment.seed, "broadcast", self.place, self.round)
        return self.algorithm.broadcast(self.round_task, self.server, rng)

    @functools.cached_property
    def setup(self) -> Tree:
        """The leaves a client must be sent once before it can take part: learnt ones not broadcast every round."""
        everyone_was_told = self.previous is not None and self.previous.algorithm.one_shot
        known = (self.previous if everyone_was_told and self.previous else self.experiment).task.params()
        told = pick("model", self.broadcast())
        return unlike({key: leaf for key, leaf in self.task.start.items() if key not in told}, known)

    @functools.cached_property
    def setup_bytes(self) -> int:
        """The bytes of these."""
        return wire.size(self.setup) if self.setup else 0

    def setup_bytes_of(self, client: str) -> int:
        """Return the bytes of those that a client's own network has."""
        lacks = self.task.lacks(client)
        own = {key: leaf for key, leaf in self.setup.items() if key not in lacks} if lacks else {}
        return (wire.size(own) if own else 0) if lacks else self.setup_bytes

    # ---------------------------------------------------------------------------------------------------- persistence

    def save(self) -> None:
        """Put the server's state, models under way and the ledger into the store, for the next commit."""
        self.store.put(f"{self.index}/server", self.server)
        self.store.put(f"{self.index}/ledger", self.ledger.tree())
        for line in self._lines():
            if int(line) not in self.lines:
                self.store.drop(f"{self.index}/line", line)
        for number, line_now in self.lines.items():
            self.store.put(f"{self.index}/line", line_now.tree(), str(number))

    def states(self, client: str) -> list[Tree]:
        """Return all that the store has of a client's state in this phase: as it is now, and as it was best."""
        found = (self.store.get(f"{self.index}/{name}", client) for name in ("client", "best-client"))
        return [state for state in found if state is not None]

    def keep_best(self) -> None:
        """Note the models as they are now as the best so far."""
        self.store.put(f"{self.index}/best-server", self.current())
        self.store.copy(f"{self.index}/client", f"{self.index}/best-client")

    def return_to_best(self) -> None:
        """Go back to the models that were noted as the best."""
        self.server, self.lines = self.store.get(f"{self.index}/best-server") or self.server, {}
        self.store.copy(f"{self.index}/best-client", f"{self.index}/client")
        self.store.drop(f"{self.index}/best-server")
        for client in list(self.store.clients(f"{self.index}/best-client")):
            self.store.drop(f"{self.index}/best-client", client)
