"""A process of its own for some clients: it holds their data and sees only messages.  Started by `Processes`."""

from __future__ import annotations

import os
import sys
from typing import Any, BinaryIO

import torch

from hansa.contract import Algorithm
from hansa.engines import framing as frames
from hansa.engines.session import Visit, perform
from hansa.errors import HansaError
from hansa.io import wire
from hansa.io.codec import piece_from_table
from hansa.task import ClientData, Task
from hansa.tree import Tree

Answer = tuple[dict[str, Any], list[list[wire.Buffer]]]


def read_task(head: dict[str, Any], start: Tree) -> Task:
    """The task a server described."""
    return Task(
        model=piece_from_table("model", head["model"]),
        input_shape=tuple(head["input_shape"]),
        num_classes=head["num_classes"],
        population=head["population"],
        seed=head["seed"],
        start=start,
        temperature=head["temperature"],
        integers=head["integers"],
        local_labels=head["local_labels"],
    )


def answer(
    algorithm: Algorithm, task: Task, data: ClientData, down: Tree, head: dict[str, Any], messages: list[memoryview]
) -> Answer:
    """One visit, from messages to messages."""
    try:
        state, start = (wire.unpack(message)[0] for message in messages)
        visit = Visit(head["client"], state if head["known"] else None, start, head["seed"])
        reply = perform(algorithm, task, data, visit, down)
    except Exception as error:
        return {"error": str(error), "bad_input": isinstance(error, HansaError)}, []
    return {"seconds": reply.seconds}, [wire.parts(reply.upload, reply.numbers), wire.parts(reply.state)]


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer frames until the other side closes."""
    head, (start,) = frames.read(requests)
    task, algorithm = read_task(head, wire.unpack(start)[0]), piece_from_table("algorithm", head["algorithm"])
    held: dict[str, ClientData] = {}
    down: Tree = {}
    while True:
        try:
            head, messages = frames.read(requests)
        except EOFError:
            return
        if head["kind"] == "data":
            tree, _ = wire.unpack(messages[0])
            held[head["client"]] = ClientData(tree["x"], tree["y"])
        elif head["kind"] == "down":
            down, _ = wire.unpack(messages[0])
        else:
            frames.write(replies, {"kind": "begun"}, [])  # from here on a deadline counts
            frames.write(replies, *answer(algorithm, task, held[head["client"]], down, head, messages))


if __name__ == "__main__":
    torch.set_num_threads(1)
    frames_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a client prints goes to stderr, not between the frames
    serve(sys.stdin.buffer, frames_out)
