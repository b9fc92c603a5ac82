"""The device that an engine trains on: its name, whether this machine has it, and how exactly it computes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from hansa.errors import require
from hansa.lazy import torch

DEVICE = re.compile(r"(cpu|cuda)(:(0|[1-9]\d?))?")
# Of products and convolutions: tf32 keeps 10 bits of a factor on a GPU, bf16 keeps 7 wherever networks train.
Precision = Literal["float32", "tf32", "bf16"]


def check_name(device: str) -> None:
    """Refuse what is no name of a device."""
    known = DEVICE.fullmatch(device)
    require(bool(known), f"The 'device' of the vectorised engine must be 'cpu' or 'cuda'. Got '{device}'.")


def check_device(engine: object) -> None:
    """Refuse an engine whose device this machine lacks; the plan of a finished run may name one that another has."""
    device = getattr(engine, "device", "cpu")
    there = torch.device(device).type == "cpu" or torch.cuda.is_available()
    require(there, f"The 'device' of the engine is not there. Got '{device}'; use 'cpu'.")


@contextmanager
def same_bits(device: str, precision: Precision = "float32") -> Iterator[None]:
    """Make a GPU give the same bits every time, and all bits unless less is asked for: torch's default is neither."""
    if torch.device(device).type == "cpu":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it recurrent layers' bits may differ
    less, products = precision == "tf32", torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, less
    flags = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=less)
    try:
        # One process drives the device, so a second thread for gradients is of no use; with it, processes of torch 2.11
        # crashed in Python's collector after thousands of steps.
        with flags, torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        products.allow_tf32 = before
