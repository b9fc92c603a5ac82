"""Forgets a client again and again, and dies at another moment each time: RUN CLIENT; prints how many there were.

Beside RUN it leaves for every moment the folder as the dead process left it (`crashed-N`) and as the same command ended
it (`ended-N`), and `whole`, where nobody died.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401, all that forgetting imports is there before the first process forks
import sklearn.datasets  # noqa: F401
import torch

import hansa.results.report.page  # noqa: F401
from hansa.deploy.forget import forget
from hansa.errors import HansaError
from hansa.io.store import DiskStore

DIED, REFUSED = 77, 78
OPERATIONS = ("os.rename", "os.remove", "os.truncate", "os.mkdir")


def die_at(moment: int) -> None:
    """End this process without a word before its n-th file operation, or around a commit."""
    left = moment

    def tick() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os._exit(DIED)

    def heard(event: str, words: tuple[Any, ...]) -> None:
        written = event == "open" and isinstance(words[2], int) and words[2] & (os.O_WRONLY | os.O_RDWR)
        if written or event in OPERATIONS:
            tick()

    def around(name: str) -> None:
        plain = getattr(DiskStore, name)

        def called(self: DiskStore, *words: Any) -> None:
            tick()
            plain(self, *words)
            if name == "commit":
                tick()

        setattr(DiskStore, name, called)

    for name in ("put", "drop", "commit"):
        around(name)
    sys.addaudithook(heard)


def in_child(folder: Path, client: str, moment: int) -> int:
    """Forget a client in a process of its own; return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if moment:
                die_at(moment)
            forget(folder, client)
            code = 0
        except HansaError as error:
            code = REFUSED if "forgotten already" in str(error) else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(run: Path, client: str) -> int:
    """Die at every moment there is; return how many there were."""
    torch.set_num_threads(1)
    forget(shutil.copytree(run, run.parent / "once"), client)  # what is read once is there before the first fork
    moment = 0
    while True:
        moment += 1
        work = run.parent / "work"
        shutil.copytree(run, work)
        code = in_child(work, client, moment)
        if code == 0:
            work.rename(run.parent / "whole")
            return moment - 1
        assert code == DIED, f"moment {moment}: {code}"
        shutil.copytree(work, run.parent / f"crashed-{moment}")
        again = in_child(work, client, 0)
        ended = again == 0 or again == REFUSED  # which is right where all was done before it died
        assert ended, f"moment {moment}: the second time failed"
        work.rename(run.parent / f"ended-{moment}")


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.argv[2]))
