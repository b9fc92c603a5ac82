"""A deployment beside Flower's own FedAvg: seconds, trips and bytes of a round, on the same server, nodes and model.

python benchmarks/deployment.py [--rounds 4] [--repeats 2] [--page docs/results/deployment.md]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w

import hansa
from hansa.deploy import federation
from hansa.engines.carriers import Answers
from hansa.engines.relay import Relay
from three_sites import SITES, write_sites

ABOUT = """\
Three sites on one machine, each with a third of the digits and a Flower node, and one SuperLink with TLS. All \
train softmax regression (650 numbers, random at first) by FedAvg, one epoch a round at every site, and evaluate \
every round at every site. Hansa's relay and Flower's own app run on the same server and the same nodes; their \
runs take turns. The seconds of a round are from one round's evaluation to the next one's: the median over the \
rounds of a run, then over runs, with the smallest and the largest of the runs' medians. Trips are messages to all \
nodes and their answers; a phase's last evaluation is a trip of its own, and of a secure sum the first shares of \
keys, so their number falls towards 1 and 2 with more rounds. Bytes are those of a round at all sites together: of \
Hansa letters and answers whole, of Flower's own the arrays alone. Simulations, Flower's with Ray among them, are \
compared [elsewhere](../explanation-performance.md).
"""
PLAN = """
[data]
source = "digits"
partition = {{ name = "iid", clients = 3 }}
[[phases]]
algorithm = {{ name = "fedavg", local = {{ lr = 0.05, batch_size = 16 }} }}
orchestration = {{ name = "star", fraction = 1.0 }}
rounds = {rounds}
"""


@contextmanager
def running(root: Path) -> Iterator[Path]:
    """A federation of three sites, all of them connected."""
    folder, sites = root / "fed", []
    write_sites(folder)
    federation.up(folder)
    try:
        for site in SITES:
            command = [sys.executable, "-c", "from hansa.cli import main; main()", "site", "serve"]
            with (folder / "sites" / site / "log").open("ab") as log:
                own = subprocess.Popen([*command, str(folder / "sites" / site / "site.toml")], stdout=log, stderr=log)
            sites.append(own)
        while not all(federation.status(folder)["sites"].values()):
            time.sleep(0.5)
        yield folder
    finally:
        for process in sites:
            process.terminate()
        for process in sites:
            process.wait(60)
        federation.down(folder)


def ours(folder: Path, rounds: int, out: Path, *more: str) -> dict[str, float]:
    """What a round of the plan costs on the engine 'flower'."""
    plan, ends, sizes = out.with_suffix(".toml"), [], []
    plan.write_text(PLAN.format(rounds=rounds))
    usual = Relay.ask

    def counting(self: Relay, letters: Any, patience: float) -> Answers:
        sizes.append(sum(map(len, letters.values())))
        for site, answer in usual(self, letters, patience):
            sizes[-1] += len(answer)
            yield site, answer

    Relay.ask = counting  # type: ignore[method-assign]
    try:
        engine = f"engine={{name='flower', carrier={{folder={json.dumps(str(folder))}}}}}"
        found = hansa.run(plan, out=out, changes=[engine, *more], watchers=[lambda _: ends.append(time.time())])
    finally:
        Relay.ask = usual  # type: ignore[method-assign]
    metrics, trips = found.rounds[-1]["metrics"], len(sizes) - 1  # the first says who is there
    return {
        "seconds": statistics.median(_between(ends[:-1])),  # the last one has a trip of its own
        "trips": trips / rounds,
        "bytes": sum(sizes[1:]) / rounds,
        "accuracy": metrics["client_accuracy_weighted"],
    }


def theirs(folder: Path, rounds: int, out: Path) -> dict[str, float]:
    """What a round of Flower's own FedAvg costs on the same server and nodes."""
    app = out.with_suffix(".app")
    package = Path(__file__).parent / "flower_fedavg"
    shutil.copytree(package, app / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    parts = {"serverapp": f"{package.name}.server:app", "clientapp": f"{package.name}.client:app"}
    described = {"publisher": "hansa", "fab-format-version": 1, "flwr-version-target": "1.41.0"}
    (app / "LICENSE").write_text("Part of Hansa, under the Apache License 2.0.\n")
    project = {"name": "flower-fedavg", "version": "1.0.0", "description": "FedAvg", "license": {"file": "LICENSE"}}
    table = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {**project, "dependencies": ["flwr>=1.41,<1.42"]},
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {"app": {**described, "components": parts, "config": {"rounds": 1, "out": ""}}},
        },
    }
    (app / "pyproject.toml").write_text(tomli_w.dumps(table))
    settings = f'rounds={rounds} out="{out}"'
    federation.flwr(folder, "run", str(app), federation.CONNECTION, "--run-config", settings)
    while not out.exists():
        time.sleep(0.5)
    told = json.loads(out.read_text())
    ends = [trip["end"] for trip in told["trips"]][1::2]  # of evaluations
    sizes = sum(trip["bytes"] for trip in told["trips"])
    seconds = statistics.median(_between(ends))
    trips = len(told["trips"]) / rounds
    return {"seconds": seconds, "trips": trips, "bytes": sizes / rounds, "accuracy": told["accuracy"]}


def _between(ends: list[float]) -> list[float]:
    return [later - before for before, later in pairwise(ends)]


def secured(folder: Path, rounds: int, out: Path) -> dict[str, float]:
    """What a round through a secure sum costs."""
    return ours(folder, rounds, out, "channel={name='secure-sum', fewest=2}")


WAYS = {"Hansa on Flower": ours, "Hansa on Flower, secure sums": secured, "Flower's own FedAvg": theirs}


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """The medians, as a table."""
    rows = [
        "| a round of FedAvg at three sites | seconds | trips | bytes | accuracy at the end |",
        "|---|---|---|---|---|",
    ]
    for title, runs in found.items():
        seconds = [one["seconds"] for one in runs]
        trips, sizes, accuracy = (statistics.median(one[key] for one in runs) for key in ("trips", "bytes", "accuracy"))
        spread = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        rows.append(f"| {title} | {spread} | {trips:.2f} | {sizes:,.0f} | {accuracy:.3f} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    settings = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    settings.add_argument("--rounds", type=int, default=4)
    settings.add_argument("--repeats", type=int, default=2)
    settings.add_argument("--page", type=Path)
    chosen = settings.parse_args()
    found: dict[str, list[dict[str, float]]] = {title: [] for title in WAYS}
    with tempfile.TemporaryDirectory() as name, running(Path(name)) as folder:
        for repeat in range(chosen.repeats):
            for place, (title, measure) in enumerate(WAYS.items()):
                found[title].append(measure(folder, chosen.rounds, Path(name) / f"run{repeat}-{place}"))
                print(title, {key: round(value, 3) for key, value in found[title][-1].items()}, flush=True)
    told = f"{ABOUT}\n{chosen.rounds} rounds a run, {chosen.repeats} runs of each.\n\n{table(found)}"
    print(told)
    if chosen.page:
        made = "Made by `make results-deployment`; seconds are of the machine and of what else it does."
        chosen.page.write_text(f"# A deployment beside Flower's own FedAvg\n\n{made}\n\n{told}")


if __name__ == "__main__":
    main()
