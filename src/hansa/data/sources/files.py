"""Paths of a source: a file, a folder, a pattern, or several of them."""

from __future__ import annotations

import os
from pathlib import Path

from hansa.errors import HansaError, did_you_mean, require


def existing(path: str, what: str) -> Path:
    """Return the path, or refuse a missing one with the closest name beside it."""
    found = expanded(path, what)
    if not is_there(found):
        beside = [entry.name for entry in found.parent.iterdir()] if found.parent.is_dir() else []
        hint = did_you_mean(found.name, beside)
        raise HansaError(f"The {what} '{path}' does not exist.{hint if '?' in hint else ''}")
    return found


def expanded(path: str, what: str) -> Path:
    """Return the path with `~` as the home folder it stands for."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise HansaError(f"The {what} '{path}' lies in a home folder that is not known here: {error}.") from error


def is_there(path: Path) -> bool:
    """Tell whether a path leads to something, whatever its name is."""
    try:
        return path.exists()
    except OSError:  # a name that is too long, or a folder that may not be looked into
        return False


def existing_file(path: str, what: str) -> Path:
    """Return the path like `existing`, and require a file."""
    found = existing(path, what)
    require(found.is_file(), f"The {what} '{path}' is a folder; name a file in it.")
    return found


def several(path: str | tuple[str, ...], ending: str, what: str) -> tuple[list[Path], bool]:
    """Return a path's files in sorted order, and whether it stands for several (a folder, a pattern or a list)."""
    if not isinstance(path, str):
        return [existing_file(one, what) for one in path], True
    if any(sign in path for sign in "*?[") and not Path(path).exists():
        pattern = Path(path).expanduser()
        matches = Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
        found = sorted(match for match in matches if match.is_file())
        require(len(found) > 0, f"No {what} matches '{path}'.")
        return found, True
    root = existing(path, what)
    if root.is_file():
        return [root], False
    found = sorted(root.glob(f"*{ending}"))
    require(
        len(found) > 0,
        f"The folder '{path}' has no file that ends in '{ending}'; a pattern such as '{path}/*' names others.",
    )
    return found, True


def client_names(files: list[Path]) -> list[str]:
    """Return a client name for every file: its name without the ending, with folders where two files share one.

    Only folders below the common one count, so that moving the data changes no name and thus no result.
    """
    stems = [file.stem for file in files]
    if len(set(stems)) == len(stems):
        return stems
    common = os.path.commonpath([file.parent for file in files])
    return [file.with_suffix("").relative_to(common).as_posix() for file in files]
