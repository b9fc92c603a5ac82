"""From `hansa run` to the first finished round on cached data, and the seconds that `hansa validate` takes.

    python benchmarks/start.py                                  # a shipped plan
    python benchmarks/start.py digits-fedavg path/to/plan.toml

Wall seconds until the first line of rounds.jsonl, and CPU seconds of the whole command, which other work on the machine
hardly changes; best of several starts each.  The first start fills caches and does not count; one of them is that of
bytecode, which `pip` fills when it installs a package.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TARGET = 5.0
CHECK = 0.7  # seconds of `hansa validate`
STARTS = 3
BEGIN = (sys.executable, "-c", "from hansa.cli import main; main()")


def environment(cache: str) -> dict[str, str]:
    """This process's, with a cache of bytecode that is filled."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "PYTHONPYCACHEPREFIX": cache}


def start(plan: str, env: dict[str, str]) -> tuple[float, float]:
    """Seconds to the first round, and CPU seconds of the run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [*BEGIN, "run", plan, "--set", "phases.0.rounds=1", "--out", str(out)]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=env) as process:
            journal = out / "rounds.jsonl"
            while process.poll() is None and not (journal.exists() and journal.stat().st_size):
                time.sleep(0.005)
            seconds = time.perf_counter() - began
            said, _ = process.communicate()
        if process.returncode:
            sys.exit(f"hansa run {plan} ended with {process.returncode}: {said}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def check(command: Sequence[str], env: dict[str, str]) -> float:
    """Wall seconds of a command, best of several."""
    found = []
    for _ in range(1 + STARTS):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=env)
        found.append(time.perf_counter() - began)
    return min(found[1:])


def measure(plan: str, env: dict[str, str]) -> None:
    """Print what a plan takes."""
    validate, torch = (
        check(command, env) for command in ((*BEGIN, "validate", plan), (sys.executable, "-c", "import torch"))
    )
    print(f"{plan}: checked in {validate:.2f} s (target {CHECK:g} s); importing torch takes {torch:.2f} s")
    start(plan, env)
    found = [start(plan, env) for _ in range(STARTS)]
    wall, cpu = (min(one[place] for one in found) for place in (0, 1))
    print(f"{plan}: first round after {wall:.2f} s (target {TARGET:g} s), {cpu:.2f} CPU seconds in all", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        for plan in sys.argv[1:] or ["digits-fedavg", "digits-fed3r"]:
            measure(plan, environment(cache))


if __name__ == "__main__":
    main()
