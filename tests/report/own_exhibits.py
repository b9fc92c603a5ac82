"""An algorithm that shows its latent space: spread around class means, their plane, and what each backbone adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.contract import Algorithm
from hansa.io.registry import Piece
from hansa.metrics.exhibits import Exhibit, principal_plane
from hansa.task import ClientData, Task
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree


@dataclass(frozen=True)
class Latent(Wrapper):
    inner: Annotated[Algorithm, Piece("algorithm")] = Personal(FedAvg())

    def observe(self, task: Task, model: Tree, data: ClientData) -> Tree:
        z = task.features(model, data.x)
        means = class_means(z, data.y, task.num_classes)
        alone = [
            class_means(task.features(model, only(data.x, span)), data.y, task.num_classes) for span in spans(task)
        ]
        likeness = torch.stack([torch.cosine_similarity(means, one, dim=1) for one in alone], dim=1)
        return {"means": means, "spread": ((z - means[data.y]) ** 2).sum(1).mean(), "likeness": likeness}

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        spread = {client: [float(own["spread"])] for client, own in observed.items()}
        places = [(client, kind) for client in observed for kind in range(task.num_classes)]
        plane = principal_plane(torch.cat([own["means"] for own in observed.values()]))
        points = {
            "PC 1": plane[:, 0].tolist(),
            "PC 2": plane[:, 1].tolist(),
            "group": [f"class {kind}" for _, kind in places],
            "name": [client for client, _ in places],
        }
        likeness = torch.stack([own["likeness"] for own in observed.values()]).nanmean(0)
        heat = {"class": [str(kind) for kind in range(task.num_classes)]}
        heat |= {name: likeness[:, place].tolist() for place, name in enumerate(task.columns())}
        return (
            Exhibit("distance to the class means", "curve", spread),
            Exhibit("class means", "scatter", points, "Principal components."),
            Exhibit("what each backbone adds", "heat map", heat, "Cosine similarity."),
        )


def spans(task: Task) -> list[slice]:
    return list(task.columns().values())


def only(x: Tensor, span: slice) -> Tensor:
    alone = torch.zeros_like(x)
    alone[:, span] = x[:, span]
    return alone


def class_means(z: Tensor, y: Tensor, classes: int) -> Tensor:
    hot = torch.nn.functional.one_hot(y, classes).to(z.dtype)
    return (hot.T @ z) / hot.sum(0)[:, None].clamp(min=1)


@dataclass(frozen=True)
class Uneven(Wrapper):
    inner: Annotated[Algorithm, Piece("algorithm")] = Personal(FedAvg())

    def observe(self, task: Task, model: Tree, data: ClientData) -> Tree:
        return {"x": data.x}
