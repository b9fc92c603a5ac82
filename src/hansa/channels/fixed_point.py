"""Numbers in fixed point, whose sums are exact: whole numbers modulo 2⁶⁴ for steps, modulo 2¹²⁸ for statistics.

A step, which training computed in float32, is rounded to a multiple of 2⁻²⁴.  A statistic is rounded to a multiple of
2⁻⁶⁴, which keeps every bit of a float64 of at least 2⁻¹².  A number that is too large for a sum over all clients is
refused and never clipped: a sum of clipped numbers would be wrong without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.payload import Role, Update, role_of
from hansa.tree import Tree

Array = np.ndarray[Any, np.dtype[Any]]
Words = dict[str, Array]  # by format: its words (the lower ones first) × numbers, of 64 bits each
Layout = Mapping[str, "tuple[torch.Size, torch.dtype]"]
SYMMETRIC = "gram"  # the last part of a key whose leaf is a symmetric matrix: its upper triangle is all of it


class Format(NamedTuple):
    """A number format: how many words of 64 bits a number takes, and how many bits follow the point."""

    words: int
    bits: int


FORMATS = {"steps": Format(1, 24), "sums": Format(2, 64)}


@dataclass(frozen=True)
class FixedPoint:
    """Uploads of one layout as whole numbers: the same places for all clients, the weight among them."""

    layout: Layout
    uplink: Mapping[str, Role]
    clients: int  # whose sum must fit

    def _keys(self, name: str) -> list[str]:
        """Return the leaves that travel in a format, in their order."""
        steps = [key for key in sorted(self.layout) if role_of(self.uplink, key) is Role.STEP]
        return steps if name == "steps" else [key for key in sorted(self.layout) if key not in steps]

    def encode(self, up: Update) -> Words:
        """Return an upload's numbers; refuse one that a sum over all clients could not hold."""
        weight = torch.tensor([up.weight], dtype=torch.float64)
        parts = {name: [_flat(key, up.sums[key]) for key in self._keys(name)] for name in FORMATS}
        parts["sums"].append(weight)
        return {name: self._rounded(torch.cat([*leaves, weight[:0]]), FORMATS[name]) for name, leaves in parts.items()}

    def _rounded(self, numbers: Tensor, form: Format) -> Array:
        whole = np.rint(np.ldexp(numbers.numpy(), form.bits))
        most, limit = float(np.abs(whole).max(initial=0.0)), 2.0 ** (64 * form.words - 1) / self.clients
        says = f"The upload holds a number of size {most / 2.0**form.bits:.3g}, and in a secure sum of {self.clients}"
        require(most < limit, f"{says} clients {64 * form.words} bits hold less than {limit / 2.0**form.bits:.3g}.")
        found: Array
        if form.words == 1:
            found = whole.astype(np.int64).view(np.uint64)[None]
            return found
        size, minus = np.abs(whole), whole < 0
        upper = np.floor(np.ldexp(size, -64))
        found = np.stack([(size - np.ldexp(upper, 64)).astype(np.uint64), upper.astype(np.uint64)])
        found[:, minus] = negated(found[:, minus])
        return found

    def decode(self, total: Words) -> tuple[Tree, float]:
        """Return the sums, in the layout's types, and the weight."""
        found, weight = dict[str, torch.Tensor](), 0.0
        for name, form in FORMATS.items():
            numbers = torch.from_numpy(np.ldexp(_signed(total[name]), -form.bits))
            sizes = [_places(key, self.layout[key][0]) for key in self._keys(name)]
            *leaves, rest = torch.split(numbers, [*sizes, len(numbers) - sum(sizes)])
            for key, flat in zip(self._keys(name), leaves, strict=True):
                shape, dtype = self.layout[key]
                leaf = _restored(key, flat, shape)
                found[key] = (leaf if dtype.is_floating_point else leaf.round()).to(dtype)
            weight = float(rest) if name == "sums" else weight
        return {key: found[key] for key in self.layout}, weight

    def check(self, masked: Tree) -> None:
        """Refuse words under masks that no upload of this layout has."""
        shapes = {name: (FORMATS[name].words, length) for name, length in self.lengths().items()}
        good = {name: (leaf.shape, leaf.dtype) for name, leaf in masked.items()}
        wanted = {name: (torch.Size(shape), torch.int64) for name, shape in shapes.items()}
        require(good == wanted, f"The masked upload must have words of the shapes {shapes}.")

    def lengths(self) -> dict[str, int]:
        """Return how many numbers travel in each format."""
        sizes = {name: sum(_places(key, self.layout[key][0]) for key in self._keys(name)) for name in FORMATS}
        return {**sizes, "sums": sizes["sums"] + 1}  # the weight


def _folds(key: str, shape: torch.Size) -> bool:
    return key.rpartition(".")[2] == SYMMETRIC and len(shape) == 2 and shape[0] == shape[1]


def _places(key: str, shape: torch.Size) -> int:
    return shape[0] * (shape[0] + 1) // 2 if _folds(key, shape) else shape.numel()


def _flat(key: str, leaf: Tensor) -> Tensor:
    """Return the numbers of a leaf that are not told by others."""
    leaf = leaf.detach().to(device="cpu", dtype=torch.float64)
    return leaf[tuple(torch.triu_indices(*leaf.shape))] if _folds(key, leaf.shape) else leaf.flatten()


def _restored(key: str, flat: Tensor, shape: torch.Size) -> Tensor:
    if not _folds(key, shape):
        return flat.reshape(shape)
    upper = flat.new_zeros(shape)
    upper[tuple(torch.triu_indices(*shape))] = flat
    return upper + upper.triu(1).T


def _signed(words: Array) -> Array:
    """Return whole numbers as float64; one that a float64 can hold is exact."""
    if len(words) == 1:
        one: Array = words[0].view(np.int64).astype(np.float64)
        return one
    minus = (words[1] >> np.uint64(63)).astype(bool)
    size = np.where(minus, negated(words), words)
    found: Array = np.ldexp(size[1].astype(np.float64), 64) + size[0].astype(np.float64)
    return np.where(minus, -found, found)


def added(left: Array, right: Array) -> Array:
    """Return the sum of two rows of words, modulo 2⁶⁴ or 2¹²⁸."""
    found: Array = left + right
    if len(left) == 2:
        found[1] += found[0] < left[0]
    return found


def negated(words: Array) -> Array:
    """Return the negative of a row of words: two's complement."""
    one = np.zeros_like(words)
    one[0] = 1
    return added(~words, one)
