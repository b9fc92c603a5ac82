"""Extractors for tests: a real piece that counts, and a network a user might bring."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from hansa.data.dataset import Array
from hansa.io.cache import digest


@dataclass(frozen=True)
class Doubling:
    """Two features a number; writes a line into a file for every batch, and may die on the way."""

    log: Path
    version: str = "1"
    dies_after: int = -1  # batches

    def fingerprint(self) -> str:
        return digest("doubling", self.version)

    def prepare(self) -> Callable[[Array], Tensor]:
        weight = torch.tensor([[1.0, 2.0]])

        def features(x: Array) -> Tensor:
            if self.dies_after >= 0 and len(self.lines()) >= self.dies_after:
                os._exit(9)
            with self.log.open("a") as stream:
                stream.write(f"{len(x)}\n")
            return torch.from_numpy(x).float() @ weight

        return features

    def lines(self) -> list[int]:
        """The size of every batch computed so far."""
        return [int(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@dataclass(frozen=True)
class Brightness:
    """The mean of every colour of an image."""

    def fingerprint(self) -> str:
        return "brightness"

    def prepare(self) -> Callable[[Array], Tensor]:
        return lambda x: torch.from_numpy(x).float().mean((1, 2))


@dataclass(frozen=True)
class Broken:
    """Gives NaN."""

    def fingerprint(self) -> str:
        return "broken"

    def prepare(self) -> Callable[[Array], Tensor]:
        return lambda x: torch.full((len(x), 2), float("nan"))


@dataclass(frozen=True)
class Wide:
    """A product with a matrix that may be much larger than what it gives, and how many samples had it together."""

    width: int = 32
    rows: int = 0  # of the matrix beyond those that are used
    sizes: list[int] = field(default_factory=list)  # of what went through

    def fingerprint(self) -> str:
        return digest("wide", str(self.width), str(self.rows))

    def prepare(self) -> Callable[[Array], Tensor]:
        weight = torch.zeros(self.width + self.rows, 64)

        def features(x: Array) -> Tensor:
            self.sizes.append(len(x))
            read = torch.zeros(len(x), 64) if x.dtype.kind == "U" else torch.from_numpy(x)
            return (read @ weight.T[:, : self.width]).add_(len(x))

        return features


class Tiny(nn.Module):
    def __init__(self, channels: int = 3, width: int = 4, scale: float = 1.0) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.norm(self.convolution(x)).mean((2, 3))
