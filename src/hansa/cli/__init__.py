"""The command line."""

from __future__ import annotations

import io
import os
import sys

from hansa.cli.text import printable
from hansa.errors import HansaError

STOPPED = 130  # the exit code of a run that was asked to stop


def main() -> None:
    """Run a command; bad input ends with one clear message and exit code 2."""
    from hansa.cli.commands import app

    _print_anything()
    try:
        if app(standalone_mode=False) == STOPPED:  # what typer makes of an interrupt
            raise KeyboardInterrupt
    except HansaError as error:
        for line in (f"hansa: {error}", *getattr(error, "__notes__", ())):
            print(printable(line), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("hansa: stopped at once.", file=sys.stderr)
        sys.exit(STOPPED)
    except Exception as error:
        sys.exit(_usage(error))


def _print_anything() -> None:
    """Write UTF-8 to files and pipes, as in all our files, and marks to a terminal for signs that it lacks.

    Elsewhere than on Linux and macOS, Python takes a code page of a few hundred signs.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            chosen = stream.isatty() or "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=stream.encoding if chosen else "utf-8", errors="replace")


def _usage(error: Exception) -> int:
    """Show wrong words on the command line as such; anything else is a defect and keeps its traceback."""
    from typer import Abort

    show = getattr(error, "show", None)
    if isinstance(error, Abort):
        return STOPPED
    if show is None:
        raise error
    show()
    return 2
