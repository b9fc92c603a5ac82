"""Pre-trained networks as the features of a model: loaded once, normalised as asked, and sparing with memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from hansa.errors import require
from hansa.lazy import Tensor, nn, torch
from hansa.models import networks

COLOURS = 3  # channels of a picture
Norm = Literal["frozen", "batch"]  # of batch norms: the statistics they came with, or those of a batch


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


def with_norm(network: nn.Module, norm: Norm) -> None:
    """Freeze the statistics of all batch norms of a network, unless they are to follow the batches."""
    if norm == "batch":
        return
    for name, layer in list(network.named_modules()):
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None:
            _put(network, name, networks.FrozenNorm(layer))


def with_products(network: nn.Module) -> None:
    """Let convolutions be products on a GPU, of single pixels and of pictures; for maps that have channels last."""
    for name, layer in list(network.named_modules()):
        if isinstance(layer, nn.Conv2d) and _is_pointwise(layer):
            _put(network, name, networks.Pointwise(layer))
        elif isinstance(layer, nn.Conv2d) and layer.in_channels == COLOURS and _is_plain(layer):
            _put(network, name, networks.Patches(layer, _taken_over(layer)))


def with_own_padding(network: nn.Module) -> None:
    """Let convolutions add the zeros themselves that a layer of theirs adds before them: it copies all maps."""
    for layer in network.modules():
        before = getattr(layer, "static_padding", None)
        if isinstance(layer, nn.Conv2d) and isinstance(before, nn.ZeroPad2d):
            left, right, above, below = before.padding
            if (left, above) == (right, below) and layer.padding == (0, 0):
                layer.padding, layer.static_padding = (above, left), nn.Identity()


def _is_pointwise(layer: nn.Conv2d) -> bool:
    """Tell whether a convolution reads every pixel by itself, in all channels."""
    alone = layer.kernel_size == tuple(layer.stride) == (1, 1)
    return alone and layer.padding == (0, 0) and _is_plain(layer)


def _is_plain(layer: nn.Conv2d) -> bool:
    """Tell whether every filter of a convolution reads all channels, of neighbours."""
    return layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"


def _taken_over(layer: nn.Conv2d) -> tuple[int, int, int, int]:
    """Return the zeros around a layer's inputs, whoever adds them: left, right, above and below."""
    before = getattr(layer, "static_padding", None)
    left, right, above, below = before.padding if isinstance(before, nn.ZeroPad2d) else (0, 0, 0, 0)
    assert not isinstance(layer.padding, str)
    tall, wide = layer.padding
    return left + wide, right + wide, above + tall, below + tall


def _put(network: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of the one of that name."""
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, layer)


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
        from torch.utils.checkpoint import checkpoint

        leaves = {**dict(self.block.named_parameters()), **dict(self.block.named_buffers())}
        return checkpoint(self._again, leaves, *args, use_reentrant=False, **options)

    def _again(self, leaves: dict[str, Tensor], *args: Any, **options: Any) -> Any:
        self.inside = True
        try:
            return torch.func.functional_call(self.block, leaves, args, options)
        finally:
            self.inside = False
