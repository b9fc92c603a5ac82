"""From `hansa run` to the first finished round on cached data, and the seconds that `hansa validate` takes.

    python benchmarks/start.py                                  # a shipped plan
    python benchmarks/start.py digits-fedavg path/to/plan.toml

Wall seconds until the first line of rounds.jsonl, and CPU seconds of the whole command, which other work on the machine
hardly changes; best of several starts each.  The first start fills caches and does not count.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = 5.0
CHECK = 0.7  # seconds of `hansa validate`
STARTS = 3
BEGIN = (sys.executable, "-c", "from hansa.cli import main; main()")


def start(plan: str) -> tuple[float, float]:
    """Seconds to the first round, and CPU seconds of the run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [*BEGIN, "run", plan, "--set", "phases.0.rounds=1", "--out", str(out)]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            journal = out / "rounds.jsonl"
            while process.poll() is None and not (journal.exists() and journal.stat().st_size):
                time.sleep(0.005)
            seconds = time.perf_counter() - began
            said, _ = process.communicate()
        if process.returncode:
            sys.exit(f"hansa run {plan} ended with {process.returncode}: {said}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def check(*command: str) -> float:
    """Wall seconds of a command."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    for plan in sys.argv[1:] or ["digits-fedavg", "digits-fed3r"]:
        validate, torch = (
            min(check(*command) for _ in range(STARTS))
            for command in ((*BEGIN, "validate", plan), (sys.executable, "-c", "import torch"))
        )
        print(f"{plan}: checked in {validate:.2f} s (target {CHECK:g} s); importing torch takes {torch:.2f} s")
        start(plan)
        found = [start(plan) for _ in range(STARTS)]
        wall, cpu = (min(one[place] for one in found) for place in (0, 1))
        print(f"{plan}: first round after {wall:.2f} s (target {TARGET:g} s), {cpu:.2f} CPU seconds in all", flush=True)


if __name__ == "__main__":
    main()
