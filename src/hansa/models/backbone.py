"""Pre-trained networks as the features of a model: loaded once, normalised as asked, and sparing with memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils.checkpoint import checkpoint

from hansa.errors import require

Norm = Literal["frozen", "batch"]  # of batch norms: the statistics they came with, or those of a batch
ROWS = 256  # samples that go through at once where nothing trains


class Backbone(nn.Module):
    """A network, and what makes one vector a sample of its inputs and outputs.

    Where no gradient is asked for, samples go through some at a time: maps of many pictures would not fit in memory.
    """

    def __init__(self, network: nn.Module, through: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.through = network, through

    def forward(self, x: Tensor) -> Tensor:
        """Return a row of features a sample."""
        if torch.is_grad_enabled() or len(x) <= ROWS:
            return self.through(self.network, x)
        return torch.cat([self.through(self.network, part) for part in torch.split(x, ROWS)])


@contextmanager
def apart() -> Iterator[None]:
    """Load something as if nobody had asked: no draw of a generator, no device of a caller's choice."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        yield


def device_of(network: nn.Module) -> torch.device:
    """Return where a network is."""
    return next((leaf.device for leaf in (*network.parameters(), *network.buffers())), torch.device("cpu"))


def shared_copy(network: nn.Module) -> Any:
    """Return a network of its own on the very same weights, which whoever trains copies first."""
    memo: dict[int, Any] = {id(leaf): nn.Parameter(leaf.detach()) for leaf in network.parameters()}
    memo |= {id(leaf): leaf.detach() for leaf in network.buffers()}
    return copy.deepcopy(network, memo)


class FrozenNorm(_NormBase):
    """Batch normalisation by the statistics it came with, in training too: `(x − μ)/√(σ² + ε)·γ + β`.

    γ and β train.  μ and σ² are called `frozen_…`, and such leaves neither train nor travel.
    """

    sample_by_sample = True  # what it computes for a sample does not depend on others, on training mode or on chance

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__(layer.num_features, layer.eps, affine=layer.affine, track_running_stats=False)
        self.weight, self.bias = layer.weight, layer.bias
        self.frozen_mean: Tensor
        self.frozen_var: Tensor
        self.register_buffer("frozen_mean", layer.running_mean)
        self.register_buffer("frozen_var", layer.running_var)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised maps."""
        return F.batch_norm(x, self.frozen_mean, self.frozen_var, self.weight, self.bias, False, 0.0, self.eps)


def with_norm(network: nn.Module, norm: Norm) -> None:
    """Freeze the statistics of all batch norms of a network, unless they are to follow the batches."""
    if norm == "batch":
        return
    for name, layer in list(network.named_modules()):
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
            parent, _, last = name.rpartition(".")
            setattr(network.get_submodule(parent), last, FrozenNorm(layer))


def check_recomputed(owner: str, recompute: bool, norm: Norm) -> None:
    """Refuse what would move the statistics of a batch twice."""
    good = not (recompute and norm == "batch")
    require(good, f"The 'recompute' of {owner} passes batches twice, and so needs norm = \"frozen\".")


def recomputed(network: nn.Module) -> None:
    """Let blocks forget their maps after the forward pass, and compute them again for the gradient.

    Blocks are the entries of the network's outermost lists of modules.
    """
    for block in _blocks(network):
        block.forward = _Recomputed(block)


def _blocks(network: nn.Module) -> Iterator[nn.Module]:
    for child in network.children():
        yield from child if isinstance(child, nn.ModuleList) else _blocks(child)


class _Recomputed:
    """The forward pass of a block that keeps its inputs alone.

    Leaves are those that a task has put in place for this pass; when the gradient is asked for they are gone, so they
    are inputs like the others.
    """

    def __init__(self, block: nn.Module) -> None:
        self.block, self.plain, self.inside = block, block.forward, False

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.inside or not (self.block.training and torch.is_grad_enabled()):
            return self.plain(*args, **options)
        leaves = {**dict(self.block.named_parameters()), **dict(self.block.named_buffers())}
        return checkpoint(self._again, leaves, *args, use_reentrant=False, **options)

    def _again(self, leaves: dict[str, Tensor], *args: Any, **options: Any) -> Any:
        self.inside = True
        try:
            return functional_call(self.block, leaves, args, options)
        finally:
            self.inside = False
