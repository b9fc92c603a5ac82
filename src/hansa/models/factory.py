"""Networks of the user's own, made by anything that can be imported."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from hansa.errors import HansaError, require


def check_path(owner: str, path: str) -> None:
    """Refuse what cannot be an import path."""
    module, _, attribute = path.partition(":")
    require(
        bool(module and attribute),
        f"The 'path' of {owner} must be an import path such as 'package.module:factory'. Got '{path}'.",
    )


def make(path: str, options: Mapping[str, Any], offered: Mapping[str, Any] | None = None) -> nn.Module:
    """Call `package.module:factory` with the options, and with those of the `offered` arguments it has a name for."""
    factory = _find(path)
    wanted = _parameters(factory)
    offers = {name: value for name, value in (offered or {}).items() if name in wanted}
    try:
        module = factory(**{**offers, **options})
    except Exception as error:  # whatever a stranger's code raises
        raise HansaError(f"The factory '{path}' failed with options {dict(options)}: {error}.") from error
    if not isinstance(module, nn.Module):
        raise HansaError(f"The factory '{path}' must return a torch.nn.Module. Got a {type(module).__name__}.")
    return module


def _find(path: str) -> Callable[..., Any]:
    name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError) as error:
        raise HansaError(
            f"The factory '{path}' cannot be imported: {error}; check its spelling and the Python path."
        ) from error
    if not callable(found):
        raise HansaError(f"The factory '{path}' must be a class or function. Got a {type(found).__name__}.")
    return found  # type: ignore[no-any-return]


def _parameters(factory: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return frozenset()
