"""Errors a person can act on: one sentence with what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


class HansaError(ValueError):
    """Bad input.  The message is a whole sentence; the command line prints it alone and exits with 2."""


class HansaWarning(UserWarning):
    """Something was done differently from what one may expect, and the run goes on."""


class StoreFault(HansaError):
    """A fault of the run's own store: never a client's, so it always stops the run."""


class Diverged(HansaError):
    """A run whose numbers are none any more: it stops before anything of it is kept, and can be resumed."""


class DamagedStore(StoreFault):
    """A store that is not as it was left: cut off, changed, foreign, or of another format."""


class Problems(HansaError):
    """All that is wrong with one input, told at once."""

    def __init__(self, problems: Iterable[str]):
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def check_all(*checks: Callable[[], object]) -> None:
    """Make every check, and tell what all of them refuse at once."""
    found: list[str] = []
    for check in checks:
        try:
            check()
        except HansaError as error:
            found += error.problems if isinstance(error, Problems) else (str(error),)
    if found:
        raise Problems(dict.fromkeys(found))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean …?' with the closest known word, else ' Known: …' where the list is short enough."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(known)}." if known else ""


def require(condition: bool, sentence: str) -> None:
    """Refuse bad input with a sentence."""
    if not condition:
        raise HansaError(sentence)
