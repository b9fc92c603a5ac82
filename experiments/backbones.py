"""Weak, off-domain backbones: small networks, each pre-trained once on a data set that is not the experiment's.

`python experiments/backbones.py` takes minutes on a CPU and makes what is not there yet, as
`runs/backbones/NAME.safetensors`, with the seed, the steps and the accuracy it reached in its metadata.  A plan names
one by

    features = { name = "module", path = "backbones:backbone", options = { file = "…/cifar10.safetensors" } }

and a network with random weights, drawn from the extractor's own `seed`, by the same path without a file.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from common import DATA, ROOT
from safetensors.torch import load_file
from safetensors.torch import save as pack
from torch import Tensor, nn
from torch.nn import functional as F

from hansa.data.dataset import Dataset
from hansa.data.sources.npz import Npz
from hansa.errors import HansaError
from hansa.io.files import write_whole
from hansa.seeds import generator, seed_for

FOLDER = ROOT / "runs" / "backbones"
SIZE, WIDTHS = 32, (32, 64, 128)


@dataclass(frozen=True)
class Pretraining:
    """What a backbone is trained on, and for how long."""

    source: str  # a file of DATA
    steps: int = 600
    batch: int = 64
    lr: float = 2e-3
    seed: int = 0


BACKBONES = {
    "cifar10": Pretraining("cifar10.npz"),
    "femnist": Pretraining("femnist110.npz"),
    "mnist-m": Pretraining("mnist_m.npz"),
}


class Backbone(nn.Module):
    """Three convolutions, each with BatchNorm, ReLU and pooling; the features are the last map's means."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in zip((3, *WIDTHS), WIDTHS, strict=False):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return 128 features of images of any size, grey or in colour, with values from 0 to 1."""
        colour = x.expand(-1, 3, -1, -1)
        sized = (
            colour if colour.shape[-1] == SIZE else F.interpolate(colour, (SIZE, SIZE), mode="bilinear", antialias=True)
        )
        return self.body(2 * sized - 1).mean((2, 3))


def backbone(file: str | None = None) -> Backbone:
    """The network of a file, or one with random weights."""
    network = Backbone()
    if file is not None:
        if not Path(file).is_file():
            raise HansaError(f"There is no backbone '{file}': make it with 'python experiments/backbones.py'.")
        network.load_state_dict(load_file(file))
    return network


def pretrain(data: Dataset, how: Pretraining) -> tuple[Backbone, float]:
    """Train a backbone under a linear head by Adam, with a rate that falls to zero; return its test accuracy too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(how.seed, "backbone"))
        network, head = Backbone(), nn.Linear(WIDTHS[-1], len(data.class_names))
    whole, rng = nn.Sequential(network, head).train(), generator(how.seed, "backbone", "batches")
    optimiser = torch.optim.Adam(whole.parameters(), how.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, how.steps)
    for _ in range(how.steps):
        rows = torch.randint(len(data.train), (how.batch,), generator=rng).numpy()
        batch = data.train.take(rows)
        optimiser.zero_grad()
        F.cross_entropy(whole(batch.x), batch.y).backward()
        optimiser.step()
        schedule.step()
    return network.eval(), accuracy(whole.eval(), data)


@torch.no_grad()
def accuracy(whole: nn.Module, data: Dataset) -> float:
    """The share of the source's test samples that are recognised."""
    assert data.test is not None
    right = 0
    for start in range(0, len(data.test), 500):
        batch = data.test.take(np.arange(start, min(start + 500, len(data.test))))
        right += int((whole(batch.x).argmax(1) == batch.y).sum())
    return right / len(data.test)


def make(name: str, how: Pretraining, data: Dataset | None = None, folder: Path = FOLDER) -> Path:
    """The file of a backbone, made where it is not there yet or was made otherwise."""
    file = folder / f"{name}.safetensors"
    if file.is_file() and (told := made(file))["pretraining"] == asdict(how):
        print(f"  {name}: found, {told['accuracy']:.1%}", flush=True)
        return file
    began = time.perf_counter()
    network, reached = pretrain(data or Npz(str(DATA / how.source)).load(), how)
    note = {"pretraining": asdict(how), "accuracy": reached}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, pack(network.state_dict(), metadata={"backbone": json.dumps(note)}))
    print(f"  {name}: {reached:.1%} of its own test set in {time.perf_counter() - began:.0f} s", flush=True)
    return file


def made(file: Path) -> dict[str, Any]:
    """What a backbone's file says of its training."""
    with safetensors.safe_open(file, framework="pt") as stored:
        note: dict[str, Any] = json.loads((stored.metadata() or {})["backbone"])
    return note


def extractor(name: str) -> dict[str, Any]:
    """A backbone as a plan's extractor; what reads the plan must trust `backbones:backbone`."""
    return {"name": "module", "path": "backbones:backbone", "options": {"file": str(FOLDER / f"{name}.safetensors")}}


if __name__ == "__main__":
    for each, settings in BACKBONES.items():
        make(each, settings)
