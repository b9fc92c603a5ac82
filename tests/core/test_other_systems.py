"""Systems that are not POSIX, as far as this one can show: what they lack is hidden, or stood in for."""

from __future__ import annotations

import errno
import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

from hansa.engines.carriers import Loopback
from hansa.engines.flower import Flower
from hansa.errors import HansaError
from hansa.io import lock, system

# What Windows' Python has not, hidden from every process that is started with this on its path.
HIDE = """
import os, signal, socket, subprocess, sys, threading
for place, names in {
    os: ("fork", "sched_getaffinity", "sysconf", "getuid", "geteuid", "killpg"),
    signal: ("pthread_sigmask", "SIGHUP", "SIGKILL", "alarm"),
    socket: ("AF_UNIX",),
}.items():
    for name in names:
        delattr(place, name)
for name in ("resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
"""


class Regions:
    """Locks on a file's first byte as `msvcrt` has them: one holder, by its own descriptor, from where it stands."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        assert count == 1 and os.lseek(descriptor, 0, os.SEEK_CUR) == 0
        where = (os.fstat(descriptor).st_dev, os.fstat(descriptor).st_ino)
        if (mode == self.LK_NBLCK) == (where in self.held) or self.held.get(where, descriptor) != descriptor:
            raise OSError(errno.EACCES, "Permission denied")
        if mode == self.LK_NBLCK:
            self.held[where] = descriptor
        else:
            del self.held[where]


@pytest.fixture
def on_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        patch.setitem(sys.modules, "msvcrt", Regions())  # type: ignore[arg-type]
        spec = importlib.util.find_spec("hansa.io.lock")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    yield SimpleNamespace(**vars(module))


def test_a_lock_of_windows_has_one_holder(tmp_path: Path, on_windows: SimpleNamespace) -> None:
    file = tmp_path / "lock"
    file.write_bytes(b"x")
    with file.open("rb+") as one, file.open("rb+") as two:
        handles: tuple[IO[bytes], IO[bytes]] = (one, two)
        assert on_windows.take(handles[0]) and not on_windows.take(handles[1])
        one.read(1)  # a lock is released from where it was taken, wherever the file stands now
        on_windows.release(one)
        with on_windows.exclusive(two):
            assert not on_windows.take(one)
        assert on_windows.take(one)
    assert lock.take is not on_windows.take


def test_a_run_in_processes_needs_nothing_of_posix(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    engine = "engine={name='processes', workers=1}"
    words = ["run", "digits-fedavg", "--set", engine, "--set", "phases.0.rounds=1", "--out", "run", "--json"]
    code = "import signal, sys; assert not hasattr(signal, 'SIGHUP'); from hansa.cli import main; main()"
    command = [sys.executable, "-c", code, *words]
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"


def test_flower_is_refused_where_processes_cannot_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(HansaError, match="sockets in the file system"):
        Flower()
    assert Flower(Loopback()).patience > 0


def test_a_pipe_of_any_code_page_gets_utf8() -> None:
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    code = "import sys; assert sys.stdout.encoding != 'utf-8'; from hansa.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "ls", "algorithm", "fedavg"], env=environment, capture_output=True
    )
    assert done.returncode == 0 and "Δ = Σ_k".encode() in done.stdout, done.stderr


def test_a_process_is_known_by_its_command_where_the_system_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number may be another process's by now; macOS, which has no such folder, knows numbers alone."""
    own = os.getpid()
    (tmp_path / str(own)).mkdir()
    (tmp_path / str(own) / "cmdline").write_bytes(b"flower-superlink\0--port\0")
    monkeypatch.setattr(system, "COMMANDS", tmp_path)
    assert system.runs_as(own, b"superlink") and not system.runs_as(own, b"another")
    assert not system.runs_as(own + 1, b"superlink")
    monkeypatch.setattr(system, "COMMANDS", tmp_path / "nowhere")
    assert system.runs_as(own, b"another")
