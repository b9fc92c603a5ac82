"""A workload on Flower's simulation engine with Ray: prints seconds per round as JSON; see compare_peers.py."""

from __future__ import annotations

import functools
import json
import sys
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from workloads import distance, workload

NAME, PER_ROUND, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TIMES, MOVED = [], []
made = functools.cache(workload)  # once, so that no round pays for it
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message, _context):
    """One client: the same plain loop as everywhere, on the data of the client the server names."""
    import torch

    from plain_loop import PlainLoop
    from workloads import workload as make

    torch.set_num_threads(1)
    if not hasattr(sys, "_workload"):  # once in every Ray worker
        sys._workload = PlainLoop(make(NAME, PER_ROUND))
    loop, k = sys._workload, message.content["config"]["client"]
    loop.server = [torch.from_numpy(leaf) for leaf in message.content["arrays"].to_numpy_ndarrays()]
    loop.round([k], [k])
    arrays = ArrayRecord([leaf.numpy() for leaf in loop.server])
    metrics = MetricRecord({"num-examples": int(loop.load.sizes[k])})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class Named(FedAvg):
    """FedAvg over the clients a workload names, with a clock."""

    def configure_train(self, server_round, arrays, config, grid):
        TIMES.append(time.perf_counter())
        if server_round == 5:
            MOVED.append(distance(made(NAME, PER_ROUND).start(), arrays.to_numpy_ndarrays()))
        cohort = made(NAME, PER_ROUND).cohort(server_round - 1)
        for node, k in zip(sorted(grid.get_node_ids()), cohort, strict=True):
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": k})})
            yield Message(content=content, message_type="train", dst_node_id=node)

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        TIMES.append(time.perf_counter())
        return found


@server_app.main()
def main(grid, _context):
    """All rounds."""
    strategy = Named(fraction_evaluate=0.0, min_available_nodes=PER_ROUND, weighted_by_key="num-examples")
    while len(list(grid.get_node_ids())) < PER_ROUND:
        time.sleep(0.1)
    start = ArrayRecord(list(made(NAME, PER_ROUND).start().values()))
    strategy.start(grid=grid, initial_arrays=start, num_rounds=ROUNDS)


if __name__ == "__main__":
    run_simulation(server_app, client_app, num_supernodes=PER_ROUND)
    seconds = np.diff(TIMES)[::2][1:].min()
    print(json.dumps({"peer": "flwr", "seconds": float(seconds), "moved": MOVED[0] if MOVED else 0.0}))
