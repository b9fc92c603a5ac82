"""Large blocks of memory, which a C library gives back to the system and asks for again at every layer.

The system hands every page out anew, which takes longer than a layer of a deep network.  glibc keeps blocks that are
smaller than the largest one it got back so far, if that had less than 32 MiB.  So samples that only pass a network go
through it in pieces whose largest tensor is well below; for batches that train, whose size is not ours to choose, it is
told to keep all it has for a while.  Another C library is left alone.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Iterator
from contextlib import contextmanager

from hansa.lazy import torch

KEPT, LARGEST = 31 * 2**20, 20 * 2**20
# Of glibc's mallopt: the bytes that may lie idle, of which size on a block is the system's own, and how many of these.
TRIM, THRESHOLD, MAPPED = -1, -3, -4
# What glibc itself says of them once it got back a block of KEPT; told anything, it never learns anew.
USUAL = {MAPPED: 65_536, THRESHOLD: KEPT, TRIM: 2 * KEPT}
NO_LIMIT = 2**31 - 1


def rows_at_once(sample_bytes: float) -> int:
    """Return how many samples pass a network at once, whose largest tensor takes so many bytes for each of them."""
    _keep_small()
    return max(1, int(LARGEST // max(sample_bytes, 1)))


@functools.cache
def _keep_small() -> None:
    """Have glibc see a block of the size up to which it is to keep what it gets back."""
    torch.empty(KEPT, dtype=torch.uint8)


@contextmanager
def large_blocks_kept(largest: float) -> Iterator[None]:
    """Keep blocks of any size while this lasts, if the largest has more bytes than are kept anyway."""
    library = _glibc() if largest > LARGEST else None
    if library is None:
        yield
        return
    library.mallopt(MAPPED, 0)
    library.mallopt(TRIM, NO_LIMIT)
    try:
        yield
    finally:
        for what, value in USUAL.items():
            library.mallopt(what, value)
        library.malloc_trim(0)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """Return this process's C library, if it is glibc."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
