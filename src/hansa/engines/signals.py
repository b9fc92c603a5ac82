"""The signals that ask a run to stop: the run ends its round first, and its processes leave the answer to it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

# What a keyboard, a supervisor and a terminal that closes send; the last is not known everywhere.
STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
MASKS = hasattr(signal, "pthread_sigmask")  # without them (Windows), a process that is just starting ends when asked


@contextmanager
def held_back() -> Iterator[None]:
    """Hold these signals back, also from a process that is started meanwhile, until it says that they do nothing."""
    if not MASKS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_the_run() -> None:
    """Do nothing when asked to stop: a supervisor and a keyboard ask every process, and the run will close this one."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    if MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
