"""An adapter for the partitioners of flwr-datasets."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hansa.data.dataset import Array, Dataset
from hansa.data.partitions.dealing import client_names, labels_of
from hansa.errors import HansaError, did_you_mean, require


@dataclass(frozen=True)
class FlowerPartitioner:
    """A partitioner of flwr-datasets by its class name, with its own options.

    It sees the columns `label`, `client` and `domain` (those the source gives); `partition_by` is `label` unless set,
    and a `seed` unless set comes from the run.  Its rules are its own: some of them leave samples out.
    """

    partitioner: str = "DirichletPartitioner"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Return the partitions as sample numbers; natural ids name their clients."""
        found = self._build(int(rng.integers(2**31)))
        if self._divides_by_label():
            labels_of(data, f"The {self.partitioner} of flwr-datasets")
        try:
            found.dataset = _as_columns(data)
            index = [np.sort(np.asarray(found.load_partition(part)["index"])) for part in range(found.num_partitions)]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise HansaError(f"The {self.partitioner} of flwr-datasets failed: {_first_line(error)}") from error
        return dict(zip(_names(found, len(index)), index, strict=True))

    def _divides_by_label(self) -> bool:
        accepted = inspect.signature(_find(self.partitioner)).parameters
        return "partition_by" in accepted and self.options.get("partition_by", "label") == "label"

    def _build(self, seed: int) -> Any:
        kind = _find(self.partitioner)
        accepted = inspect.signature(kind).parameters
        for option in self.options:
            require(
                option in accepted,
                f"{self.partitioner} of flwr-datasets has no option '{option}'.{did_you_mean(option, accepted)}",
            )
        preset = {key: value for key, value in (("partition_by", "label"), ("seed", seed)) if key in accepted}
        try:
            return kind(**{**preset, **self.options})
        except (ValueError, TypeError) as error:
            raise HansaError(
                f"The {self.partitioner} of flwr-datasets refuses its options: {_first_line(error)}"
            ) from error


def _find(name: str) -> Any:
    try:
        module = importlib.import_module("flwr_datasets.partitioner")
    except ImportError as error:
        raise HansaError("The flwr partition needs flwr-datasets: pip install 'hansa[flower]'.") from error
    known = [kind for kind in module.__all__ if kind != "Partitioner" and not kind.startswith("Vertical")]
    require(name in known, f"There is no partitioner '{name}' that divides samples.{did_you_mean(name, known)}")
    return getattr(module, name)


def _as_columns(data: Dataset) -> Any:
    import datasets

    columns: dict[str, Array] = {"index": np.arange(len(data.train)), "label": data.train.y}
    if data.client is not None:
        columns["client"] = data.client
    if data.domain is not None:
        columns["domain"] = data.domain
    return datasets.Dataset.from_dict(columns)


def _names(partitioner: Any, count: int) -> list[str]:
    natural = getattr(partitioner, "partition_id_to_natural_id", None)
    if isinstance(natural, Mapping) and len(natural) == count:
        return [str(natural[part]) for part in range(count)]
    return client_names(count)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
