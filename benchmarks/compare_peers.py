"""Our rounds against those of pfl-research, Flower (with Ray) and fedjax, each in an environment of its own.

    python benchmarks/compare_peers.py                       # all workloads; makes the environments on first use
    python benchmarks/compare_peers.py W1 W4 --environments build/peers

Ours are two rows: `hansa` is the engine that we choose, `ray` the one of clusters.  Every library gets the same
clients, initial parameters, batch sizes and steps.  Ours and theirs take turns over `--passes` passes, and the best
round of each counts.  `moved` is how far the parameters went in four rounds: the same up to the order of samples.  Who
takes longer than `--patience` seconds is stopped and not tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import venv
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = {
    "pfl": ["pfl[pytorch]", "torch==2.13.0", "numpy"],
    "fedjax": ["fedjax", "jax==0.4.25", "jaxlib==0.4.25", "numpy<2", "scipy<1.13", "dm-haiku<0.0.13"],
    "flwr": ["flwr[simulation]", "torch==2.13.0", "numpy"],
}
OURS = {"hansa": ["auto"], "ray": ["ray"]}  # engines: the one that is chosen, and that of clusters, as Flower's is one
CASES = {"W1": ("W1", 10, 40), "W1-100": ("W1", 100, 12), "W2": ("W2", 10, 5), "W4": ("W4", 100, 40)}
TARGETS = {"W1": 0.25, "W4": 1.0}


def environment(peer: str, folder: Path) -> Path:
    """The Python of a peer's environment, made on first use."""
    python = folder / peer / "bin" / "python"
    if not (folder / peer / "ready").exists():
        print(f"installing {peer} …", flush=True)
        venv.create(folder / peer, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[peer]], check=True)
        (folder / peer / "ready").touch()
    return python


def measure(python: Path, script: str, arguments: list[str], patience: float) -> dict[str, float] | str:
    """What a script prints last, or why it did not."""
    command = [python, HERE / script, *arguments]
    paths = os.pathsep.join(map(str, (HERE, HERE.parent / "src")))  # this checkout's, whichever is installed
    around = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryFile("w+") as said:  # a pipe would stay open as long as any daemon the script started
        process = subprocess.Popen(command, env=around, stdout=said, stderr=said, start_new_session=True)
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            return f"stopped after {patience:g} s"
        finally:
            with suppress(ProcessLookupError):  # it, and whatever it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        text = said.read().splitlines()
    lines = [line for line in text if line.startswith("{")]
    if not lines:
        return f"ended with {code}: {(text or ['no reason given'])[-1]}"
    found: dict[str, float] = json.loads(lines[-1])
    return found


def compare(case: str, pythons: dict[str, Path], passes: int, patience: float) -> None:
    name, per_round, rounds = CASES[case]
    best: dict[str, dict[str, float]] = {}
    failed: dict[str, str] = {}
    for _ in range(passes):
        for who, python in {**dict.fromkeys(OURS, Path(sys.executable)), **pythons}.items():
            arguments = [name, str(per_round), str(rounds), *OURS.get(who, [])]
            script = f"peers/{'hansa' if who in OURS else who}_rounds.py"
            found = failed.get(who) or measure(python, script, arguments, patience)
            if isinstance(found, str):
                failed[who] = found
            elif who not in best or found["seconds"] < best[who]["seconds"]:
                best[who] = found
    show(case, best, failed)


def show(case: str, best: dict[str, dict[str, float]], failed: dict[str, str]) -> None:
    print(f"\n{case}: {CASES[case][1]} clients a round", flush=True)
    for who, why in failed.items():
        print(f"  {who:8s} {why}")
    if "hansa" not in best:
        return
    for who, found in best.items():
        ratio = best["hansa"]["seconds"] / found["seconds"]
        print(f"  {who:8s} {found['seconds']:9.5f} s   hansa takes {ratio:6.3f} of it   moved {found['moved']:.5f}")
    others = [found["seconds"] for who, found in best.items() if who not in OURS]
    if case in TARGETS and others:
        met = best["hansa"]["seconds"] <= TARGETS[case] * min(others)
        print(f"  target hansa ≤ {TARGETS[case]} × the fastest peer: {'met' if met else 'missed'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all when left out")
    parser.add_argument("--environments", type=Path, default=HERE.parent / "build" / "peers")
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--patience", type=float, default=120.0, help="seconds a library may take for its rounds")
    settings = parser.parse_args()
    pythons = {peer: environment(peer, settings.environments) for peer in settings.peers}
    for case in settings.cases or CASES:
        compare(case, pythons, settings.passes, settings.patience)


if __name__ == "__main__":
    main()
