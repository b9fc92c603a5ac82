"""Small algorithms of every kind that must fit the core: what a later system will look like, in its smallest form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from hansa.contract import Algorithm
from hansa.data.federation import Client
from hansa.engines.carriers import Carrier, Sites
from hansa.engines.kernels.lazy_sum import dense
from hansa.engines.session import PhaseContext
from hansa.engines.site import Site
from hansa.engines.site_members import keys_of_sites
from hansa.io.registry import Piece
from hansa.io.store import MemoryStore
from hansa.io.trust import Trust
from hansa.orchestrate.planner import Leg, Orchestration, Planner, Roster, Scale
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class TinyNet:
    """Two layers, so that a client can own the first one in a width of its own."""

    hidden: int = 6

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Sequential(nn.Flatten(), nn.Linear(*input_shape, self.hidden), nn.Tanh()))
        net.add_module("head", nn.Linear(self.hidden, outputs))
        return net


@dataclass(frozen=True)
class Strict(TinyNet):
    """Refuses inputs of any but the usual width, as a client's own code might."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        if input_shape != (5,):
            raise RuntimeError(f"no idea what {input_shape} is")
        return super().build(input_shape, outputs)


@dataclass(frozen=True)
class NormNet:
    """A network with BatchNorm: buffers must travel with the parameters."""

    hidden: int = 6

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Sequential(nn.Linear(*input_shape, self.hidden), nn.BatchNorm1d(self.hidden)))
        net.add_module("head", nn.Linear(self.hidden, outputs))
        return net


def small_probe() -> nn.Module:
    """A frozen network for task2vec, of two layers with three and four filters."""
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 4), nn.Tanh())


@dataclass(frozen=True)
class PrototypeBank(Algorithm):
    """The server keeps every client's class means (EACH), as FedPCL's bank does; the nearest mean over all decides."""

    uplink: ClassVar[Mapping[str, Role]] = {"prototypes": Role.EACH, "counts": Role.SUM}

    def server_init(self, task: Task) -> Tree:
        return {}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        return server

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        z, hot = data.x.flatten(1), torch.nn.functional.one_hot(data.y, task.num_classes).float()
        counts = hot.sum(0)
        means = hot.T @ z / counts.clamp(min=1)[:, None]
        visits = state.get("visits", torch.zeros(())) + 1
        return Update({"prototypes.mean": means, "counts": counts}, len(data)), {"visits": visits}

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        bank = {f"bank.{client}": own["prototypes.mean"] for client, own in cohort.each.items()}
        return {**server, **bank}

    def model(self, task: Task, server: Tree) -> Tree:
        return {"prototypes": torch.stack([server[key] for key in sorted(server)]).mean(0)}

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        return pick("model", served)

    def outputs(self, task: Task, model: Tree, x: Tensor) -> Tensor:
        return -torch.cdist(x.flatten(1), model["prototypes"])


@dataclass(frozen=True)
class Lines(Orchestration):
    """Two models that go on for two rounds, each through other clients, before the server merges them."""

    def open(self, roster: Roster) -> Planner:
        return LinesPlanner(roster.names)

    def scale(self, population: int) -> Scale:
        return Scale(2, 4, 2, 2)

    def visits_once(self, rounds: int, population: int) -> bool:
        return False


@dataclass(frozen=True)
class LinesPlanner:
    names: Sequence[str]

    def round(self, number: int) -> list[Leg]:
        first = 4 * number
        chosen = [self.names[(first + place) % len(self.names)] for place in range(4)]
        return [Leg((chosen[0], chosen[1]), 0), Leg((chosen[2], chosen[3]), 1)]

    def merges(self, number: int) -> bool:
        return number % 2 == 1

    def missing(self, number: int) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True, eq=False)
class AtSites:
    """A carrier to sites that a test holds; without any, to one that is made for a phase from the clients at hand."""

    sites: Mapping[str, Site] | None = None

    @classmethod
    def of(cls, clients: Mapping[str, Client], count: int = 1) -> AtSites:
        """All clients at one site, or divided over several, which keep states in memory and trust these examples."""
        trust, named = Trust(("law_examples.*", "battery.*")), list(clients.items())
        parts = {f"site-{place}": dict(named[place::count]) for place in range(count)}
        keys = keys_of_sites(parts)
        return cls({name: Site(held, MemoryStore(), keys=keys[name], trust=trust) for name, held in parts.items()})

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[Carrier]:
        yield Sites(self.sites or self.of(context.side.clients).sites or {})


def poison(how: str, up: Update) -> Update:
    """Damage an upload in one of the ways seen, or made up by somebody who means harm."""
    key, leaf = next((key, dense(leaf).clone()) for key, leaf in up.sums.items())
    rest = {name: one for name, one in up.sums.items() if name != key}
    bad, first = float("nan"), torch.tensor([0])
    other = torch.float32 if leaf.dtype == torch.float64 else torch.float64
    ways: dict[str, Callable[[], Update]] = {
        "all NaN": lambda: replace(up, sums={name: one * bad for name, one in up.sums.items()}),
        "one NaN": lambda: replace(up, sums={**up.sums, key: leaf.flatten().index_fill(0, first, bad).view_as(leaf)}),
        "infinite": lambda: replace(up, sums={**up.sums, key: leaf / 0.0}),
        "shape of one": lambda: replace(up, sums={**up.sums, key: leaf.flatten()[:1]}),
        "more leaves": lambda: replace(up, sums={**up.sums, f"{key}.more": leaf}),
        "unknown group": lambda: replace(up, sums={**up.sums, "odd.leaf": leaf}),
        "fewer leaves": lambda: replace(up, sums=rest),
        "other type": lambda: replace(up, sums={**up.sums, key: leaf.to(other)}),
        "weight NaN": lambda: replace(up, weight=bad),
        "weight 0": lambda: replace(up, weight=0.0),
        "weight −10": lambda: replace(up, weight=-10.0),
        "weight 1e12": lambda: replace(up, weight=1e12),
        "count 5": lambda: replace(up, count=5),
        "flops NaN": lambda: replace(up, flops=bad),
    }
    return ways[how]()


POISONS = (
    "all NaN", "one NaN", "infinite", "shape of one", "more leaves", "unknown group", "fewer leaves", "other type",
    "weight NaN", "weight 0", "weight −10", "weight 1e12", "count 5", "flops NaN",
)  # fmt: skip


@dataclass(frozen=True)
class Poisoned(Wrapper):
    """Another algorithm, one of whose clients (known by its number of samples) uploads what it should not."""

    inner: Annotated[Algorithm, Piece("algorithm")]
    how: str
    size: int

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        up, state = yield from self.inner.visit(task, down, state, data, rng)
        return (poison(self.how, up) if len(data) == self.size else up), state


@dataclass(frozen=True)
class Without(Orchestration):
    """Another orchestration, of which one client never answers."""

    inner: Orchestration
    client: str

    def open(self, roster: Roster) -> Planner:
        return WithoutPlanner(self.inner.open(roster), self.client)

    def scale(self, population: int) -> Scale:
        return self.inner.scale(population)

    def visits_once(self, rounds: int, population: int) -> bool:
        return self.inner.visits_once(rounds, population)


@dataclass(frozen=True)
class WithoutPlanner:
    """The planner of `Without`."""

    inner: Planner
    client: str

    def round(self, number: int) -> list[Leg]:
        return self.inner.round(number)

    def merges(self, number: int) -> bool:
        return self.inner.merges(number)

    def missing(self, number: int) -> Mapping[str, str]:
        there = any(self.client in leg.chain for leg in self.inner.round(number))
        return {self.client: "away"} if there else {}


@dataclass(frozen=True)
class Huge(Wrapper):
    """Another algorithm, whose clients upload the largest numbers there are."""

    inner: Annotated[Algorithm, Piece("algorithm")]

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        up, state = yield from self.inner.visit(task, down, state, data, rng)
        return replace(up, sums={key: torch.full(leaf.shape, 3e38) for key, leaf in up.sums.items()}), state
