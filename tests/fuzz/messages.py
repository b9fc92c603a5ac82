"""Damaged messages: trees, frames, uploads and statistics; each is what was sent, or refused."""

from __future__ import annotations

import io
import json
import random
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.statistics import to_tree
from hansa.data.clients import FarClient
from hansa.engines import framing
from hansa.engines.client_side import ClientSide
from hansa.engines.session import ClientFailed, PhaseContext, Reply, receive
from hansa.io import wire
from hansa.models.dense import Linear
from hansa.ridge import RegressionStatistics, RidgeStatistics
from hansa.task import Task
from hansa.tree import Tree

from .campaign import campaign
from .values import changed, damaged

CLASSES, WIDTH = 3, 4


@cache
def statistics() -> RidgeStatistics:
    draw = torch.Generator().manual_seed(0)
    z, y = torch.randn(20, WIDTH, generator=draw), torch.randint(CLASSES, (20,), generator=draw)
    return RidgeStatistics.from_features(z, y, CLASSES)


@cache
def trees() -> tuple[Tree, ...]:
    """Messages of all types, of none, and of statistics."""
    kinds = (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool, torch.uint8)
    mixed = {f"leaf.{place}": torch.ones(place, 3).to(kind) for place, kind in enumerate(kinds)}
    return mixed, {"w": torch.arange(6.0).reshape(2, 3)}, {}, {"scalar": torch.tensor(1.5)}, statistics().pack()


def message(tree: Tree, rng: random.Random) -> bytes:
    """A message of a tree with damage anywhere in its bytes, or in what its header says."""
    whole = wire.pack(tree, {"weight": 2.0, "count": 1.0, "flops": 7.0})
    if rng.random() < 0.5:
        return damaged(whole, rng)
    length = struct.unpack_from("<Q", whole)[0]
    header = json.dumps(changed(json.loads(whole[8 : 8 + length]), rng)).encode()
    return struct.pack("<Q", len(header)) + header + whole[8 + length :]


def theirs(content: bytes) -> Tree | None:
    """What the safetensors library reads; None where it refuses, or knows a type that torch lacks."""
    try:
        return safetensors.torch.load(content)
    except Exception:
        return None


def same(one: Tree, other: Tree) -> bool:
    """Whether two trees are equal bit for bit, NaN included."""
    return one.keys() == other.keys() and all(_told(leaf) == _told(other[key]) for key, leaf in one.items())


def _told(leaf: torch.Tensor) -> tuple[Any, ...]:
    return leaf.dtype, leaf.shape, leaf.reshape(-1).view(torch.uint8).tolist()


def unpacked(rng: random.Random) -> None:
    """Whatever the library refuses we refuse, and what both take is the same."""
    content = message(rng.choice(trees()), rng)
    tree, numbers = wire.unpack(bytearray(content) if rng.random() < 0.5 else content)
    known = theirs(content)
    if known is None:
        raise AssertionError("a message was taken that safetensors refuses")
    if not same(tree, known):
        raise AssertionError("a message was taken as another tree than safetensors reads")
    if not all(isinstance(value, float) for value in numbers.values()):
        raise AssertionError("a number beside a tree is none")


def framed(rng: random.Random) -> None:
    """A frame is what was sent, or refused, or the other side is gone."""
    stream = io.BytesIO()
    framing.write(stream, {"kind": "visit", "client": "é"}, [wire.parts(tree) for tree in trees()[:2]])
    try:
        head, messages = framing.read(io.BytesIO(damaged(stream.getvalue(), rng)))
    except EOFError as error:  # what the engine takes for the end of the process
        raise ClientFailed("The other side is gone.") from error
    assert isinstance(head, dict), "a frame's head is no table"
    for one in messages:
        wire.unpack(one)


def uploaded(rng: random.Random) -> None:
    """An upload of statistics is decoded to finite sums of the right shapes, or fails as its client's."""
    task = Task(Linear(), (WIDTH,), CLASSES)
    algorithm = Fed3R()
    sent = algorithm.encode(to_tree(statistics()))
    upload, numbers = wire.unpack(message(sent, rng))
    reply = Reply("c", upload, numbers, {}, 0, 0, 0.0)
    side = ClientSide(algorithm, task, {"c": FarClient(int(statistics().counts.sum()))}, lambda _: None, 0, 0)
    update = receive(PhaseContext(algorithm, task, side), task, {}, reply)
    if {key: leaf.shape for key, leaf in update.sums.items()} != {
        key: leaf.shape for key, leaf in to_tree(statistics()).items()
    }:
        raise AssertionError("an upload of another shape was taken")


def statistics_file(rng: random.Random) -> None:
    """A file of statistics is read as statistics, or refused."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "s.safetensors"
        statistics().save(file)
        file.write_bytes(damaged(file.read_bytes(), rng))
        rng.choice((RidgeStatistics, RegressionStatistics)).load(file)


def packed(rng: random.Random) -> None:
    """The wire form of statistics with leaves exchanged, reshaped or missing is refused or read."""
    tree: dict[str, Any] = dict(statistics().pack())
    key = rng.choice(list(tree))
    leaf = tree[key]
    shapes = [(0,), (2**40, 0), (0, 3), (1,), (len(leaf), 1), ()]
    kind = rng.choice(("drop", "shape", "type", "swap", "extra", "nan"))
    if kind == "drop":
        del tree[key]
    elif kind == "shape":
        tree[key] = torch.zeros(rng.choice(shapes), dtype=leaf.dtype)
    elif kind == "type":
        tree[key] = leaf.to(rng.choice((torch.bool, torch.int64, torch.bfloat16, torch.complex64)))
    elif kind == "swap":
        tree[key] = tree[rng.choice(list(tree))]
    elif kind == "extra":
        tree["more"] = leaf
    else:
        tree[key] = leaf.double() * float("nan")
    RidgeStatistics.unpack(tree, rng.choice((CLASSES, 1, 0)))


CASES = (unpacked, unpacked, framed, uploaded, statistics_file, packed)


def case(rng: random.Random) -> None:
    """One of the ways in."""
    rng.choice(CASES)(rng)


def main(cases: int, seed: int) -> int:
    """Carry out the campaign; return the number of failures."""
    return campaign("messages", case, cases, seed)
