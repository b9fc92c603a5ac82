"""A checkpoint as the first phase: training starts from the weights in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hansa.algorithms.no_training import NoTraining
from hansa.errors import HansaError, did_you_mean, require
from hansa.io import wire
from hansa.task import Task
from hansa.tree import Tree, nest, pick


@dataclass(frozen=True)
class Checkpoint(NoTraining):
    """Starts from the leaves in a safetensors file, such as a run's `model.safetensors`.

    Leaves the file lacks keep their seeded initial values, so a file with `features.*` alone is a pre-trained backbone.
    The leaves become part of the run's own checkpoint: a resumed run does not read the file again.
    """

    path: str

    def server_init(self, task: Task) -> Tree:
        """Return the file's leaves, once their names and shapes are known to fit."""
        leaves, own = self._read(), task.params()
        for key, leaf in leaves.items():
            hint = did_you_mean(key, own)
            require(key in own, f"The checkpoint '{self.path}' holds '{key}', which the model does not have.{hint}")
            shapes = f"{tuple(leaf.shape)}, and the model's is {tuple(own[key].shape)}"
            require(leaf.shape == own[key].shape, f"The '{key}' of checkpoint '{self.path}' has shape {shapes}.")
        return nest("model", {key: leaf.to(own[key].dtype) for key, leaf in leaves.items()})

    def _read(self) -> Tree:
        file = Path(self.path)
        require(file.is_file(), f"There is no checkpoint file '{self.path}'. Give the path of a safetensors file.")
        try:
            return wire.unpack(file.read_bytes())[0]
        except Exception as error:  # whatever the reader makes of a stranger's file
            raise HansaError(
                f"The checkpoint '{self.path}' is no safetensors file that can be read: {error}."
            ) from error

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the file's leaves among the initial ones."""
        return task.params() | pick("model", server)
