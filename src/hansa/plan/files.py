"""Plan files: reading with all errors at once, changing single settings, and writing."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from hansa.data.sources.files import is_there
from hansa.errors import HansaError, Problems, did_you_mean
from hansa.io.codec import from_table, json_schema, require_sane, to_table
from hansa.io.trust import Trust, TrustLike
from hansa.plan.rates import with_default_rates
from hansa.plan.schema import FORMAT, Plan
from hansa.plan.shorthand import expand, lift

SHIPPED = resources.files("hansa.plan") / "shipped"


def shipped() -> dict[str, str]:
    """Return the plans that come with the package: name and text."""
    files = sorted((file for file in SHIPPED.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in files}


def named(text: str, name: str) -> str:
    """Return a shipped plan's text with another name of the plan."""
    return re.sub(r"^name = .*$", f"name = {json.dumps(name, ensure_ascii=False)}", text, count=1, flags=re.MULTILINE)


def read_plan(source: str | Path | Mapping[str, Any], changes: Iterable[str] = (), *, trust: TrustLike = False) -> Plan:
    """Read the plan of a file, of a shipped plan's name, or of what a file would hold, with `--set`-style changes.

    It may name pieces of the catalogue, and those import paths that `trust` admits: all (True), or a list of them.
    """
    name, table, folder = _table(source)
    lifts = expand(table)
    for change in changes:
        apply_change(table, change)
        lifts = expand(table) or lifts
        if change.partition("=")[0].strip() == "model":
            lift(table, lifts)  # the notation goes with any model, also with one that is set after it
    return plan_from_table(table, name, folder, trust=trust)


def plan_from_table(table: dict[str, Any], source: str, folder: Path, *, trust: TrustLike = False) -> Plan:
    """Return a plan from its table; relative paths of data are relative to `folder`."""
    version = table.get("hansa", FORMAT)
    if isinstance(version, int) and version > FORMAT:
        raise HansaError(
            f"The plan '{source}' has format {version}, newer than {FORMAT}: please update hansa to read it."
        )
    expand(table)
    anchor(table, folder)
    trusted = Trust.of(trust)
    try:
        plan: Plan = from_table(Plan, table, trust=trusted)
    except Problems as error:
        raise Problems(f"{source}: {problem}" for problem in error.problems) from error
    return with_default_rates(plan, table["phases"], trusted)


def plan_schema() -> dict[str, Any]:
    """Return a JSON schema of plan files, for editors."""
    schema = json_schema(Plan)
    phases = schema["properties"]["phases"]
    notation = {"type": "string", "description": "Phases in the papers' notation: OLL(Fed3R + FedAvg) + FP(head)."}
    schema["properties"]["phases"] = {"anyOf": [phases, notation]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _table(source: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any], Path]:
    """Return what a plan is called in messages, its table, and the folder that its paths are relative to."""
    if isinstance(source, Mapping):
        return "the plan given", _as_written(source), Path.cwd()
    if not isinstance(source, str | Path):
        kinds = "a file, the name of a shipped plan, a mapping of what a file would hold, or a hansa.Plan"
        raise HansaError(f"A plan must be {kinds}. Got an object of type {type(source).__name__}.")
    text, folder = _text(source)
    try:
        return str(source), tomllib.loads(text), folder
    except (ValueError, RecursionError) as error:
        raise HansaError(f"The plan '{source}' is not valid TOML: {error}.") from error


def _as_written(value: Any) -> Any:
    """Return what a plan file would hold in a value's place."""
    if isinstance(value, Mapping):
        return {str(key): _as_written(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_written(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value


def _text(source: str | Path) -> tuple[str, Path]:
    path = Path(source)
    if (found := _file_text(path)) is not None:
        return found, path.resolve().parent
    known = shipped()
    if str(source) in known:
        return known[str(source)], Path.cwd()
    raise HansaError(
        f"There is no plan file '{source}', and no shipped plan of this name.{did_you_mean(str(source), known)}"
    )


def _file_text(path: Path) -> str | None:
    """Return the text of a plan file; None where there is none."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError as error:
        raise HansaError(f"The plan '{path}' is not UTF-8 (byte {error.start}); save it as UTF-8 text.") from error
    except OSError as error:
        raise HansaError(f"The plan '{path}' cannot be read: {error.strerror}.") from error


def anchor(table: dict[str, Any], folder: Path) -> None:
    """Make the paths of a plan independent of where it is run."""
    data = table.get("data")
    source, features = (data.get("source"), data.get("features")) if isinstance(data, dict) else (None, None)
    if isinstance(source, dict):
        _anchor_source(source, folder)
    if isinstance(start := table.get("start"), dict) and "run" in start:
        start["run"] = _placed(start["run"], folder)
    for phase in table["phases"] if isinstance(table.get("phases"), list) else ():
        clock = phase.get("clock") if isinstance(phase, dict) else None
        if isinstance(clock, dict) and isinstance(clock.get("path"), str):
            clock["path"] = str(folder / Path(clock["path"]).expanduser())
        algorithm = phase.get("algorithm") if isinstance(phase, dict) else None
        if isinstance(algorithm, dict) and algorithm.get("name") == "checkpoint" and "path" in algorithm:
            algorithm["path"] = _placed(algorithm["path"], folder)
    for one in features if isinstance(features, list) else [features]:
        if isinstance(one, dict) and isinstance(one.get("path"), str) and is_there(folder / one["path"]):
            one["path"] = str(folder / one["path"])  # otherwise a hub id or an import path
    _place_model(table.get("model"), folder)


def _anchor_source(source: dict[str, Any], folder: Path) -> None:
    for key in ("path", "clients_from", "test_path", "root", "files"):
        if isinstance(source.get(key), list):
            source[key] = [_placed(path, folder) for path in source[key]]
        elif key in source:
            source[key] = _placed(source[key], folder)
    for one in source["sources"].values() if isinstance(source.get("sources"), dict) else ():
        if isinstance(one, dict):
            _anchor_source(one, folder)


def _place_model(model: Any, folder: Path) -> None:
    """Place the folder of an encoder that is a model, also one inside others."""
    if not isinstance(model, dict):
        return
    if model.get("name") == "transformers" and "path" in model:
        model["path"] = _placed(model["path"], folder)
    for inner in model.values():
        _place_model(inner, folder)


def _placed(path: Any, folder: Path) -> Any:
    """Return a path from where a plan lies; what is no path is left to whoever checks settings."""
    try:
        return str(folder / Path(path).expanduser()) if isinstance(path, str) else path
    except RuntimeError:  # a home folder that is not known here
        return path


def apply_change(table: dict[str, Any], change: str) -> None:
    """Set one value, `phases.0.rounds=5`, read as TOML where it is TOML and as text otherwise."""
    path, equals, text = change.partition("=")
    if not equals:
        raise HansaError(f"A change must look like 'phases.0.rounds=5'. Got '{change}'.")
    *parents, last = path.strip().split(".")
    place: Any = table
    for depth, key in enumerate(parents):
        place = _enter(place, key, ".".join(parents[: depth + 1]), change)
    _assign(place, last, _value(text.strip()), change)


def _enter(place: Any, key: str, path: str, change: str) -> Any:
    index: Any = _position(place, key, change)
    if isinstance(place, dict):
        place.setdefault(index, {})
    if isinstance(place[index], str):  # a bare name becomes a table, so that a setting of it can be changed
        place[index] = {"name": place[index]}
    if not isinstance(place[index], (dict, list)):
        raise HansaError(f"The change '{change}' cannot be made: '{path}' is a single value.")
    return place[index]


def _assign(place: Any, key: str, value: Any, change: str) -> None:
    place[_position(place, key, change)] = value


def _position(place: Any, key: str, change: str) -> Any:
    if isinstance(place, dict):
        return key
    if not key.isdigit() or int(key) >= len(place):
        raise HansaError(
            f"The change '{change}' cannot be made: '{key}' should be a number from 0 to {len(place) - 1}."
        )
    return int(key)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def write_plan(plan: Plan) -> str:
    """Return the resolved plan as TOML: every setting, also those left at their defaults."""
    table = to_table(plan)
    require_sane(table, "a plan")
    return tomli_w.dumps(table, multiline_strings=True)
