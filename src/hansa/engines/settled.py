"""Python's collector of garbage, kept away from what is there before a phase."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settled() -> Iterator[None]:
    """Let the collector look at what is made while this lasts, and at nothing older.

    A round makes some objects a client, so the collector runs often; it need not see torch's 100,000 each time.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
