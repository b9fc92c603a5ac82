"""The contract every algorithm keeps.  Read this file first.

An algorithm is a frozen dataclass.  Its fields are hyper-parameters; what it learns is a tree that a method takes and
returns, and the run stores.  No state in `self`, no loop over clients, no logging, no device, no transport.  All
methods are pure: the same arguments give the same result, and arguments are never written to.

Seven members are what a paper says::

    down   = algorithm.broadcast(task, server, rng)
    up, s' = algorithm.client_step(task, down, state, data, rng)       for every client the orchestration names
    server = algorithm.server_step(task, server, up₁ + up₂ + …)

with `server_init` and `client_init` before the first round, `uplink` for what may be done with an upload, and `model`
for what was learnt.  Everything else has a default.

Engines may carry out a visit in another way than by `client_step`: an algorithm that trains locally says in `visit`
which turns of training it needs, and many clients' turns are carried out at once.  Where nothing but samples differs
between clients, nothing is done for any one of them, so a breakpoint in `client_step` may never be reached.  To step
through an algorithm, run it with `engine = "serial"`, which calls `client_step` client by client.

To vary an algorithm, wrap it or pass it another piece; never subclass a concrete one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

from hansa.channels.accounting import Release
from hansa.errors import HansaError
from hansa.lazy import Tensor, torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.tree import Tree, nest, pick, unlike

if TYPE_CHECKING:
    from hansa.training.local import Trained, Turn

    Visit = Generator[Turn, Trained, tuple[Update, Tree]]


class Algorithm(ABC):
    """A federated algorithm: how a server and a client start, what they send, and how they step."""

    __slots__ = ()

    # ------------------------------------------------------------------------------------------- what a paper says

    @property
    @abstractmethod
    def uplink(self) -> Mapping[str, Role]:
        """The role of every group of uploaded leaves."""

    @abstractmethod
    def server_init(self, task: Task) -> Tree:
        """Return the server's state before the first round; `task.params()` is what earlier phases learnt."""

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return a client's state before its first visit of a phase; empty when it has none."""
        return {}

    @abstractmethod
    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the message that clients receive; `rng` is the round's, for a server that draws."""

    @abstractmethod
    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Carry out one visit: return the upload and the client's next state."""

    @abstractmethod
    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Return the server's next state from the sum of a round's uploads."""

    @abstractmethod
    def model(self, task: Task, server: Tree) -> Tree:
        """Return the global model: all parameters, or where clients own some, those that the server has learnt."""

    # ------------------------------------------------------------------------------------------------ what it is like

    @property
    def personal(self) -> bool:
        """Whether clients deploy models of their own; then only their own test sets can evaluate it."""
        return False

    @property
    def one_shot(self) -> bool:
        """Whether every client must be visited exactly once."""
        return False

    @property
    def local_labels(self) -> bool:
        """Whether from this phase on a client knows only the classes of its own training data."""
        return False

    @property
    def exchanges(self) -> int:
        """The number of rounds in a row that visit the same cohort, for a step of several exchanges of messages."""
        return 1

    @property
    def described_as(self) -> str:
        """The kind of what `describes` gives: `vector`, `positive` (none negative) or `distribution` (over classes)."""
        return ""

    @property
    def oracle(self) -> str:
        """A sentence on what this phase tells the server that no real one would learn; empty where there is nothing."""
        return ""

    @property
    def no_chains(self) -> str:
        """The reason why clients cannot train one after the other in chains; empty where they can."""
        return ""

    @property
    def weighs(self) -> bool:
        """Whether samples may have weights: then all that is computed of them must count each by its own."""
        return False

    @property
    def partial(self) -> bool:
        """Whether a client may lack leaves of the upload that others have."""
        return False

    # -------------------------------------------------------------------------------------------- where more is needed

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out one visit in turns of local training: yield a `Turn`, receive what it `Trained`.

        The default has no turns.  An algorithm with turns derives from `hansa.training.visits.TrainsLocally`.
        """
        return self.client_step(task, down, state, data, rng)
        yield

    def serve(self, task: Task, server: Tree) -> Tree:
        """Return what a client must receive to deploy its model: the learnt leaves it does not have already.

        Leaves are compared by their numbers: whether they are the very tensors of the start changes with a resume.
        """
        return nest("model", unlike(self.model(task, server), task.params()))

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the parameters a client deploys; it has its data at hand, to adapt the model to."""
        return task.params() | pick("model", served)

    def outputs(self, task: Task, model: Tree, x: Tensor) -> Tensor:
        """Return what a deployed model makes of some inputs: logits, or predictions of real targets."""
        return task.forward(model, x)

    def heaviest(self, samples: int) -> float:
        """Return the most that a client of so many training samples may weigh."""
        return max(1.0, samples)

    def check(self, task: Task, up: Update) -> str:
        """Return why no honest client can send such an upload, beyond shapes and finite numbers; empty if one can."""
        return ""

    def encode(self, sums: Tree) -> Tree:
        """Return the upload as it travels, where that is smaller than the sums themselves."""
        return sums

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Invert `encode`, up to the rounding of the wire's number format."""
        return wire

    def describes(self, server: Tree) -> Mapping[str, Tensor]:
        """Return what this phase learnt about single clients, by name, for orchestrations of later phases."""
        return {}

    def rates(self, task: Task, server: Tree) -> tuple[float, ...]:
        """Return what this phase knows of later phases' rates: the head's largest, and a factor on the features'."""
        return ()

    def shares(self, task: Task, server: Tree) -> tuple[float, ...]:
        """Return what share of all training samples every class has, where this phase has counted them."""
        return ()

    def observe(self, task: Task, model: Tree, data: ClientData) -> Tree:
        """Return what a client tells of its deployed model for exhibits: leaves of the same shapes for all clients."""
        return {}

    def observes_start(self, task: Task) -> bool:
        """Tell whether clients observe what they start the phase from, too, for exhibits before its first round."""
        return False

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Return the tables to draw of an evaluation; `observed` has what clients with test samples told, by name.

        The round of the task is the one before the evaluation, or −1 where nothing has been trained yet.
        """
        return ()

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return the releases under differential privacy so far; None where nothing protects what clients upload."""
        return None if self.uplink else ()

    def forget(self, task: Task, server: Tree, gone: Update) -> Tree:
        """Return the server's state had these uploads never come; only closed forms can tell."""
        name = type(self).__name__
        raise HansaError(f"What {name} learnt from a client cannot be taken out exactly; run again without it.")
