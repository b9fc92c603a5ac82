"""Labels and names as they come, turned into class numbers and text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import HansaError, require


def plain(values: Array, what: str) -> Array:
    """A flat array of whole numbers or text; numbers such as 2.0 become 2."""
    values = np.asarray(values)
    require(values.dtype.kind != "O", f"{what} holds Python objects; give whole numbers or text.")
    require(values.ndim == 1, f"{what} must have one entry for every sample. Got an array of shape {values.shape}.")
    if values.dtype.kind == "f":
        _require_whole(values, what)
        values = values.astype(np.int64)
    if values.dtype.kind in "bSU":
        values = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values.astype(str)
    require(values.dtype.kind in "iuU", f"{what} must be whole numbers or text. Got {values.dtype}.")
    return values


def _require_whole(values: Array, what: str) -> None:
    odd = np.flatnonzero(~(np.isfinite(values) & (values == np.rint(values))))
    if len(odd):
        raise HansaError(f"{what} must be whole numbers or text. Got {values[odd[0]]} for sample {odd[0]}.")


def names(values: Array, what: str) -> Array:
    """Names of clients or domains as text, none of them empty."""
    text: Array = plain(values, what).astype(str)
    empty = np.flatnonzero(np.char.str_len(text) == 0)
    if len(empty):
        raise HansaError(f"{what} is empty for sample {empty[0]}; give every sample a name.")
    return text


def class_numbers(
    parts: Sequence[Array], class_names: Sequence[str] | None = None, what: str = "The label array 'y'"
) -> tuple[list[Array], tuple[str, ...]]:
    """Class numbers for several arrays of labels (training, test …) under one list of classes.

    With `class_names`, whole numbers are positions in it and text is looked up in it.  Without, every label that
    occurs is a class.
    """
    labels = [plain(part, what) for part in parts]
    for part in labels:
        _require_not_negative(part, what)
    require(
        len({part.dtype.kind == "U" for part in labels}) == 1, f"{what} is text in one part and numbers in another."
    )
    if class_names is not None and labels[0].dtype.kind != "U":
        return _positions(labels, tuple(str(name) for name in class_names), what)
    if class_names is None:
        known = np.unique(np.concatenate(labels))
    else:
        known = np.asarray([str(name) for name in class_names])
    return [_look_up(part, known, what) for part in labels], tuple(str(name) for name in known)


def _require_not_negative(labels: Array, what: str) -> None:
    negative = np.flatnonzero(labels < 0 if labels.dtype.kind == "i" else np.zeros(0))
    if len(negative):
        raise HansaError(
            f"{what} must not be negative. Got {labels[negative[0]]} for sample {negative[0]}; "
            "leave out unlabelled samples."
        )


def _positions(labels: list[Array], classes: tuple[str, ...], what: str) -> tuple[list[Array], tuple[str, ...]]:
    highest = max((int(part.max()) for part in labels if len(part)), default=0)
    require(highest < len(classes), f"{what} goes up to {highest}, but there are only {len(classes)} class names.")
    return [part.astype(np.int64) for part in labels], classes


def _look_up(labels: Array, known: Array, what: str) -> Array:
    order = np.argsort(known, kind="stable")
    found = order[np.minimum(np.searchsorted(known, labels, sorter=order), len(known) - 1)]
    odd = np.flatnonzero(known[found] != labels)
    if len(odd):
        raise HansaError(f"{what} has '{labels[odd[0]]}' for sample {odd[0]}, which is not among the class names.")
    return found.astype(np.int64)


def require_two_classes(y: Array, class_names: Sequence[str], where: str) -> None:
    """There is nothing to learn from one class."""
    present = np.unique(y)
    if len(present) < 2:
        only = f"'{class_names[int(present[0])]}'" if len(present) else "none"
        raise HansaError(f"{where} has one class only ({only}); a classifier needs samples of at least two.")
