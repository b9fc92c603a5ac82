"""The client's side of a phase: everything that needs a client's data or state, and so lives where these are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hansa.contract import Algorithm
from hansa.data.federation import Client
from hansa.errors import require
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.tree import Tree

AT_SITE = "at site"  # the leaf in whose place a run's store has a state that stays where the data is: its version


@dataclass(frozen=True, eq=False)
class ClientSide:
    """The client's side of a phase: its view of the task, its starting point, and the model it deploys.

    Phases follow each other: once clients have deployed models of their own, later phases build on what each has, so
    the side of a phase knows the side of the one before, and what that phase's server served at its end.
    """

    algorithm: Algorithm
    task: Task  # as the server sees it
    clients: Mapping[str, Client]
    stored: Callable[[str], Tree | None]  # a client's state, where it has been visited
    seed: int  # of the run
    place: int  # among all phases, also those of a run continued here
    before: ClientSide | None = None
    served: Tree | None = None  # by the phase before

    @property
    def individual(self) -> bool:
        """Whether clients may deploy different models after this phase."""
        return self.algorithm.personal or self.individual_start or bool(self.task.networks)

    @property
    def individual_start(self) -> bool:
        """Whether clients may start this phase from different models."""
        return self.before is not None and self.before.individual

    def state(self, client: str) -> Tree | None:
        """Return a client's state in this machine's memory, where it has been visited."""
        found = self.held(client)
        return None if found is None else {key: leaf.cpu() for key, leaf in found.items()}

    def held(self, client: str) -> Tree | None:
        """Return a client's state, on a device where it was left there; refuse where the state stayed at its site."""
        found = self.stored(client)
        says = f"The state of client '{client}' is at its site, so what it deploys is made there alone"
        require(found is None or AT_SITE not in found, f"{says}: ask the site.")
        return found

    def start(self, client: str) -> Tree:
        """Return the leaves a client carries over: its own model, where an earlier phase personalised it."""
        if self.before is None or not self.before.individual:
            return {}
        _, model = self.before.deployed(client, self.served or {})
        return {key: leaf for key, leaf in model.items() if leaf is not self.task.start.get(key)}

    def view(self, client: str, data: ClientData, task: Task | None = None) -> Task:
        """Return the task as the client sees it."""
        return (task or self.task).view(data, self.start(client), client)

    def deployed(self, client: str, served: Tree) -> tuple[Task, Tree]:
        """Return a client's view of the task and the model it deploys; one never visited has its first state."""
        data = self.clients[client].train
        task = self.view(client, data)
        state = self.state(client)
        state = self.algorithm.client_init(task, data) if state is None else state
        rng, served = generator(self.seed, "deploy", self.place, client), self.task.received(client, served)
        return task, self.algorithm.deploy(task, served, state, data, rng)
