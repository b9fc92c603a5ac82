"""Augmentation draws by visits' seeds alone: the same pictures in every engine, kernel and resumed run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from engine_cases import CLASSES, SIZES, paths_of, ran

from hansa.algorithms.fedavg import FedAvg
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.engines.kernels.one_by_one import OneByOne
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial, SerialSession
from hansa.engines.session import Lane
from hansa.engines.trainer import Trainer
from hansa.engines.vectorised import Vectorised, VectorisedSession
from hansa.io.store import MemoryStore
from hansa.models.convolutional import CNN
from hansa.orchestrate.star import Star
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.seeds import seed_for
from hansa.training.augmentation import Crop, Flip
from hansa.training.local import LocalTraining, Turn
from hansa.tree import equal
from journals import ListJournal


def images() -> Federation:
    rng, parts = np.random.default_rng(0), np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    samples = Samples(rng.random((sum(SIZES), 1, 8, 8), np.float32), rng.integers(0, CLASSES, sum(SIZES)))
    index = {f"c{k}": part for k, part in enumerate(parts)}
    return Federation(IndexedClients(samples, index), Classes(tuple(map(str, range(CLASSES)))), samples.take(parts[-1]))


def test_augmented_pictures_are_the_same_in_every_engine_and_after_a_stop() -> None:
    """Also the kernel of devices draws by visits' seeds alone, in `total` too, where a client has a single batch."""
    local, model = LocalTraining(lr=0.05, epochs=2, batch_size=8, augment=(Flip(), Crop(1))), CNN((2,), 3, 2, (4,))
    trained = functools.partial(
        ran, FedAvg(local), data=images(), model=model, orchestration=Star(len(SIZES)), rounds=2
    )
    alone, journal = trained(Serial()), ListJournal()
    assert equal(alone.server, trained(Vectorised(), journal=journal).server)
    assert equal(alone.server, trained(Processes(1)).server)
    assert paths_of(journal) == {"serial": 2 * len(SIZES)}
    experiment, store = alone.experiment, MemoryStore()
    assert run_phases(experiment, store, ListJournal(), stop=lambda: True) is None
    again = run_phases(experiment, store, ListJournal())
    assert again is not None and equal(alone.server, again.server)
    plain = replace(experiment.phases[0], algorithm=FedAvg(replace(local, augment=())))
    other = run_phases(replace(experiment, phases=(plain,)), MemoryStore(), ListJournal())
    assert other is not None and not equal(alone.server, other.server)
    session = VectorisedSession(Vectorised(), alone.context, Trainer(kernels=(Here(),)))
    totals = [total for _, total in session.round(alone.task, lanes_of(alone), NoServer())]
    serial = [total for _, total in SerialSession(context=alone.context).round(alone.task, lanes_of(alone), NoServer())]
    assert session.paths == {"one-by-one": len(SIZES)}
    for key, leaf in totals[0].sums.items():
        torch.testing.assert_close(leaf, sum(up.sums[key] for up in serial))


@dataclasses.dataclass(frozen=True)
class Here(OneByOne):
    """The kernel of devices, on the CPU."""

    def applies(self, turn: Turn, device: torch.device, *, forced: bool) -> bool:
        return True


def lanes_of(run: PhaseRun) -> list[Lane]:
    down = run.algorithm.broadcast(run.task, run.server, torch.Generator())
    return [Lane((name,), (0,), down) for name in run.names]


class NoServer:
    """A server that takes everything and keeps nothing."""

    def seed(self, client: str, visit: int) -> int:
        return seed_for(7, client, visit)

    def seeds(self, clients: Sequence[str]) -> list[int]:
        return [self.seed(client, 0) for client in clients]

    def take(self, reply: object) -> None: ...

    def take_cohort(self, reply: object) -> None: ...

    def refuse(self, client: str, error: Exception) -> None:
        raise error
