"""Plans from objects: what `hansa.run(data=…, model=…, algorithm=…)` means, as the plan that a file would hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hansa.contract import Algorithm
from hansa.data.dataset import SCALES, Dataset
from hansa.data.federation import Federation
from hansa.data.frames import is_frame
from hansa.data.sources.given import Given
from hansa.errors import HansaError, require
from hansa.io.codec import import_paths, piece_import_paths, piece_to_table, to_table
from hansa.io.registry import CATALOGUE, find
from hansa.io.trust import Trust
from hansa.lazy import nn
from hansa.models.given import given_model
from hansa.plan.assemble import Data
from hansa.plan.files import plan_from_table
from hansa.plan.schema import DataPlan, PhasePlan, Plan

Table = dict[str, Any]
KINDS = {
    "source": "data",
    "partition": "partition",
    "extractor": "features",
    "model": "model",
    "algorithm": "algorithm",
    "metric": "metrics",
    "engine": "engine",
}  # the argument that holds pieces of a kind


@dataclasses.dataclass(frozen=True)
class Objects:
    """Everything that a run may be told in Python in place of a plan; each is a name of the catalogue or an object."""

    data: Any = None
    label: str = ""  # of a frame, the column with the labels …
    client: str = ""  # … and the one with the clients' names
    target: Any = None
    partition: Any = None
    test: Any = None
    features: Any = None
    model: Any = None
    algorithm: Any = None
    rounds: int | None = None
    metrics: Any = None
    engine: Any = None
    name: str | None = None
    scale: Any = None

    def __post_init__(self) -> None:
        says = "names a column of a frame; names of arrays' clients are part of the data: data=(x, y, client)"
        for key in ("label", "client"):
            given = getattr(self, key)
            require(isinstance(given, str), f"'{key}' {says}. Got {type(given).__name__}.")

    def plan(self, trust: Trust) -> tuple[Plan, Data]:
        """Return the plan that these objects make, and the data where they are the caller's own."""
        for key, what in (("data", "the data to learn from"), ("algorithm", "an algorithm or a list of phases")):
            require(getattr(self, key) is not None, f"A run without a plan needs {what}: give {key}=….")
        own = isinstance(self.data, (str, DataPlan, Dataset, Federation)) or hasattr(self.data, "load")
        require(self.scale is None or not own, f"This data says its own scale: leave out scale={self.scale!r}.")
        section, data = self._data()
        table: Table = {"data": section, "phases": _phases(self.algorithm, self.rounds)}
        for kind in ("model", "engine"):
            if (given := getattr(self, kind)) is not None:
                table[kind] = _told(kind, given)
        if self.metrics is not None:
            table["evaluate"] = {"metrics": _all_told("metric", self.metrics)}
        if self.name is not None:
            table["name"] = self.name
        return plan_from_table(table, "hansa.run", Path.cwd(), trust=self._trusted(trust)), data

    def beside(self, plan: Plan) -> tuple[Plan, Data]:
        """Return a plan whose data or model these objects stand in for; all else is the plan's to say."""
        stands_in = ("data", "label", "client", "target", "scale", "model")
        more = [one.name for one in dataclasses.fields(self) if getattr(self, one.name) not in (None, "")]
        odd = [name for name in more if name not in stands_in]
        says = f"The plan says its own {' and '.join(odd)}"
        require(not odd, f"{says}: change it with changes=[…] or dataclasses.replace, or leave out the plan.")
        if self.model is not None:
            model = given_model(self.model) if isinstance(self.model, nn.Module) else self.model
            require(hasattr(model, "build"), f"The 'model' beside a plan must be an object. Got {self.model!r}.")
            plan = dataclasses.replace(plan, model=model)
        if self.data is None:
            return plan, None
        source, made = self._read()
        return dataclasses.replace(plan, data=dataclasses.replace(plan.data, source=source)), made

    def _read(self) -> tuple[Given, Dataset | Federation]:
        scale: Any = "unit" if self.scale is None else self.scale
        require(scale in SCALES, f"The 'scale' of arrays must be one of {', '.join(SCALES)}. Got {scale!r}.")
        reader = Given(label=self.label, client=self.client, target=self.target, scale=scale)
        made = reader.read(self.data)
        return reader.of(self.data, made), made

    def _data(self) -> tuple[Table, Data]:
        """Return the data section, and what stands in for its source where the caller has the data."""
        own = {"partition": self.partition, "test": self.test, "features": self.features}
        told = {key: value for key, value in own.items() if value is not None}
        if isinstance(self.data, DataPlan):
            require(not told, f"The data section says its own {' and '.join(told)}: leave it out.")
            return to_table(self.data), None
        if isinstance(self.data, str) or hasattr(self.data, "load"):
            return {"partition": "natural", **_section(told), "source": _told("source", self.data)}, None
        source, made = self._read()
        whole = isinstance(made, Federation)
        says = f"The clients are divided already, so there is no {' or '.join(told)} to say"
        require(not (whole and told), f"{says}: leave it out, or give one data set.")
        named = whole or self.partition is not None or (isinstance(made, Dataset) and made.client is not None)
        clients = "client='column'" if is_frame(self.data) else "(x, y, client)"
        says = f"Nothing says whose samples these are: give {clients}, or divide them, as with"
        require(named, f"{says} partition={{'name': 'dirichlet', 'clients': 10}}.")
        return {"partition": "natural", **_section(told), "source": _told("source", source)}, made

    def _trusted(self, trust: Trust) -> Trust:
        """Return what a caller trusts, and the code of the objects that the caller made."""
        made = [(kind, one) for kind, name in KINDS.items() for one in _listed(getattr(self, name))]
        own = {path for kind, one in made for path in _paths(kind, one)}
        return Trust((*trust.patterns, *sorted(own)))


def _paths(kind: str, given: Any) -> Iterable[str]:
    """Return the import paths of an object's code, where it is a piece or holds some."""
    if isinstance(given, (PhasePlan, DataPlan)):
        return import_paths(given)
    return piece_import_paths(kind, given) if _is_piece(given) else ()


def _section(told: Mapping[str, Any]) -> Table:
    table: Table = {}
    if "partition" in told:
        table["partition"] = _told("partition", told["partition"])
    if "features" in told:
        table["features"] = _all_told("extractor", told["features"])
    if "test" in told:
        table["test"] = to_table(told["test"]) if _is_piece(told["test"]) else told["test"]
    return table


def _phases(given: Any, rounds: int | None) -> str | list[Table]:
    """Return phases as a plan file has them: a line of the papers' notation, or a table for each."""
    if isinstance(given, str) and given not in CATALOGUE["algorithm"] and ":" not in given:
        require(rounds is None, f"The rounds of '{given}' stand in the notation, as in FedAvg-100: leave out 'rounds'.")
        return given
    require(not isinstance(given, Sequence) or len(given) > 0, "The list of phases is empty: give an algorithm.")
    return [_phase(one, rounds) for one in _listed(given)]


def _phase(given: Any, rounds: int | None) -> Table:
    if isinstance(given, PhasePlan):
        return to_table(given)
    table: Table = {"algorithm": _told("algorithm", given)}
    many = rounds is not None and not _one_shot(given)
    return {**table, "rounds": rounds} if many else table


def _one_shot(given: Any) -> bool:
    """Tell whether an algorithm sees every client once, in one round."""
    name = given if isinstance(given, str) else given.get("name", "") if isinstance(given, Mapping) else ""
    piece = find("algorithm", name)() if name in CATALOGUE["algorithm"] else given
    return isinstance(piece, Algorithm) and piece.one_shot


def _told(kind: str, given: Any) -> Any:
    """Return a piece as a plan file has it: a name and a table as they are, an object as its table."""
    if isinstance(given, nn.Module):
        given = given_model(given)
    if isinstance(given, (str, Mapping)):
        return given
    says = f"The '{kind}' must be a name, such as '{next(iter(CATALOGUE[kind]))}', or an object"
    if isinstance(given, type):
        raise HansaError(f"{says}. Got the class {given.__name__}: write {given.__name__}(…).")
    require(_is_piece(given), f"{says}. Got {given!r}.")
    return piece_to_table(kind, given)


def _all_told(kind: str, given: Any) -> list[Any]:
    return [_told(kind, one) for one in _listed(given)]


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (tuple, list)) else [] if given is None else [given]


def _is_piece(given: Any) -> bool:
    """Tell whether something is an object whose settings are its fields; data are not."""
    return dataclasses.is_dataclass(given) and not isinstance(given, (type, Dataset, Federation))
