"""A node of Flower's own FedAvg."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .model import network, samples, train

app = ClientApp()


def _folder(context: Context) -> Path:
    return Path(str(context.node_config["socket"])).parent


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train from the arrays that came."""
    made, (x, y) = network(), samples(_folder(context), test=False)
    made.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(made, x, y)
    told = {"arrays": ArrayRecord(made.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(told), reply_to=message)


@app.evaluate()
def test(message: Message, context: Context) -> Message:
    """Count the hits of the arrays that came."""
    made, (x, y) = network(), samples(_folder(context), test=True)
    made.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        hits = float((made(x).argmax(1) == y).double().mean())
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": hits, "num-examples": len(x)})}), reply_to=message)
