"""Trust: the code outside the catalogue that a plan, a model file or a message may name.

Whoever hands over a file chooses the text in it, and an import path in that text is code to run.  So what a table
names is imported only where whoever opens the table said beforehand that it may be.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hansa.errors import HansaError, require

EVERYTHING = "*"


@dataclass(frozen=True)
class ImportPath:
    """A mark on a text field that names code: `Annotated[str, ImportPath()]`; a table's is imported only if trusted."""


@dataclass(frozen=True)
class Trust:
    """The import paths that may be run: `package.module:Class` alone, `package.*` with all it holds, or `*`."""

    patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        odd = [one for one in self.patterns if not (one == EVERYTHING or is_import_path(_inside(str(one))))]
        says = "Trust is given to 'package.module:Class', to 'package.*' or to '*'"
        require(not odd, f"{says}. Got {', '.join(map(repr, odd))}.")

    @classmethod
    def of(cls, given: TrustLike) -> Trust:
        """Return what a caller trusts: True is everything, False nothing, and a list the import paths in it."""
        if isinstance(given, Trust):
            return given
        if isinstance(given, bool):
            return EVERYBODY if given else NOBODY
        good = isinstance(given, Sequence)
        require(good, f"The 'trust' must be True, False or a list of import paths. Got {given!r}.")
        return cls((given,) if isinstance(given, str) else tuple(given))

    def admits(self, path: str) -> bool:
        """Tell whether an import path may be run."""
        return path in self.patterns or self.covers(path.partition(":")[0])

    def covers(self, module: str) -> bool:
        """Tell whether all that a module holds may be run."""
        return any(f"{module}.".startswith(one[:-1]) for one in self.patterns if one.endswith("*"))


TrustLike = Trust | bool | Sequence[str]
NOBODY = Trust()
EVERYBODY = Trust((EVERYTHING,))


def is_import_path(text: str) -> bool:
    """Tell whether a text has the form `package.module:name`."""
    module, _, name = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), name))


def _inside(pattern: str) -> str:
    """Return the import path of something that a pattern of a package admits."""
    return f"{pattern.removesuffix('.*')}:name" if pattern.endswith(".*") else pattern


def imported(path: str, what: str, trust: Trust) -> Any:
    """Return what an import path names, if it is trusted.  Nowhere else does text become code."""
    says = f"The {what} '{path}'"
    form = f"{says} must be named by an import path such as 'package.module:name'; correct it."
    require(is_import_path(path), form)
    refused = "is code outside the catalogue, which runs only if you trust it: read it, then use --trust"
    require(trust.admits(path), f"{says} {refused} (in Python trust=True or a list of import paths).")
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HansaError(f"{says} cannot be imported: {error}; check its spelling and the Python path.") from error
    # A trusted module may have imported anything, such as `run` of subprocess; trust in it is not trust in that.
    home = str(getattr(found, "__module__", None))
    foreign = f"was only imported there, from '{home}', which is not trusted; trust '{path}' itself"
    require(path in trust.patterns or trust.covers(home), f"{says} {foreign}.")
    return found
