"""The feature cache: a folder for every pair of extractor and data, a file for every chunk of samples.

A chunk is written to a temporary name and renamed, so whatever is there is whole, and a killed extraction goes on
where it was.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hansa.errors import HansaError, HansaWarning
from hansa.io.cache import Array, map_array, write_array
from hansa.io.files import write_whole
from hansa.io.lock import exclusive

CHUNK = 1024  # samples a file


@dataclass(frozen=True)
class FeatureCache:
    """The cached features of one data array by one extractor."""

    folder: Path

    def read(self, number: int) -> Array | None:
        """Return a chunk's features where they lie, memory-mapped; None where it is missing, cut short or damaged."""
        return map_array(self._file(number), "features")

    def keep(self, number: int, features: Array) -> Array:
        """Store a chunk's features, all or nothing; return them as they lie there, or as they are."""
        with self._writable():
            write_array(self._file(number), "features", features)
        stored = self.read(number)
        return features if stored is None else stored

    def read_flops(self) -> float | None:
        """Return the cost of extracting one sample, if it was ever counted."""
        try:
            return float(json.loads((self.folder / "cost.json").read_text(encoding="utf-8"))["flops_per_sample"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_flops(self, flops: float) -> None:
        """Store the cost of extracting one sample."""
        with self._writable():
            write_whole(self.folder / "cost.json", json.dumps({"flops_per_sample": flops}))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from writing to this shelf meanwhile; a killed process holds nothing up."""
        with ExitStack() as held:
            with self._writable():
                self.folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(exclusive(held.enter_context((self.folder / "lock").open("ab"))))
                for left_over in self.folder.glob("*.part"):  # by a process that was killed while writing
                    left_over.unlink(missing_ok=True)
            yield

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:05d}.safetensors"

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """Go on with a warning where the cache cannot be written: a later run computes what is not kept."""
        try:
            yield
        except (OSError, HansaError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            warnings.warn(
                f"The feature cache '{self.folder}' cannot be written ({why}), so the next run must compute these "
                "features again; make room there or set HANSA_CACHE to another folder.",
                HansaWarning,
                stacklevel=2,
            )
