"""Trees: flat dictionaries of tensors with dotted keys, at once a state_dict, a safetensors file and a message.

Every function returns new tensors and leaves its arguments untouched.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

from hansa.lazy import Tensor, torch

Tree = dict[str, Tensor]


def combine(left: Mapping[str, Tensor], right: Mapping[str, Tensor], by: Callable[[Tensor, Tensor], Tensor]) -> Tree:
    """Combine two trees with the same keys leaf by leaf."""
    if left.keys() != right.keys():
        odd = sorted(left.keys() ^ right.keys())
        raise KeyError(f"These leaves are in only one of two trees: {', '.join(odd)}.")
    return {key: by(value, right[key]) for key, value in left.items()}


def add(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tree:
    """Return `left + right`."""
    return combine(left, right, operator.add)


def union(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tree:
    """Return `left + right` over all leaves of either; one that is in only one of them is taken as it is."""
    if left.keys() == right.keys():
        return {key: leaf + right[key] for key, leaf in left.items()}
    both = {**left, **right}
    return {key: left[key] + right[key] if key in left and key in right else leaf for key, leaf in both.items()}


def subtract(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tree:
    """Return `left − right`."""
    return combine(left, right, operator.sub)


def scale(tree: Mapping[str, Tensor], factor: float | Tensor) -> Tree:
    """Return `factor · tree`."""
    return {key: value * factor for key, value in tree.items()}


def displacement(after: Mapping[str, Tensor], before: Mapping[str, Tensor], weight: float) -> Tree:
    """Return `weight · (after − before)`, in no more memory than the result takes."""

    def leaf(now: Tensor, then: Tensor) -> Tensor:
        step = now - then
        step *= weight
        return step

    return combine(after, before, leaf)


def is_finite(leaf: Tensor) -> bool:
    """Tell whether all numbers of a leaf are finite.

    A sum that is finite has finite terms, and takes a tenth of the time of looking at each; only where it is not, which
    may also be because it is too large, each is looked at.
    """
    return math.isfinite(leaf.sum().item()) or bool(leaf.isfinite().all())


def zeros_like(tree: Mapping[str, Tensor]) -> Tree:
    """Return a tree of zeros of the same shapes."""
    return {key: torch.zeros_like(value) for key, value in tree.items()}


def copy(tree: Mapping[str, Tensor]) -> Tree:
    """Copy all leaves: writing into the copies changes nobody else's."""
    return {key: value.detach().clone() for key, value in tree.items()}


def made(tree: Mapping[str, Tensor]) -> Tree:
    """Return the leaves themselves, where some are sums that an engine has not added up yet (see `lazy_sum`)."""
    return {key: leaf.contiguous() for key, leaf in tree.items()}


def nest(prefix: str, tree: Mapping[str, Tensor]) -> Tree:
    """Put a prefix before every key: `weight` becomes `prefix.weight`."""
    return {f"{prefix}.{key}": value for key, value in tree.items()}


def pick(prefix: str, tree: Mapping[str, Tensor]) -> Tree:
    """Return the leaves below `prefix.`, without it: the inverse of `nest`."""
    start = len(prefix) + 1
    return {key[start:]: value for key, value in tree.items() if key.startswith(f"{prefix}.")}


def norm(tree: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of all leaves together, in float64."""
    return float(sum(float(value.double().square().sum()) for value in tree.values()) ** 0.5)


def nbytes(tree: Mapping[str, Tensor]) -> int:
    """Count the bytes of the numbers themselves, without any message format."""
    return sum(value.numel() * value.element_size() for value in tree.values())


def unlike(tree: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> Tree:
    """Return the leaves that others do not have, or have with other bits."""
    return {key: leaf for key, leaf in tree.items() if key not in known or not _same_bits(leaf, known[key])}


def equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Tell whether two trees have the same keys, types, shapes and bits."""
    return left.keys() == right.keys() and not unlike(left, right)


def _same_bits(left: Tensor, right: Tensor) -> bool:
    return left is right or (left.dtype == right.dtype and torch.equal(left, right))
