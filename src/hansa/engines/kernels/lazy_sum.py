"""Leaves that are not there yet: linear combinations of tensors and of what training moved them by.

When many clients train together, nobody needs each client's own leaf as long as only sums of them are asked for.  A
`LazySum` stands in for such a leaf: algorithms add, subtract and scale it as they would a tensor, which only notes
coefficients; a sum over a cohort then costs one product.  Anything else that is asked of one makes the tensor, so
an algorithm that does look at a client's leaf gets what it would have got, in this machine's memory.

A client's state may be made of such leaves too (`AddsToState`): what an algorithm adds to it is then added up on the
device that trains, which a state that comes again soon never leaves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from hansa.lazy import Tensor, torch
from hansa.tree import Tree, is_finite

Terms = dict[int, tuple[float, Any]]  # by the identity of a tensor or a delta: its coefficient and itself


class Deltas(Protocol):
    """The displacements of one leaf by many clients' training."""

    def one(self, place: int) -> Tensor:
        """Return one client's displacement, on the device that it was trained on."""
        ...

    def combine(self, coefficients: Mapping[int, float]) -> Tensor:
        """Return a linear combination, without making each displacement."""
        ...

    @property
    def finite(self) -> Sequence[bool]:
        """Whether all numbers of each client's displacement are finite."""
        ...


class Delta:
    """One client's displacement of one leaf."""

    __slots__ = ("deltas", "place")

    def __init__(self, deltas: Deltas, place: int):
        self.deltas, self.place = deltas, place


class LazySum:
    """`Σ coefficient · tensor + Σ coefficient · delta`, not yet added up.  Takes the place of a tensor in a tree."""

    __slots__ = ("dtype", "shape", "terms")

    def __init__(self, shape: torch.Size, dtype: torch.dtype, terms: Terms):
        self.shape, self.dtype, self.terms = shape, dtype, terms

    @classmethod
    def moved(cls, start: Tensor, terms: Iterable[tuple[float, Tensor | Delta]]) -> Tensor:
        """Return a leaf after training, from its start and what moved it."""
        every: Terms = dict(start.terms) if isinstance(start, LazySum) else {id(start): (1.0, start)}
        for coefficient, term in terms:
            _accumulate(every, coefficient, term)
        return cast(torch.Tensor, cls(start.shape, start.dtype, every))

    @classmethod
    def only(cls, deltas: Deltas, place: int, like: Tensor) -> Tensor:
        """Return one client's row of what many computed together, by itself."""
        delta = Delta(deltas, place)
        return cast(torch.Tensor, cls(like.shape, like.dtype, {id(delta): (1.0, delta)}))

    def tensor(self) -> Tensor:
        """Return the leaf itself."""
        return _add_up(self.terms, self.shape, self.dtype)

    def on(self, copies: Copies) -> Tensor:
        """Return the leaf itself, added up on a device; a single tensor is not copied where it lies there."""
        found = list(self.terms.values())
        if len(found) == 1 and found[0][0] == 1.0:
            return copies.of(found[0][1])
        result: Tensor | None = None
        for coefficient, term in found:
            part = copies.of(term)
            result = part * coefficient if result is None else result.add_(part, alpha=coefficient)
        return torch.zeros(self.shape, dtype=self.dtype, device=copies.device) if result is None else result

    def all_finite(self, own: Collection[int] = ()) -> bool:
        """Tell whether all terms are finite, without making the tensor; those of these identities are known to be."""
        return all(
            math.isfinite(coefficient)
            and (term.deltas.finite[term.place] if isinstance(term, Delta) else key in own or is_finite(term))
            for key, (coefficient, term) in self.terms.items()
        )

    def scaled(self, factor: float) -> LazySum:
        """Return `factor · self`."""
        return LazySum(self.shape, self.dtype, {key: (factor * c, term) for key, (c, term) in self.terms.items()})

    def plus(self, other: LazySum | Tensor, factor: float) -> LazySum:
        """Return `self + factor · other`."""
        terms = dict(self.terms)
        if isinstance(other, LazySum):
            for coefficient, term in other.terms.values():
                _accumulate(terms, factor * coefficient, term)
        else:
            _accumulate(terms, factor, other)
        return LazySum(self.shape, self.dtype, terms)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Let torch take a lazy sum among its arguments: write it down if linear, else use the tensor."""
        if function is torch.zeros_like and not kwargs:
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        rule = _RULES.get(function.__name__) if not kwargs and len(args) == 2 else None
        found = rule(*args) if rule else None
        return function(*dense_all(args), **dense_all(dict(kwargs or {}))) if found is None else found

    def __add__(self, other: Any) -> Any:
        found = _add(self, other)
        return torch.add(self.tensor(), dense(other)) if found is None else found

    def __sub__(self, other: Any) -> Any:
        found = _subtract(self, other)
        return torch.sub(self.tensor(), dense(other)) if found is None else found

    def __mul__(self, other: Any) -> Any:
        found = _multiply(self, other)
        return torch.mul(self.tensor(), dense(other)) if found is None else found

    def __truediv__(self, other: Any) -> Any:
        found = _divide(self, other)
        return torch.div(self.tensor(), dense(other)) if found is None else found

    def __neg__(self) -> Any:
        return self.scaled(-1.0)

    def __rsub__(self, other: Any) -> Any:
        return self.scaled(-1.0) + other

    def __matmul__(self, other: Any) -> Any:
        return self.tensor() @ other

    def __pow__(self, other: Any) -> Any:
        return self.tensor() ** other

    def __getitem__(self, place: Any) -> Any:
        return self.tensor()[place]

    def __len__(self) -> int:
        return self.shape[0]

    __radd__, __rmul__ = __add__, __mul__

    def detach(self) -> LazySum:
        """Return the sum itself: no gradient flows through training."""
        return self

    def clone(self) -> LazySum:
        """Return the sum itself: it is never written to."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)


class Copies:
    """Leaves on a device; tensors that several of them are made of are copied once."""

    def __init__(self, device: torch.device):
        self.device = device
        self._known: dict[int, tuple[Any, Tensor]] = {}  # by identity, with what keeps it unique

    def of(self, leaf: Tensor | Delta) -> Tensor:
        """Return a leaf on the device."""
        if isinstance(leaf, LazySum):
            return leaf.on(self)
        if isinstance(leaf, Delta):
            return leaf.deltas.one(leaf.place).to(self.device)
        if leaf.device == self.device:
            return leaf
        if id(leaf) not in self._known:
            self._known[id(leaf)] = leaf, leaf.to(self.device)
        return self._known[id(leaf)][1]

    def keep(self, tree: Tree) -> None:
        """Let go of all copies but those of a tree's leaves."""
        found = {id(leaf): self._known.get(id(leaf)) for leaf in tree.values()}
        self._known = {key: copy for key, copy in found.items() if copy is not None}


def lazily(tree: Tree) -> Tree:
    """Return a tree of lazy sums, wherever its tensors lie."""
    return {key: cast(torch.Tensor, _lazy(leaf)) for key, leaf in tree.items()}


def dense(leaf: Tensor) -> Tensor:
    """Return the tensor of a leaf that may be a lazy sum."""
    return leaf.tensor() if isinstance(leaf, LazySum) else leaf


def dense_tree(tree: Tree) -> Tree:
    """Return a tree of tensors only."""
    return {key: dense(leaf) for key, leaf in tree.items()}


def dense_all(value: Any) -> Any:
    """Return the arguments of a function with every lazy sum made a tensor."""
    if isinstance(value, LazySum):
        return value.tensor()
    if isinstance(value, (tuple, list)):
        return type(value)(dense_all(one) for one in value)
    return {key: dense_all(one) for key, one in value.items()} if isinstance(value, dict) else value


def total(leaves: Iterable[LazySum], shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return the sum of many lazy sums: one product for each set of deltas."""
    terms: Terms = {}
    for leaf in leaves:
        for coefficient, term in leaf.terms.values():
            _accumulate(terms, coefficient, term)
    return _add_up(terms, shape, dtype)


def _accumulate(terms: Terms, coefficient: float, term: Tensor | Delta) -> None:
    key = id(term)
    known = terms.get(key)
    value = coefficient if known is None else known[0] + coefficient
    if value:
        terms[key] = (value, term)
    elif known is not None:
        del terms[key]


def _add_up(terms: Terms, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    together: dict[int, tuple[Deltas, dict[int, float]]] = {}
    result: Tensor | None = None
    for coefficient, term in terms.values():
        if isinstance(term, Delta):
            together.setdefault(id(term.deltas), (term.deltas, {}))[1][term.place] = coefficient
        else:
            result = coefficient * term.cpu() if result is None else result.add_(term.cpu(), alpha=coefficient)
    for deltas, coefficients in together.values():
        part = _moved(deltas, coefficients).cpu()
        result = part if result is None else result.add_(part)
    return torch.zeros(shape, dtype=dtype) if result is None else result


def _moved(deltas: Deltas, coefficients: dict[int, float]) -> Tensor:
    if len(coefficients) == 1:
        ((place, coefficient),) = coefficients.items()
        return deltas.one(place) * coefficient
    return deltas.combine(coefficients)


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    return float(value) if isinstance(value, torch.Tensor) and value.ndim == 0 else None


def _fits(left: Any, right: Any) -> bool:
    leaves = isinstance(left, (LazySum, torch.Tensor)) and isinstance(right, (LazySum, torch.Tensor))
    return leaves and left.shape == right.shape and left.dtype == right.dtype


def _lazy(leaf: Tensor | LazySum) -> LazySum:
    return leaf if isinstance(leaf, LazySum) else LazySum(leaf.shape, leaf.dtype, {id(leaf): (1.0, leaf)})


def _add(left: Any, right: Any) -> LazySum | None:
    return _lazy(left).plus(right, 1.0) if _fits(left, right) else None


def _subtract(left: Any, right: Any) -> LazySum | None:
    return _lazy(left).plus(right, -1.0) if _fits(left, right) else None


def _multiply(left: Any, right: Any) -> LazySum | None:
    lazy, factor = (left, _number(right)) if isinstance(left, LazySum) else (right, _number(left))
    return None if factor is None else lazy.scaled(factor)


def _divide(left: Any, right: Any) -> LazySum | None:
    factor = _number(right)
    return left.scaled(1.0 / factor) if isinstance(left, LazySum) and factor else None


_RULES = {"add": _add, "sub": _subtract, "mul": _multiply, "div": _divide, "true_divide": _divide}
