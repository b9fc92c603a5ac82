"""Accuracy against ε on the digits: FedAvg and Fed3R, private of whole clients and of samples.

Writes docs/results/privacy.md; some minutes on two cores.  `noise = "simulated"`, so that the page can be made again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common import RESULTS, headline, made_by, run, spread, table

from hansa.results.reader import Run

SEEDS = (0, 1, 2)
EPSILONS = (1.0, 4.0, 8.0)
DELTA = 1e-5
CLIENTS, ROUNDS = 400, 40
DATA = {
    "source": "digits",
    "partition": {"name": "iid", "clients": CLIENTS},
    "test": {"kind": "global", "validation": 0.2},
}
FEDAVG = {"name": "fedavg", "local": {"lr": 0.5, "epochs": 2, "batch_size": 8}}
Settings = Mapping[str, Any]


def gradient(algorithm: Settings) -> Settings:
    """The plan of a gradient phase that visits everybody in every round."""
    everybody = {"name": "star", "fraction": 1.0}
    phase = {"algorithm": algorithm, "rounds": ROUNDS, "evaluate_every": ROUNDS, "orchestration": everybody}
    return {"data": DATA, "phases": [phase]}


def private_fedavg(epsilon: float) -> list[Settings]:
    """FedAvg at one ε, at every bound that is tried."""
    same = {"name": "private", "epsilon": epsilon, "delta": DELTA, "noise": "simulated", "inner": FEDAVG}
    return [gradient({**same, "clip": clip}) for clip in (0.3, 1.0, 3.0)]


def fed3r(privacy: Settings | None, ridges: Sequence[float] = (0.1, 1.0, 10.0, 100.0)) -> list[Settings]:
    """Fed3R with a mechanism or none, at every λ that is tried."""
    mechanism = {} if privacy is None else {"privacy": {"delta": DELTA, "noise": "simulated", **privacy}}
    made = [{"name": "fed3r", "ridge": ridge, "normalize": "none", **mechanism} for ridge in ridges]
    return [{"data": DATA, "phases": [{"algorithm": algorithm}]} for algorithm in made]


def fed3r_clients(epsilon: float) -> list[Settings]:
    """Fed3R, private of whole clients, at every λ and every bound of a client that is tried."""
    mechanisms = [{"epsilon": epsilon, "client_norm": norm} for norm in (1.0, 2.0)]
    return [plan for one in mechanisms for plan in fed3r(one, ridges=(10.0, 100.0, 300.0))]


def validation(done: Run) -> float:
    """The accuracy on the validation samples, by which settings are chosen."""
    return float(done.summary["phases"][-1]["metrics"]["validation_accuracy"])


def chosen(name: str, plans: Sequence[Settings]) -> tuple[list[Run], Settings]:
    """The runs, one a seed, of the settings that do best on validation samples, and these settings."""
    made = [[run(f"privacy-{name}-{place}", plan, seed) for seed in SEEDS] for place, plan in enumerate(plans)]
    best = int(np.argmax([np.mean([validation(one) for one in runs]) for runs in made]))
    return made[best], plans[best]["phases"][0]["algorithm"]


def told(algorithm: Settings) -> str:
    """What was chosen, in words."""
    mechanism = algorithm.get("privacy", {})
    pairs = {"clip": algorithm.get("clip"), "λ": algorithm.get("ridge"), "client_norm": mechanism.get("client_norm")}
    return ", ".join(f"{name} = {value:g}" for name, value in pairs.items() if value is not None)


def rows() -> dict[str, dict[str, tuple[list[Run], Settings]]]:
    """The runs behind the table: methods by name, and for each the runs by ε."""
    found: dict[str, dict[str, tuple[list[Run], Settings]]] = {
        "FedAvg, 40 rounds, whole clients": {f"{e:g}": chosen(f"fedavg-{e:g}", private_fedavg(e)) for e in EPSILONS},
        "Fed3R, 1 round, whole clients": {f"{e:g}": chosen(f"fed3r-client-{e:g}", fed3r_clients(e)) for e in EPSILONS},
        "Fed3R, 1 round, samples": {f"{e:g}": chosen(f"fed3r-{e:g}", fed3r({"epsilon": e})) for e in EPSILONS},
    }
    clear, plain = chosen("fedavg-none", [gradient(FEDAVG)]), chosen("fed3r-none", fed3r(None))
    for name, by in found.items():
        by["none"] = clear if name.startswith("FedAvg") else plain
    return found


def main() -> None:
    """Make all runs, and write the page."""
    found = rows()
    head = ("method and what is protected", *(f"ε = {e:g}" for e in EPSILONS), "no privacy")
    cells = [
        (name, *(spread([headline(one) for one in runs]) for runs, _ in by.values())) for name, by in found.items()
    ]
    settings = [(name, *(told(algorithm) or "–" for _, algorithm in by.values())) for name, by in found.items()]
    notes = (RESULTS / "privacy-notes.md").read_text(encoding="utf-8")
    body = f"{table(head, cells)}\n\nWhat validation chose:\n\n{table(head, settings)}"
    page = f"# The price of privacy on the digits\n\n{made_by('make results-privacy')}\n\n{notes}\n{body}\n"
    (RESULTS / "privacy.md").write_text(page, encoding="utf-8")
    numbers = {
        name: {
            epsilon: {
                "test": [headline(one) for one in runs],
                "validation": [validation(one) for one in runs],
                "booked": [one.summary.get("privacy", {}).get("epsilon") for one in runs],
                "settings": told(algorithm),
            }
            for epsilon, (runs, algorithm) in by.items()
        }
        for name, by in found.items()
    }
    (RESULTS / "privacy.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    print(body)


if __name__ == "__main__":
    main()
