"""Networks of the user's own, made by anything that can be imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hansa.errors import HansaError, require
from hansa.io.trust import EVERYBODY, imported, is_import_path
from hansa.lazy import nn


def check_path(owner: str, path: str) -> None:
    """Refuse what cannot be an import path."""
    require(
        is_import_path(path),
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
    """Return the factory.  A path from a table was trusted when it was read, one given in Python is the user's own."""
    found = imported(path, "factory", EVERYBODY)
    if not callable(found):
        raise HansaError(f"The factory '{path}' must be a class or function. Got a {type(found).__name__}.")
    if isinstance(found, type) and not issubclass(found, nn.Module):
        raise HansaError(f"The factory '{path}' must make a torch.nn.Module, and is the class of something else.")
    return found  # type: ignore[no-any-return]


def _parameters(factory: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return frozenset()
