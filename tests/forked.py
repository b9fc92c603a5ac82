"""Processes that need not import torch: forks of one that has imported it, with all else of a process of their own.

A command as a user types it takes a tenth of its time this way, and a worker of the process engine less.  That they
start by themselves too is tried where starting is the point: by `started_workers`, and in `tests/cli`.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

Done = subprocess.CompletedProcess[str]
# What a run imports; nothing is computed with it before a fork, since threads do not outlive one.
IMPORTED = [
    "torch",
    "sklearn.datasets",
    "pyarrow.parquet",
    "pandas",
    "hansa.api",
    "hansa.cli.commands",
    "hansa.cli.console",
    "hansa.cli.live",
    "hansa.engines.vectorised",
    "hansa.engines.worker",
    "hansa.plan.assemble",
    "hansa.results.writer",
]
# Without the current folder in the path, as the installed script has it.
START = [sys.executable, "-P", "-c"]
SERVE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from forked import serve
del sys.path[0]
serve(int(sys.argv[1]))
"""


def hansa(*words: object, cwd: Path, code: int = 0, env: dict[str, str] | None = None) -> Done:
    """Run a command in a folder and check its exit code."""
    arguments = list(map(str, words))
    with Path(os.devnull).open() as none, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = Forked("command", arguments, cwd, env or dict(os.environ), [one.fileno() for one in (none, out, err)])
        ended = command.wait()
        out.seek(0), err.seek(0)
        done = Done(arguments, ended, out.read(), err.read())
    assert done.returncode == code, done.stdout + done.stderr
    return done


class Forked:
    """A fork that became a command or a worker; its parent reports its number and how it ended through a pipe."""

    def __init__(self, what: str, words: Sequence[str], cwd: Path, env: dict[str, str], streams: Sequence[int]):
        order = {"what": what, "words": [*words], "cwd": str(cwd), "env": env}
        told, tells = os.pipe()
        socket.send_fds(_server(), [json.dumps(order).encode()], [*streams, tells])
        os.close(tells)
        self._told = os.fdopen(told)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        if self.returncode is None:
            with self._told:
                self.returncode = int(self._told.readline())
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ForkedCommand(Forked):
    """As much of a `Popen` as tests need of a command that they disturb: Python code with its arguments.

    It is its own process group where it is `alone`; what it prints to stderr is read at its end.
    """

    def __init__(self, code: str, words: Sequence[str], cwd: Path, *, alone: bool = False):
        self._told_by = tempfile.TemporaryFile("w+")  # noqa: SIM115, it closes with the command
        what = "session" if alone else "code"
        with Path(os.devnull).open("r+") as none:
            streams = [none.fileno(), none.fileno(), self._told_by.fileno()]
            super().__init__(what, [code, *words], cwd, dict(os.environ), streams)

    def poll(self) -> int | None:
        """Return its exit code; None while it lives."""
        ended = self.returncode is not None or select.select([self._told], [], [], 0)[0]
        return self.wait() if ended else None

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def told(self) -> str:
        """Wait for its end and return what it printed to stderr."""
        self.wait()
        self._told_by.seek(0)
        return self._told_by.read()


class ForkedWorker(Forked):
    """As much of a `Popen` as the process engine needs for a worker."""

    def __init__(self, command: Sequence[str], stdin: int, stdout: int, env: dict[str, str]):
        assert (stdin, stdout, *command[1:4]) == (subprocess.PIPE, subprocess.PIPE, "-P", "-m", "hansa.engines.worker")
        (theirs, requests), (replies, answers) = os.pipe(), os.pipe()
        super().__init__("worker", command[4:], Path.cwd(), env, [theirs, answers, 2])
        os.close(theirs), os.close(answers)
        self.stdin, self.stdout = os.fdopen(requests, "wb"), os.fdopen(replies, "rb")


@cache
def _server() -> socket.socket:
    """Return the line to this session's process that forks; it ends with the line."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen([*START, SERVE, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    return ours


def serve(line: int) -> None:
    """Fork for every order until the line is closed."""
    for name in IMPORTED:
        with suppress(ImportError):  # pandas need not be there
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # parents of orders end unheard
    orders = socket.socket(fileno=line)
    while True:
        text, descriptors, _, _ = socket.recv_fds(orders, 2**20, 4)
        if not text:
            return
        if os.fork() == 0:
            orders.close()
            _parent(json.loads(text), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _parent(order: dict[str, Any], descriptors: list[int]) -> None:
    """Fork the process itself, and tell its number and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, tells = descriptors
    child = os.fork()
    if child == 0:
        os.close(tells)
        _carry_out(order, streams)
    for stream in streams:
        os.close(stream)
    with suppress(BrokenPipeError):  # nobody wants to know
        os.write(tells, f"{child}\n".encode())
        os.write(tells, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
    os._exit(0)


def _carry_out(order: dict[str, Any], streams: list[int]) -> None:
    """Become a command or a worker, and end with it."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv, code = ["hansa", *order["words"]], 1
    try:
        if order["what"] == "worker":
            from hansa.engines.worker import main

            sys.path[:0] = order["env"]["PYTHONPATH"].split(os.pathsep)
            main()
        elif order["what"] == "command":
            from hansa.cli import main

            main()
        else:
            if order["what"] == "session":
                os.setsid()
            exec(sys.argv.pop(1), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
