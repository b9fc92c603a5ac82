"""Targets of a model's predictions: classes or real numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hansa.errors import HansaError, require

Kind = Literal["real", "classes"]  # how a source's setting `target` names them
KINDS: tuple[Kind, ...] = ("real", "classes")


@dataclass(frozen=True)
class Classes:
    """Classes to tell apart; labels are class numbers, int64 of shape (n)."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        twice = next((name for name, count in Counter(self.names).items() if count > 1), None)
        require(twice is None, f"Two classes are called '{twice}'; give every class a name of its own.")

    @property
    def outputs(self) -> int:
        """Outputs of a model: one for every class."""
        return len(self.names)


@dataclass(frozen=True)
class Real:
    """Real numbers to predict; labels are float32 of shape (n × targets)."""

    names: tuple[str, ...] = ("target",)  # one for every target column

    @property
    def outputs(self) -> int:
        """Outputs of a model: one for every target column."""
        return len(self.names)


Target = Classes | Real


def class_names_of(target: Target, what: str) -> tuple[str, ...]:
    """Return the names of the classes, or refuse, as `what` needs classes, where the target has none."""
    if isinstance(target, Real):
        columns = ", ".join(f"'{name}'" for name in target.names)
        raise HansaError(f'{what} needs classes, and the target ({columns}) is real-valued; set target = "classes".')
    return target.names


def target_to_table(target: Target) -> dict[str, Any]:
    """Return a target as JSON takes it."""
    return {"kind": "real" if isinstance(target, Real) else "classes", "names": list(target.names)}


def target_from_table(table: Mapping[str, Any]) -> Target:
    """Return the target that `target_to_table` wrote."""
    kind, names = (table.get("kind"), table.get("names")) if isinstance(table, Mapping) else (None, None)
    good = kind in KINDS and isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    if not (good and isinstance(names, list)):
        raise HansaError(f"A target needs a 'kind', \"real\" or \"classes\", and a list of 'names'. Got {table}."[:300])
    return Real(tuple(names)) if kind == "real" else Classes(tuple(names))
