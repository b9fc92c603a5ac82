"""What FLIC costs on its own toy problem: 100 clients that see 20 classes through maps to 3 to 100 columns.

    python benchmarks/flic.py [--rounds 50] [--epochs 100]

Seconds of CPU on one thread for FLIC-HL as the paper sets it (§S3.3): a tenth of the clients a round, `epochs` local
epochs in batches of 100, 100 epochs of pre-training in batches of 10 at a client's first visit, latent width 64.
The aim is 120 seconds for 50 rounds; the authors' program takes 20 minutes and more.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))
from flic_toys import CLASSES, federation

from hansa.algorithms.flic import ADAM, Alignment
from hansa.algorithms.flic_hl import FlicHL
from hansa.engines.vectorised import Vectorised
from hansa.io.store import MemoryStore
from hansa.models.latent import Latent
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import Task

CLIENTS = 100


def phase_run(epochs: int, rounds: int) -> PhaseRun:
    """Return the phase before its first round."""
    data = federation("mapping", CLIENTS, seed=0)
    first = next(iter(data.clients.values())).train
    samples = sum(data.sizes().values())
    task = Task(Latent(hidden=100), tuple(first.x.shape[1:]), CLASSES, CLIENTS, samples=samples)
    algorithm = FlicHL(replace(ADAM, epochs=epochs), anchors=Alignment(pretrain_batch=10))
    phase = Phase("flic", algorithm, Star(fraction=0.1), rounds, evaluate_every=rounds)
    return PhaseRun(Experiment(task, data, (phase,), Vectorised(threads=1)), 0, MemoryStore(), None)


def main() -> None:
    """Print the seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=100)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    run, engine = phase_run(chosen.epochs, chosen.rounds), Vectorised(threads=1)
    began = time.process_time()
    with engine.open(run.context) as session:
        for _ in range(chosen.rounds):
            record = run_round(run, session)
            run.round += 1
    seconds, found = time.process_time() - began, record["metrics"]["client_accuracy_weighted"]
    told = f"{CLIENTS} clients, {chosen.rounds} rounds, {chosen.epochs} local epochs: {seconds:.0f} s of CPU"
    print(f"{told}, accuracy {found:.3f}, turns {dict(session.paths)}")


if __name__ == "__main__":
    main()
