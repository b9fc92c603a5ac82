"""Labels and names as they come, turned into class numbers, real targets and text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hansa.data.dataset import Array
from hansa.data.targets import KINDS, Classes, Kind, Real, Target
from hansa.errors import HansaError, require


def plain(values: Array, what: str) -> Array:
    """Return a flat array of whole numbers or text; numbers such as 2.0 become 2."""
    values = np.asarray(values)
    require(values.dtype.kind != "O", f"{what} holds Python objects; give whole numbers or text.")
    require(values.ndim == 1, f"{what} must have one entry for every sample. Got an array of shape {values.shape}.")
    if values.dtype.kind == "f":
        _require_whole(values, what)
        values = values.astype(np.int64)
    if values.dtype.kind in "bSU":
        values = _decoded(values, what) if values.dtype.kind == "S" else values.astype(str)
    require(values.dtype.kind in "iuU", f"{what} must be whole numbers or text. Got {values.dtype}.")
    return values


def _decoded(values: Array, what: str) -> Array:
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise HansaError(f"{what} holds bytes that are not UTF-8 text; give whole numbers or text.") from error


def _require_whole(values: Array, what: str) -> None:
    odd = np.flatnonzero(~(np.isfinite(values) & (values == np.rint(values))))
    if len(odd):
        raise HansaError(f"{what} must be whole numbers or text. Got {values[odd[0]]} for sample {odd[0]}.")


def of_text(values: Sequence[str]) -> Array:
    """Return labels that were read as text as whole numbers where all of them are, and as text otherwise."""
    text = np.asarray(values)
    return text.astype(np.int64) if all(one.isdecimal() and len(one) < 16 for one in values) else text


def names(values: Array, what: str) -> Array:
    """Return the names of clients or domains as text, none of them empty."""
    text: Array = plain(values, what).astype(str)
    empty = np.flatnonzero(np.char.str_len(text) == 0)
    if len(empty):
        raise HansaError(f"{what} is empty for sample {empty[0]}; give every sample a name.")
    return text


def numbered(
    parts: Sequence[Array],
    class_names: Sequence[str] | None = None,
    target: Kind | None = None,
    what: str = "The label array 'y'",
) -> tuple[list[Array], Target]:
    """Number the labels of several arrays (training, test …) under one target, which is never guessed from floats."""
    require(target is None or target in KINDS, f'The \'target\' must be "real" or "classes". Got {target!r}.')
    parts = [np.asarray(part) for part in parts]
    if (target or _kind(parts, class_names, what)) == "real":
        require(class_names is None, f"{what} is a real target, and class names are given; leave one of them out.")
        return _real_targets(parts, what)
    numbers, classes = class_numbers(parts, class_names, what)
    return numbers, Classes(classes)


def _kind(parts: Sequence[Array], class_names: Sequence[str] | None, what: str) -> Kind:
    """Return classes, unless the labels are floats: those may be either, and are asked about."""
    floats = [part for part in parts if part.dtype.kind == "f"]
    if class_names is not None or not floats:
        return "classes"
    broken = [part[part != np.rint(part)] for part in floats]
    fraction = next((values[0] for values in broken if values.size), None)
    if fraction is None:
        raise HansaError(f'{what} holds floats that are all whole numbers; set target = "real" or "classes".')
    raise HansaError(f'{what} holds fractions such as {fraction}, which are no classes; set target = "real".')


def _real_targets(parts: Sequence[Array], what: str) -> tuple[list[Array], Target]:
    columns = [real_numbers(part, what) for part in parts]
    widths = {part.shape[1] for part in columns}
    require(len(widths) == 1, f"{what} has {' and '.join(map(str, sorted(widths)))} target columns in its parts.")
    width = widths.pop()
    return columns, Real() if width == 1 else Real(tuple(f"target-{place}" for place in range(width)))


def real_numbers(values: Array, what: str) -> Array:
    """Return real targets as float32 of shape n × targets, all of them finite."""
    require(values.dtype.kind in "iuf", f"{what} must be numbers for a real target. Got {values.dtype}.")
    fits = values.ndim in (1, 2) and values.size > 0
    require(fits, f"{what} must be n or n × targets real numbers. Got an array of shape {values.shape}.")
    with np.errstate(over="ignore"):  # an overflow shows as Inf, which is told below
        columns: Array = values.reshape(len(values), -1).astype(np.float32)
    odd = np.flatnonzero(~np.isfinite(columns).all(axis=1))
    if len(odd):
        raise HansaError(f"{what} has a NaN or Inf in row {odd[0]}; give a finite number or remove the row.")
    return columns


def class_numbers(
    parts: Sequence[Array], class_names: Sequence[str] | None = None, what: str = "The label array 'y'"
) -> tuple[list[Array], tuple[str, ...]]:
    """Return class numbers for several arrays of labels (training, test …) under one list of classes.

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


def require_two_classes(y: Array, target: Target, where: str) -> None:
    """Refuse a single class, as it teaches nothing; where classes are inferred, samples must be of two at least."""
    present = np.unique(y)
    if isinstance(target, Classes) and len(present) < 2:
        only = f"'{target.names[int(present[0])]}'" if len(present) else "none"
        raise HansaError(f"{where} has one class only ({only}); a classifier needs samples of at least two.")
