"""Data that a run was given as objects in Python, and the forms that they may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hansa.data.arrays import dataset_from_arrays
from hansa.data.dataset import Dataset, Scale
from hansa.data.federation import Federation, federation_from_clients
from hansa.data.frames import is_frame, is_prose
from hansa.data.targets import Kind, Real
from hansa.errors import HansaError, did_you_mean, require

FORMS = "a frame, (x, y), (x, y, client), {client: (x, y)}, a source, a data set or a federation"


@dataclass(frozen=True)
class Given:
    """Data of which a plan can only say that a run was given it in Python; whoever goes on must give the same again."""

    form: str = "data"  # what it was
    label: str = ""  # of a frame, the column with the labels …
    client: str = ""  # … and the one with the clients' names
    target: Kind | None = None  # whether labels are classes or real numbers
    scale: Scale = "unit"  # of arrays, whether every column or colour has mean 0 and deviation 1

    def load(self) -> Dataset:
        """Refuse: nothing but the caller has the data."""
        raise HansaError(
            f"The run was given its data in Python, as {self.form}: go on there and give the same data again, as in "
            "hansa.resume(folder, data=…)."
        )

    def read(self, data: Any) -> Dataset | Federation:
        """Return an object of one of the known forms as a data set, or where clients' inputs differ as a federation."""
        if isinstance(data, (Dataset, Federation)):
            return data
        if is_frame(data):
            says = "The columns of a frame are scaled as those of a table"
            require(self.scale == "unit", f"{says}: leave out scale={self.scale!r}.")
            return self._of_frame(data)
        told = [f"{name} = {value!r}" for name in ("label", "client") if (value := getattr(self, name))]
        require(not told, f"The setting {' and '.join(told)} names a column, and the data is no frame: leave it out.")
        if isinstance(data, Mapping):
            return self._of_clients(data)
        if isinstance(data, (tuple, list)) and len(data) in (2, 3):
            return dataset_from_arrays(*data, **self._kind())
        raise HansaError(f"The 'data' must be {FORMS}. Got {_shown(data)}.")

    def of(self, data: Any, made: Dataset | Federation) -> Given:
        """Return the record of an object that was read."""
        form = "a federation" if isinstance(data, Federation) else "a data set" if isinstance(data, Dataset) else ""
        form = form or ("a frame" if is_frame(data) else "clients" if isinstance(data, Mapping) else "arrays")
        return Given(form, self.label, self.client, "real" if isinstance(made.target, Real) else "classes", self.scale)

    def _kind(self) -> dict[str, Any]:
        return {"target": self.target, "scale": self.scale}

    def _of_frame(self, frame: Any) -> Dataset:
        columns = {str(column): column for column in frame.columns}
        require(
            self.label != "", f"A frame needs the name of its column of labels, label=….{did_you_mean('', columns)}"
        )
        for name in filter(None, (self.label, self.client)):
            require(name in columns, f"There is no column '{name}' in the frame.{did_you_mean(name, columns)}")
        inputs = [column for name, column in columns.items() if name not in (self.label, self.client)]
        require(len(inputs) > 0, "The frame has no columns beside its labels and clients: nothing to learn from.")
        client = frame[columns[self.client]] if self.client else None
        x = frame[inputs[0]] if len(inputs) == 1 and is_prose(frame[inputs[0]]) else frame[inputs]
        return dataset_from_arrays(x, frame[columns[self.label]], client, target=self.target)

    def _of_clients(self, clients: Mapping[Any, Any]) -> Dataset | Federation:
        says = "A mapping of clients must hold (x, y) or (x, y, x_test, y_test) for each"
        for name, arrays in clients.items():
            good = isinstance(arrays, (tuple, list)) and not any(is_frame(one) for one in arrays)
            require(good, f"{says}; for tables give one frame with client='column'. Got {_shown(arrays)} for '{name}'.")
        held = {str(name): [np.asarray(one) for one in arrays] for name, arrays in clients.items()}
        alike = {(len(arrays), *(x.shape[1:] for x in arrays[::2])) for arrays in held.values()}
        if len(alike) != 1 or not {len(arrays) for arrays in held.values()} <= {2, 4}:
            says = "Clients whose inputs differ share no scale"
            require(self.scale == "unit", f"{says}: leave out scale={self.scale!r}.")
            return federation_from_clients({name: tuple(arrays) for name, arrays in held.items()}, target=self.target)
        for name, arrays in held.items():
            for x, y in zip(arrays[::2], arrays[1::2], strict=True):
                fits = x.ndim > 0 and y.ndim > 0 and len(x) == len(y)
                require(
                    fits, f"Client '{name}' has inputs of shape {x.shape} and labels of shape {y.shape}: give as many."
                )
        parts = [np.concatenate(part) for part in zip(*held.values(), strict=True)]
        sizes = [[len(arrays[place]) for arrays in held.values()] for place in range(0, len(parts), 2)]
        tested = {} if len(parts) == 2 else _tests(parts[2], parts[3], np.repeat([*held], sizes[1]))
        return dataset_from_arrays(parts[0], parts[1], np.repeat([*held], sizes[0]), **self._kind(), **tested)


def _tests(x: Any, y: Any, client: Any) -> dict[str, Any]:
    return {"x_test": x, "y_test": y, "client_test": client}


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
