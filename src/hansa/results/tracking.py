"""Trackers: the same numbers as the run folder's, sent on to TensorBoard, Weights & Biases or MLflow.

None of them needs a network: all write into the run folder unless told otherwise.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hansa.errors import HansaError, require


class Tracker(Protocol):
    """A further destination of a run's metrics while it lasts."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log metrics after a number of rounds, counted over all phases."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class Tracking(Protocol):
    """A piece that names a tracker and its settings."""

    def open(self, run_folder: Path, name: str, config: Mapping[str, Any]) -> Tracker:
        """Start tracking a run; `config` is its plan."""
        ...


@dataclass(frozen=True)
class TensorBoard:
    """Event files for `tensorboard --logdir`; the default folder is `tensorboard` in the run folder."""

    folder: str | None = None

    def __post_init__(self) -> None:
        require(self.folder != "", "The 'folder' of TensorBoard must not be empty. Leave it out for the run folder.")

    def open(self, run_folder: Path, name: str, config: Mapping[str, Any]) -> Tracker:
        """Start an event file and note the plan in it."""
        _module("tensorboard")
        writer = _module("torch.utils.tensorboard").SummaryWriter(self.folder or str(run_folder / "tensorboard"))
        writer.add_text("plan", "\n".join(f"    {key} = {value}" for key, value in flatten(config).items()))
        return _TensorBoardTracker(writer)


@dataclass(frozen=True)
class _TensorBoardTracker:
    writer: Any

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True)
class WeightsAndBiases:
    """A run of Weights & Biases, stored in the run folder; `wandb sync` sends it once there is an account."""

    project: str = "hansa"
    mode: str = "offline"

    def __post_init__(self) -> None:
        require(bool(self.project), "The 'project' of WeightsAndBiases must not be empty.")
        sentence = f"The 'mode' of WeightsAndBiases must be 'offline' or 'online'. Got {self.mode!r}."
        require(self.mode in ("offline", "online"), sentence)

    def open(self, run_folder: Path, name: str, config: Mapping[str, Any]) -> Tracker:
        """Start a run of its own, silent on the console."""
        quiet = {"silent": True, "console": "off", "disable_git": True, "disable_code": True, "x_disable_stats": True}
        with _variables(WANDB_ERROR_REPORTING="false"):
            wandb = _module("wandb")
            run = wandb.init(
                project=self.project,
                name=name,
                dir=str(run_folder),
                mode=self.mode,
                config=dict(config),
                settings=wandb.Settings(**quiet),
                reinit="create_new",
            )
        return _WeightsAndBiasesTracker(run)


@dataclass(frozen=True)
class _WeightsAndBiasesTracker:
    run: Any

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


@dataclass(frozen=True)
class MLflow:
    """A run in an MLflow store; without a `uri` the store is the folder `mlruns` in the run folder."""

    uri: str | None = None
    experiment: str = "hansa"

    def __post_init__(self) -> None:
        require(self.uri != "", "The 'uri' of MLflow must not be empty. Leave it out to write into the run folder.")
        require(bool(self.experiment), "The 'experiment' of MLflow must not be empty.")

    def open(self, run_folder: Path, name: str, config: Mapping[str, Any]) -> Tracker:
        """Start a run and note the plan's settings as its parameters."""
        # MLflow 3 tells its makers of its use, and opens a store made of files only when asked to.
        with _variables(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_ALLOW_FILE_STORE="true"):
            client = _module("mlflow").MlflowClient(self.uri or (run_folder / "mlruns").resolve().as_uri())
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else client.create_experiment(self.experiment)
        run = client.create_run(experiment, run_name=name).info.run_id
        for key, value in flatten(config).items():
            client.log_param(run, key, str(value)[:500])
        return _MLflowTracker(client, run)


@dataclass(frozen=True)
class _MLflowTracker:
    client: Any
    run: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if math.isfinite(value):
                self.client.log_metric(self.run, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.run)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested plan to `phases.0.rounds` and the like."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, list | tuple) and any(isinstance(part, Mapping) for part in value):
            value = {str(place): part for place, part in enumerate(value)}
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


@contextmanager
def _variables(**wanted: str) -> Iterator[None]:
    """Set environment variables while a package is imported and opened; what the user has set stays."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise HansaError(f"This tracker needs the package '{package}': pip install 'hansa[tracking]'.") from error
