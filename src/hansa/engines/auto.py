"""The engine that suits algorithm, model and machine, chosen before the first round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hansa.engines.devices import check_name
from hansa.engines.session import Engine, EngineSession, PhaseContext
from hansa.engines.threads import BUSY, cores, step_flops, visit_flops
from hansa.models.parts import here_only

ROUND = 2e10  # operations of a round, about a second of one core, below which starting processes does not pay


@dataclass(frozen=True)
class Auto:
    """Clients side by side where that is possible, in processes where each keeps a core busy, else one by one.

    The choice depends on the plan and the number of cores alone, so a resumed run makes it again.
    """

    device: str = "cpu"

    def __post_init__(self) -> None:
        check_name(self.device)

    def engine(self, context: PhaseContext) -> Engine:
        """Return what was chosen."""
        from hansa.engines.processes import Processes  # only now: every plan names this engine, and few are run
        from hansa.engines.serial import Serial
        from hansa.engines.trainer import ALONE
        from hansa.engines.vectorised import Vectorised

        vectorised = Vectorised(self.device)
        if vectorised.usual_path(context) != ALONE:
            return vectorised
        workers = min(cores(), context.scale.chains)
        return Processes(workers) if workers > 1 and heavy(context) else Serial()

    def choice(self, context: PhaseContext) -> dict[str, object]:
        """Return how rounds will be carried out."""
        return self.engine(context).choice(context)

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[EngineSession]:
        """Open what was chosen."""
        with self.engine(context).open(context) as session:
            yield session


def heavy(context: PhaseContext) -> bool:
    """Tell whether a step keeps a core busy and a round is long; pieces of a script and modules given as objects
    cannot reach other processes."""
    algorithm, task, clients = context.algorithm, context.task, context.side.clients
    if here_only(task.model):
        return False
    if step_flops(algorithm, task) < BUSY or "__main__" in (type(algorithm).__module__, type(task.model).__module__):
        return False
    samples = sum(client.size for client in clients.values()) / len(clients) * context.scale.visits
    return samples * visit_flops(algorithm, task) >= ROUND
