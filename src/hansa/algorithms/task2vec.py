"""Task2Vec: Achille et al., Task Embedding for Meta-Learning (2019); which filters of a frozen network data need."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hansa.errors import require
from hansa.io.flops import FlopCount
from hansa.models.dense import Linear
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Turn, train

Array = np.ndarray[Any, np.dtype[Any]]
BATCH = 64  # samples whose features are taken at once


class Probe(Hashable, Protocol):
    """A frozen pre-trained network: an extractor that also hands out the network whose weights are looked at."""

    def network(self) -> tuple[torch.nn.Module, Callable[[Array], Tensor]]:
        """Return the network, and what turns a batch of raw samples into its features (n × d)."""
        ...


def task2vec(
    probe: Probe, task: Task, local: LocalTraining, data: ClientData, samples: int, seed: int
) -> tuple[Tensor, float]:
    """Return the diagonal Fisher information of a probe's weights, averaged by filter, and the operations it took.

    The head is fitted on the features of all samples; the information is the mean of `(∂ log p(y|x)/∂w)²` over some of
    them, with y drawn from the fitted head's p(y|x) (eq. 3).
    """
    network, features = _opened(probe)
    z = _features(features, data.x)
    head = Task(Linear(), tuple(z.shape[1:]), task.num_classes, seed=task.seed)
    fitted = train(Turn(local, head, head.params()), ClientData(z, data.y), seed)
    rng = generator(seed, "fisher")
    chosen = data.x[torch.randperm(len(data), generator=rng)[:samples]]
    found = _fisher(network, lambda x: head.forward(fitted.params, features(_raw(x))), chosen, rng)
    passes = len(data) + 3 * len(chosen)  # a gradient costs about two passes more
    return found, fitted.flops + passes * _flops(probe, tuple(data.x.shape[1:]), data.x.dtype)


@functools.lru_cache(maxsize=1)
def _opened(probe: Probe) -> tuple[torch.nn.Module, Callable[[Array], Tensor]]:
    """Load a probe once for all clients that are visited here."""
    there = hasattr(probe, "network")
    require(there, f"The probe {probe} cannot be looked into: it has no 'network', as our extractors have.")
    return probe.network()


@functools.lru_cache(maxsize=16)
def _flops(probe: Probe, shape: tuple[int, ...], dtype: torch.dtype) -> float:
    """Count the operations of the probe for one sample."""
    with torch.no_grad(), FlopCount() as counter:
        _opened(probe)[1](_raw(torch.zeros((1, *shape), dtype=dtype)))
    return float(counter.total)


def _raw(x: Tensor) -> Array:
    """Return inputs as an extractor reads them: images in bytes, colours last; anything else as it is."""
    if x.ndim != 4:
        return np.asarray(x.cpu().numpy())
    images = (x.cpu() * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return np.asarray(images[..., 0] if images.shape[-1] == 1 else images)


def _features(features: Callable[[Array], Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([features(_raw(part)).flatten(1) for part in torch.split(x, BATCH)])


def _fisher(network: torch.nn.Module, logits: Callable[[Tensor], Tensor], x: Tensor, rng: torch.Generator) -> Tensor:
    """Return the mean squared gradient of log p(y|x), sample by sample, averaged over each filter's weights."""
    weights = [leaf.requires_grad_() for leaf in network.parameters() if leaf.ndim > 1]
    total: list[Tensor | None] = [None] * len(weights)
    for sample in torch.split(x, 1):
        chances = logits(sample).log_softmax(1)[0]
        drawn = torch.multinomial(chances.detach().exp(), 1, generator=rng)
        slopes = torch.autograd.grad(chances[drawn].sum(), weights, allow_unused=True)
        for place, slope in enumerate(slopes):
            if slope is not None:  # what lies behind the features has none
                part = slope.square().flatten(1).mean(1) / len(x)
                before = total[place]
                total[place] = part if before is None else before + part
    return torch.cat([part for part in total if part is not None]).float()
