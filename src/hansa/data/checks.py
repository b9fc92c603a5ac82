"""Checks of settings, so that every piece of the data layer refuses bad ones with the same kind of sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real

from hansa.errors import did_you_mean, require


def _named(piece: object, setting: str) -> str:
    return f"The '{setting}' of {type(piece).__name__}"


def whole(piece: object, setting: str, least: int = 1, *, optional: bool = False) -> None:
    """Require a whole number of at least `least`; None too where it is optional."""
    value = getattr(piece, setting)
    good = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
    require(
        good or (optional and value is None),
        f"{_named(piece, setting)} must be a whole number >= {least}. Got {value!r}.",
    )


def number(piece: object, setting: str, least: float = 0.0) -> None:
    """Require a finite number of at least `least`."""
    value = getattr(piece, setting)
    good = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) and float(value) >= least
    require(good, f"{_named(piece, setting)} must be a number >= {least:g}. Got {value!r}.")


def share(piece: object, setting: str, *, zero: bool = False) -> None:
    """Require a share below 1; above 0, or from 0 on where none at all makes sense."""
    value = getattr(piece, setting)
    good = isinstance(value, Real) and not isinstance(value, bool) and (0 < float(value) < 1 or (zero and value == 0))
    bounds = "at least 0 and below 1" if zero else "between 0 and 1"
    require(good, f"{_named(piece, setting)} must be a number {bounds}. Got {value!r}.")


def one_of(piece: object, setting: str, known: Iterable[str], *, optional: bool = False) -> None:
    """Require one of a few words; None too where it is optional."""
    value, known = getattr(piece, setting), list(known)
    if value not in known and not (optional and value is None):
        choices = ", ".join(f"'{word}'" for word in known)
        hint = did_you_mean(str(value), known)
        require(
            False, f"{_named(piece, setting)} must be one of {choices}. Got {value!r}.{hint if '?' in hint else ''}"
        )
