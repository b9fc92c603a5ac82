"""Recovery of others' images by a client with a generator (Hitaj et al. 2017; Silvi et al., FedSeq, section V.B)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hansa.errors import require
from hansa.io.files import write_whole
from hansa.lazy import F, Tensor, torch
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.tree import Tree, nest, pick

LAYERS = 3  # of the generator


@dataclass(frozen=True)
class GanRecovery:
    """A client that trains a generator of images of the class `target`, with the models it receives as discriminators.

    At a visit it trains for `epochs` E_a (eq. 8 of FedSeq): one dense layer on the features of the received model
    tells the attacker's own images from generated ones, and the generator tries to pass for real there and
    for the target's class in the model's own head.  The received model stays as it is, there is no class "fake" in it,
    and nothing is sent: the attack is passive.  The generator has dense layers of `width` and draws from `noise`
    numbers; its pixels stay in the range of the attacker's own images.
    """

    target: int = 0
    epochs: int = 5
    lr: float = 0.002
    batch_size: int = 32
    noise: int = 16
    width: int = 128

    def __post_init__(self) -> None:
        require(self.target >= 0, f"The 'target' of a recovery must be a class number ≥ 0. Got {self.target}.")
        require(self.lr > 0, f"The 'lr' of a recovery must be a number > 0. Got {self.lr}.")
        for name in ("epochs", "batch_size", "noise", "width"):
            value = getattr(self, name)
            require(value >= 1, f"The '{name}' of a recovery must be a whole number ≥ 1. Got {value}.")

    def begin(self, task: Task, data: ClientData, seed: int) -> Tree:
        """Return what the attacker has before its first visit: a random generator and a random layer."""
        require(self.target < task.num_classes, f"There is no class {self.target} to recover images of.")
        require(not task.integers, "A generator makes images, and the inputs are tokens: choose another task.")
        rng = generator(seed, "recovery")
        widths = [self.noise, self.width, self.width, data.x[0].numel()]
        made = {f"generator.{place}": _layer(widths[place], widths[place + 1], rng) for place in range(LAYERS)}
        told = task.features(task.params(), data.x[:1]).shape[1]
        bounds = torch.stack([data.x.min(), data.x.max()])
        layers = {**made, "real": _layer(told, 1, rng)}
        return {"bounds": bounds} | {key: leaf for name, own in layers.items() for key, leaf in nest(name, own).items()}

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Train at a visit on the message received; return what the attacker has afterwards."""
        model = task.params() | pick("model", down)
        layer, made = ({key: state[key].clone().requires_grad_() for key in _named(state, name)} for name in NETWORKS)
        tells, makes = (torch.optim.Adam(leaves.values(), self.lr, (0.5, 0.999)) for leaves in (layer, made))
        for _ in range(self.epochs):
            for x, *_ in data.batches(self.batch_size, rng):
                images = self._made({**state, **made}, len(x), x.shape[1:], rng)
                _descend(tells, _tell(task, model, layer, x, 1.0) + _tell(task, model, layer, images.detach(), 0.0))
                _descend(makes, _tell(task, model, layer, images, 1.0) + self._taken(task, model, images))
        return state | {key: leaf.detach() for key, leaf in {**layer, **made}.items()}

    def _taken(self, task: Task, model: Tree, images: Tensor) -> Tensor:
        """Return how little images are taken for the target's class by the model itself."""
        logits = task.forward(model, images)
        return F.cross_entropy(logits, torch.full((len(images),), self.target))

    def images(self, task: Task, state: Tree, count: int, seed: int) -> Tensor:
        """Return images as the attacker makes them now, in the shape of the task's inputs."""
        with torch.no_grad():
            return self._made(state, count, torch.Size(task.input_shape), generator(seed, "recovered"))

    def _made(self, state: Tree, count: int, shape: torch.Size, rng: torch.Generator) -> Tensor:
        out = torch.randn(count, self.noise, generator=rng)
        for place in range(LAYERS):
            out = _dense(pick(f"generator.{place}", state), out.relu() if place else out)
        low, high = state["bounds"].tolist()
        images: Tensor = low + (high - low) * out.sigmoid()
        return images.reshape(count, *shape)


def note_recovery(run: Path, attacker: str, target: int, visits: Sequence[tuple[int, float]], features: str) -> None:
    """Write into a run folder what its report draws: the distance after each visit, and whose `features` it is of."""
    told = [{"round": number, "distance": distance} for number, distance in visits]
    note = {"attacker": attacker, "target": target, "features": features, "visits": told}
    write_whole(run / "recovery.json", json.dumps(note))


NETWORKS = ("real", "generator")


def _named(state: Tree, name: str) -> list[str]:
    return [key for key in state if key.startswith(f"{name}.")]


def _layer(inputs: int, outputs: int, rng: torch.Generator) -> Tree:
    weight = torch.randn(outputs, inputs, generator=rng) * (2 / inputs) ** 0.5
    return {"weight": weight, "bias": torch.zeros(outputs)}


def _dense(layer: Tree, x: Tensor) -> Tensor:
    return x @ layer["weight"].T + layer["bias"]


def _tell(task: Task, model: Tree, layer: Tree, x: Tensor, real: float) -> Tensor:
    """Return how badly images are told to be real or made."""
    out = _dense(pick("real", layer), task.features(model, x))
    return F.binary_cross_entropy_with_logits(out, torch.full_like(out, real))


def _descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
