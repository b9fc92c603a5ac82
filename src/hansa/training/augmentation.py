"""Pictures that differ a little every time they are trained on: pieces of local training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from hansa.errors import require
from hansa.lazy import F, Tensor, torch
from hansa.task import Task


class Augmentation(ABC):
    """A piece that changes a batch of pictures at random; what it draws comes from the visit's seed alone."""

    __slots__ = ()

    @abstractmethod
    def apply(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Return other pictures of the same shape (n × channels × height × width)."""

    def check(self, task: Task) -> None:
        """Refuse samples that are no pictures."""
        name, shape = type(self).__name__, task.input_shape
        require(len(shape) == 3, f"The augmentation {name} needs pictures. Got samples of shape {shape}: leave it out.")


def augmented(x: Tensor, each: Sequence[Augmentation], rng: torch.Generator) -> Tensor:
    """Return a batch after one augmentation and then the next."""
    for one in each:
        x = one.apply(x, rng)
    return x


@dataclass(frozen=True)
class Flip(Augmentation):
    """Mirrors a picture, left to right, with a probability of `chance`."""

    chance: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.chance <= 1, f"The 'chance' of Flip must lie in [0, 1]. Got {self.chance}.")

    def apply(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Return some of the pictures mirrored."""
        mirrored = (torch.rand(len(x), generator=rng) < self.chance).to(x.device)
        return torch.where(mirrored[:, None, None, None], x.flip(3), x)


@dataclass(frozen=True)
class Crop(Augmentation):
    """Moves a picture by up to `padding` pixels up or down and left or right; what is uncovered is zero."""

    padding: int = 4

    def __post_init__(self) -> None:
        require(self.padding >= 1, f"The 'padding' of Crop must be a whole number ≥ 1. Got {self.padding}.")

    def apply(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Return every picture cut out of a larger one with a margin of zeros."""
        drawn = torch.randint(2 * self.padding + 1, (2, len(x), 1), generator=rng).to(x.device)
        rows, columns = (
            first + torch.arange(side, device=x.device) for first, side in zip(drawn, x.shape[2:], strict=True)
        )
        wide = F.pad(x, (self.padding,) * 4).transpose(0, 1)  # channels in front, so that one index takes both sides
        number = torch.arange(len(x), device=x.device)[:, None, None]
        return wide[:, number, rows[:, :, None], columns[:, None, :]].transpose(0, 1)
