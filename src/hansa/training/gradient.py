"""Gradients apart from training: what control variates, server statistics and meta-gradients are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from hansa.tree import Tree, copy


def weights_of(local: LocalTraining, task: Task, params: Tree) -> Tree:
    """The leaves that gradients move: what trains, without the float buffers that follow the data by themselves."""
    buffers = {key for key, _ in task.module.named_buffers()}
    return {key: leaf for key, leaf in local.moving(params).items() if key not in buffers}


def gradient(local: LocalTraining, task: Task, params: Tree, batch: ClientData) -> Tree:
    """`∇f(w)` on one batch, weight decay included; float buffers among `params` move in place, as in training."""
    weights = {key: leaf.detach().requires_grad_() for key, leaf in weights_of(local, task, params).items()}
    loss = F.cross_entropy(task.forward({**params, **weights}, batch.x, training=True), batch.y)
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True, materialize_grads=True)
    return {
        key: slope + local.weight_decay * leaf.detach()
        for (key, leaf), slope in zip(weights.items(), found, strict=True)
    }


def full_gradient(local: LocalTraining, task: Task, params: Tree, data: ClientData) -> Tree:
    """`∇f(w)` over all of a client's samples, computed in batches; nothing moves."""
    params, total = copy(params), dict[str, torch.Tensor]()
    for first in range(0, len(data), local.batch_size):
        batch = ClientData(data.x[first : first + local.batch_size], data.y[first : first + local.batch_size])
        for key, slope in gradient(local, task, params, batch).items():
            share = slope * (len(batch) / len(data))
            total[key] = total[key] + share if key in total else share
    return total
