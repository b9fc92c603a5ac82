"""The allocation limit: whatever a file or a message says of its size is weighed before memory is asked for."""

from __future__ import annotations

import os
from pathlib import Path

from hansa.errors import HansaError

UNKNOWN = 2**36  # bytes taken for granted where the system does not tell
SMALL = 2**26  # bytes that nobody asks about


def fits_in() -> int:
    """Return the bytes of memory that are free, as far as the system tells, else what any machine may have."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as told:
            found = next(line for line in told if line.startswith("MemAvailable:"))
        return int(found.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return _physical()


def _physical() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN


def require_memory(size: int, what: str, todo: str = "it is damaged, or the machine is too small") -> None:
    """Refuse what would take more memory than there is, with how much it would be."""
    if size > SMALL and size > (room := fits_in()):
        raise HansaError(f"{what} would take {gigabytes(size)}, and {gigabytes(room)} of memory are free; {todo}.")


def gigabytes(size: int) -> str:
    """Return a size in words."""
    return f"{size / 1e9:,.3g} GB" if size < 10**18 else f"{size:.1e} bytes"
