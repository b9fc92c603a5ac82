"""Floating-point operations of whatever torch is asked to do: matrix products, convolutions, attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class _Counting:
    """The counting of every operation.

    Not a method of the mode itself: torch would wrap it so that its compiler leaves it alone, and wrapping loads the
    compiler, a second of every start.
    """

    total: int
    largest: int

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        with self:  # type: ignore[attr-defined]
            parts = function.decompose(*args, **named) if function is not torch.ops.prim.device.default else None
        if parts is not None and parts is not NotImplemented:
            return parts
        result = function(*args, **named)
        count: Callable[..., Any] | None = flop_registry.get(function._overloadpacket)
        self.total += int(count(*args, **named, out_val=result)) if count else 0
        if not any(one.alias_info for one in function._schema.returns):  # a view, such as a turned weight, is none
            found = result if isinstance(result, (tuple, list)) else (result,)
            self.largest = max(self.largest, *(one.nbytes for one in found if isinstance(one, torch.Tensor)), 0)
        return result


class FlopCount(_Counting, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A count of operations, in `total`, while it lasts; a multiply-add is two, as in torch's own counter.

    `largest` are the bytes of the largest tensor that an operation made.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.largest = 0
