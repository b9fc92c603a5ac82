"""What channels cost: accuracy and bytes of FedAvg in 8 bits, by its largest numbers, and under masks.

Writes docs/results/channels.md; ten minutes on a core.  The rate is chosen on validation samples, without a channel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common import RESULTS, headline, made_by, run, spread, table

from hansa.results.reader import Run

SEEDS = (0, 1, 2)
RATES = {"digits": (0.1, 0.3), "FEMNIST": (0.03, 0.1)}
ROUNDS, COHORT, EPOCHS = 60, 10, 3
VALIDATED = {"kind": "global", "validation": 0.2}
Settings = Mapping[str, Any]
DATA: dict[str, Settings] = {
    "digits": {
        "data": {
            "source": "digits",
            "partition": {"name": "dirichlet", "clients": 40, "alpha": 0.3},
            "test": VALIDATED,
        },
        "model": {"name": "mlp", "hidden": [64]},
    },
    "FEMNIST": {
        "data": {
            "source": {"name": "npz", "path": "femnist110.npz", "scale": "standard"},
            "partition": "natural",
            "test": VALIDATED,
        },
        "model": {"name": "mlp", "hidden": [128]},
    },
}
CHANNELS: dict[str, Any] = {
    "none": None,
    "`quantise`": "quantise",
    "`top-k`, a tenth": {"name": "top-k", "fraction": 0.1},
    "`top-k`, a hundredth": {"name": "top-k", "fraction": 0.01},
    "`secure-sum`": "secure-sum",
}


def plan(data: str, rate: float, channel: Any = None) -> Settings:
    """FedAvg on some clients a round, through a channel or none."""
    phase = {
        "algorithm": {"name": "fedavg", "local": {"lr": rate, "epochs": EPOCHS, "batch_size": 16}},
        "orchestration": {"name": "star", "clients": COHORT},
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
    }
    return {**DATA[data], "phases": [phase], **({} if channel is None else {"channel": channel})}


def runs(data: str, rate: float, name: str) -> list[Run]:
    """The runs of a row, one a seed."""
    slug = name.replace("`", "").replace(",", "").replace(" ", "-")
    return [run(f"channels-{data.lower()}-{rate:g}-{slug}", plan(data, rate, CHANNELS[name]), seed) for seed in SEEDS]


def chosen(data: str) -> float:
    """The rate that does best on validation samples without a channel."""

    def validation(rate: float) -> float:
        return float(
            np.mean([one.summary["phases"][-1]["metrics"]["validation_accuracy"] for one in runs(data, rate, "none")])
        )

    return max(RATES[data], key=validation)


def per_visit(done: Run, key: str) -> float:
    """What a visit took of something, on average."""
    visits = sum(record["clients"] for record in done.rounds)
    return float(sum(record[key] for record in done.rounds) / visits)


def masking(done: Run) -> float:
    """Milliseconds of a processor that a secure sum takes a client, a visit; none without one."""
    visits = sum(record["clients"] for record in done.rounds)
    return 1000 * sum(record.get("channel_seconds", {}).get("clients", 0.0) for record in done.rounds) / visits


def row(name: str, found: Sequence[Run], plain: Sequence[Run]) -> tuple[str, ...]:
    """A row of the table: accuracy, the difference to no channel seed by seed, and the bytes of a visit."""
    differences = [headline(one) - headline(other) for one, other in zip(found, plain, strict=True)]
    up, down = (np.mean([per_visit(one, key) for one in found]) / 1000 for key in ("bytes_up", "bytes_down"))
    whole = np.mean([per_visit(one, "bytes_up") for one in plain]) / 1000
    accuracy, change = spread([headline(one) for one in found]), spread(differences)
    return name, accuracy, "–" if name == "none" else change, f"{up:,.1f}", f"{up / whole:.2f}", f"{down:,.1f}"


def main() -> None:
    """Make all runs, and write the page."""
    parts, numbers = [], {}
    for data in DATA:
        rate = chosen(data)
        found = {name: runs(data, rate, name) for name in CHANNELS}
        head = ("channel", "test accuracy, %", "difference", "kB up a visit", "of none", "kB down a visit")
        rows = [row(name, one, found["none"]) for name, one in found.items()]
        spent = np.mean([masking(one) for one in found["`secure-sum`"]])
        parts += [
            f"## {data}\n\nRate {rate:g}, as validation chose. A secure sum takes a client {spent:.0f} ms of a core.\n"
        ]
        parts += [table(head, rows) + "\n"]
        numbers[data] = {
            "rate": rate,
            **{
                name: {
                    "test": [headline(one) for one in made],
                    "bytes_up": [per_visit(one, "bytes_up") for one in made],
                    "bytes_down": [per_visit(one, "bytes_down") for one in made],
                    "client_ms": [masking(one) for one in made],
                }
                for name, made in found.items()
            },
        }
    notes = (RESULTS / "channels-notes.md").read_text(encoding="utf-8")
    body = "\n".join(parts)
    page = f"# What channels cost\n\n{made_by('make results-channels')}\n\n{notes}\n{body}"
    (RESULTS / "channels.md").write_text(page, encoding="utf-8")
    (RESULTS / "channels.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    print(body)


if __name__ == "__main__":
    main()
