"""The server of Flower's own FedAvg, which notes what its trips cost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from .model import network

app = ServerApp()


class Counted:
    """Flower's grid, whose trips are counted."""

    def __init__(self, grid: Grid):
        self.grid = grid
        self.trips: list[dict[str, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def send_and_receive(self, messages: Iterable[Message], **kw: Any) -> list[Message]:
        """One trip."""
        sent, began = list(messages), time.time()
        found = list(self.grid.send_and_receive(sent, **kw))
        self.trips.append({"end": time.time(), "seconds": time.time() - began, "bytes": _size(sent) + _size(found)})
        return found


def _size(messages: Iterable[Message]) -> int:
    """Bytes of all arrays; what else travels is not counted."""
    records = [record for one in messages for record in one.content.values()]
    return sum(len(array.data) for one in records if isinstance(one, ArrayRecord) for array in one.values())


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run some rounds, each of which trains and evaluates at all nodes, and note the trips."""
    counted, rounds = Counted(grid), int(context.run_config["rounds"])
    nodes = {"min_train_nodes": 3, "min_evaluate_nodes": 3, "min_available_nodes": 3}
    began = time.time()
    result = FedAvg(fraction_train=1.0, fraction_evaluate=1.0, **nodes).start(
        counted, ArrayRecord(network().state_dict()), num_rounds=rounds
    )
    accuracy = dict(result.evaluate_metrics_clientapp[rounds])["accuracy"]
    told = {"began": began, "trips": counted.trips, "accuracy": accuracy}
    path = Path(str(context.run_config["out"]))
    path.with_suffix(".part").write_text(json.dumps(told))
    path.with_suffix(".part").rename(path)
