"""A frozen network of the user's own, named by its import path."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from hansa.data.dataset import Array, read_by_models
from hansa.errors import HansaError, require
from hansa.io.cache import digest
from hansa.io.trust import ImportPath
from hansa.lazy import Tensor, nn, torch
from hansa.models.backbone import device_of
from hansa.models.factory import check_path, make
from hansa.seeds import seed_for


@dataclass(frozen=True)
class FrozenModule:
    """The torch module that `package.module:factory` makes of `options`; its outputs, flattened, are the features.

    It reads images as channels × height × width in [0, 1], vectors and tokens as they are.  Weights it does not load
    itself are drawn from `seed`.
    """

    path: Annotated[str, ImportPath()]
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    seed: int = 0

    reads: ClassVar[frozenset[str]] = frozenset({"images", "numbers"})

    def __post_init__(self) -> None:
        check_path("FrozenModule", self.path)

    def fingerprint(self) -> str:
        """Return a name made of path and options, the module's source and its weights."""
        module = self._module()
        return digest(
            self.path, json.dumps(self.options, sort_keys=True, default=str), _source(module), _weights(module)
        )

    def prepare(self) -> Callable[[Array], Tensor]:
        """Make the module."""
        return self.network()[1]

    def network(self) -> tuple[nn.Module, Callable[[Array], Tensor]]:
        """Make the module; return it too, for what looks at its weights."""
        module = self._module()

        def features(x: Array) -> Tensor:
            require(
                x.dtype.kind in "uif",
                f"FrozenModule reads numbers. Got {x.dtype} samples; use 'transformers' for text.",
            )
            inputs = read_by_models(x, device_of(module))
            try:
                outputs = module(inputs)
            except Exception as error:  # whatever a stranger's code raises
                shape = tuple(inputs.shape[1:])
                raise HansaError(
                    f"The extractor '{self.path}' cannot read samples of shape {shape}: {error}."
                ) from error
            if not (isinstance(outputs, torch.Tensor) and len(outputs) == len(x) and outputs.ndim > 1):
                raise HansaError(f"The extractor '{self.path}' must return one tensor with a row of features a sample.")
            return outputs.flatten(1)

        return module, features

    def _module(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(
                seed_for(self.seed, "extractor")
            )  # modules initialise themselves from torch's own generator
            return make(self.path, self.options).eval()


def _source(module: nn.Module) -> str:
    """Return the text of the module's class, so that an edited forward pass is another extractor."""
    try:
        return inspect.getsource(type(module))
    except (OSError, TypeError):  # typed at a prompt
        return type(module).__qualname__


def _weights(module: nn.Module) -> str:
    content = hashlib.blake2b(digest_size=16)
    for name, leaf in module.state_dict().items():
        content.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        content.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return content.hexdigest()
