"""Names that become names of files: what none may have, on any operating system."""

from __future__ import annotations

LONGEST = 100  # bytes; a time and an ending must fit beside them
SEPARATORS = '/\\:*?"<>|'  # parts of paths, drives and patterns, on one system or another
DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}


def bad_name(name: str) -> str:
    """Return why a name cannot be part of a file's name, as the end of a sentence; empty where it can."""
    bad = next((sign for sign in name if sign in SEPARATORS or not sign.isprintable()), None)
    if bad is not None:
        return f"{name[:LONGEST]!r} has {bad!r} in it: leave that out"
    if len(name.encode()) > LONGEST:
        return f"'{name[:20]}…' has {len(name.encode())} bytes: choose one of at most {LONGEST}"
    if name.startswith(".") or name.partition(".")[0].strip().lower() in DEVICES:
        return f"'{name}' means something else to an operating system: choose another"
    return ""
