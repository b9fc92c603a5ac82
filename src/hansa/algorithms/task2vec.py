"""Task2Vec: Achille et al., Task Embedding for Meta-Learning (2019); which filters of a frozen network data need."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np

from hansa.data.pixel_scale import in_unit_range
from hansa.errors import HansaError, require
from hansa.lazy import Tensor, torch
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
    from hansa.io.flops import FlopCount

    network, extract = _opened(probe)

    def features(x: Tensor) -> Tensor:
        return extract(_raw(probe, task, x)).flatten(1)

    with torch.no_grad():
        z = torch.cat([features(part) for part in torch.split(data.x, BATCH)])
        with FlopCount() as counter:
            features(data.x[:1])
    head = Task(Linear(), tuple(z.shape[1:]), task.num_classes, seed=task.seed)
    fitted = train(Turn(local, head, head.params()), ClientData(z, data.y), seed)
    rng = generator(seed, "fisher")
    chosen = data.x[torch.randperm(len(data), generator=rng)[:samples]]
    found = _fisher(network, lambda x: head.forward(fitted.params, features(x)), chosen, rng)
    passes = len(data) + 3 * len(chosen)  # a gradient costs about two passes more
    return found, fitted.flops + passes * float(counter.total)


@functools.lru_cache(maxsize=1)
def _opened(probe: Probe) -> tuple[torch.nn.Module, Callable[[Array], Tensor]]:
    """Load a probe once for all clients that are visited here."""
    there = hasattr(probe, "network")
    require(there, f"The probe {probe} cannot be looked into: it has no 'network', as our extractors have.")
    return probe.network()


def check_probe(probe: Probe, task: Task) -> None:
    """Refuse a probe that cannot read what clients hold."""
    sample = torch.zeros((1, *task.input_shape), dtype=torch.int64 if task.integers else torch.float32)
    try:
        with torch.no_grad():
            _opened(probe)[1](_raw(probe, task, sample))
    except HansaError as error:
        raise HansaError(f"The probe of 'task2vec' cannot read the samples that clients hold: {error}") from error


def _raw(probe: Probe, task: Task, x: Tensor) -> Array:
    """Return inputs as an extractor reads them: images in bytes, colours last; texts; anything else as it is."""
    if task.characters and getattr(probe, "reads_text", False):
        return np.asarray(["".join(task.characters[one] for one in row) for row in x.tolist()])
    if x.ndim != 4:
        return np.asarray(x.cpu().numpy())
    images = (in_unit_range(x.cpu(), task.pixels) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return np.asarray(images[..., 0] if images.shape[-1] == 1 else images)


def _fisher(network: torch.nn.Module, logits: Callable[[Tensor], Tensor], x: Tensor, rng: torch.Generator) -> Tensor:
    """Return the mean squared gradient of log p(y|x), sample by sample, averaged over each filter's weights."""
    words = {id(one.weight) for one in network.modules() if isinstance(one, torch.nn.Embedding)}  # rows are no filters
    matrices = [leaf for leaf in network.parameters() if leaf.ndim > 1 and id(leaf) not in words]
    weights = [leaf.requires_grad_() for leaf in matrices]
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
