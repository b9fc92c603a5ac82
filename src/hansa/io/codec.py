"""Pieces as tables and back: the common part of plan files, messages to other processes and JSON schemas.

The fields of a dataclass are its settings, so reading needs no second description.  Everything wrong with a table is
collected and told at once.  What outside text names becomes code here, so here is asked whether that is trusted.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hansa.errors import HansaError, Problems, did_you_mean, require
from hansa.io.registry import CATALOGUE, Piece, find, name_of
from hansa.io.trust import NOBODY, ImportPath, Trust, imported

if typing.TYPE_CHECKING:
    from pydantic import TypeAdapter

Table = dict[str, Any]


# ------------------------------------------------------------------------------------------------------------ reading


class _Reading:
    """What the reader of a table trusts, and all that is wrong with the table so far."""

    def __init__(self, trust: Trust):
        self.trust = trust
        self.problems: list[str] = []

    def done(self, value: Any) -> Any:
        """Return what was read, or tell all that is wrong with it."""
        if self.problems:
            raise Problems(self.problems)
        return value


def from_table(cls: type[Any], table: object, where: str = "", trust: Trust = NOBODY) -> Any:
    """Read a dataclass from a table, or tell all that is wrong with it."""
    reading = _Reading(trust)
    return reading.done(_read_dataclass(cls, table, where, reading))


def piece_from_table(kind: str, table: object, where: str = "", trust: Trust = NOBODY) -> Any:
    """Read a piece from its table or bare name."""
    reading = _Reading(trust)
    return reading.done(_read_piece(kind, table, where or kind, reading))


def _read_dataclass(cls: type[Any], table: object, where: str, reading: _Reading, default: Any = None) -> Any:
    """Read a dataclass; settings that the table leaves out are those of the one that is there by default, if any."""
    if not isinstance(table, Mapping):
        reading.problems.append(f"'{where}' must be a table of settings. Got {table!r}.")
        return None
    hints, values, whole = field_types(cls), {}, True
    for key, raw in table.items():
        path, before = f"{where}.{key}" if where else key, len(reading.problems)
        if key not in hints:
            reading.problems.append(f"There is no setting '{path}'.{did_you_mean(key, hints)}")
            whole = False
            continue
        value = _read(hints[key], _named(cls, key, hints[key], raw), path, reading, getattr(cls, key, None))
        if len(reading.problems) == before or _stands_in(value):
            values[key] = value
        else:
            whole = False
    for field in dataclasses.fields(cls):
        if field.init and field.name not in table and _required(field) and type(default) is not cls:
            reading.problems.append(f"The setting '{where}.{field.name}' is missing.".replace("'.", "'"))
            whole = False
    make = functools.partial(dataclasses.replace, default) if type(default) is cls else cls
    return _construct(make, values, where, reading, whole)


def _stands_in(value: object) -> bool:
    """Tell whether there is something in the place of a setting that is wrong inside."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
    return all(one is not None for one in inner)


def _named(cls: type[Any], key: str, hint: Any, raw: object) -> object:
    """Name a table of settings: without a name it belongs to the piece that is there by default."""
    kind, default = piece_kind(hint), getattr(cls, key, None)
    if kind is None or not isinstance(raw, Mapping) or "name" in raw or not dataclasses.is_dataclass(default):
        return raw
    return {"name": name_of(kind, default), **raw}


def _construct(make: Callable[..., Any], values: Table, where: str, reading: _Reading, whole: bool) -> Any:
    """Make something of a table, and tell everything that is wrong with it; None where nothing can be made.

    A setting that is told to be wrong is left out, so that the others and the table around are checked too.  What
    comes of that never leaves the reading, which ends with the problems.  Of what was read in part, or left out, an
    error is told where it names a setting that is there and none that is not: others may follow from what is missing.
    """
    left, told = dict(values), whole
    while True:
        try:
            return make(**left)
        except HansaError as error:
            named = [key for key in left if f"'{key}'" in str(error)]
            if told or (named and not any(f"'{key}'" in str(error) for key in values if key not in left)):
                reading.problems.append(f"In '{where}': {error}" if where else str(error))
            if not named:
                return None
            del left[named[0]]
            told = False
        except (ValueError, TypeError):
            if told:  # a defect, and none of the table's
                raise
            return None


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _read(hint: Any, raw: object, where: str, reading: _Reading, default: object = None) -> Any:
    kind, hint = piece_kind(hint), _present(hint)
    if kind is not None and _is_tuple(hint):
        many = raw if isinstance(raw, list) else [raw]
        return tuple(_read_piece(kind, one, f"{where}.{i}", reading) for i, one in enumerate(many))
    if kind is not None and _is_mapping(hint):
        return _read_by_name(kind, raw, where, reading)
    if kind is not None:
        return _read_piece(kind, raw, where, reading)
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(typing.cast(type[Any], hint), raw, where, reading, default)
    if _is_tuple(hint) and dataclasses.is_dataclass(element := typing.get_args(hint)[0]):
        return _read_many(typing.cast(type[Any], element), raw, where, reading)
    value = _read_plain(hint, raw, where, reading)
    return _admitted(value, where, reading) if value is not None and names_code(hint) else value


def _read_many(cls: type[Any], raw: object, where: str, reading: _Reading) -> Any:
    if not isinstance(raw, list):
        reading.problems.append(f"'{where}' must be a list of tables. Got {raw!r}.")
        return None
    return tuple(_read_dataclass(cls, one, f"{where}.{i}", reading) for i, one in enumerate(raw))


def _read_by_name(kind: str, raw: object, where: str, reading: _Reading) -> Any:
    if not isinstance(raw, Mapping):
        reading.problems.append(f"'{where}' must be a table of pieces by name. Got {raw!r}.")
        return None
    return {name: _read_piece(kind, one, f"{where}.{name}", reading) for name, one in raw.items()}


NUMBERS = {"distribution": ("constant", "value")}  # the piece that a bare number stands for, and its setting


def _read_piece(kind: str, raw: object, where: str, reading: _Reading) -> Any:
    table = {"name": raw} if isinstance(raw, str) else raw
    if kind in NUMBERS and isinstance(raw, (int, float)) and not isinstance(raw, bool):
        name, key = NUMBERS[kind]
        table = {"name": name, key: raw}
    if not (isinstance(table, Mapping) and isinstance(table.get("name"), str)):
        reading.problems.append(
            f"'{where}' must be a name or a table with a 'name'. Known: {', '.join(CATALOGUE[kind])}."
        )
        return None
    try:
        cls = find(kind, table["name"], reading.trust)
    except HansaError as error:
        reading.problems.append(f"In '{where}': {error}")
        return None
    return _read_dataclass(cls, {key: value for key, value in table.items() if key != "name"}, where, reading)


def _admitted(value: Any, where: str, reading: _Reading) -> Any:
    """Return the import path, or paths, that a setting holds where they are trusted and lead somewhere; else None."""
    for path in value if isinstance(value, tuple) else (value,):
        try:
            imported(path, "factory", reading.trust)
        except HansaError as error:
            reading.problems.append(f"In '{where}': {error}")
            value = None  # nothing is made with it
    return value


def _read_plain(hint: Any, raw: object, where: str, reading: _Reading) -> Any:
    import pydantic  # reading plans needs it, and importing it takes longer than all the rest of this module

    if (odd := _beyond(raw)) is not None:
        reading.problems.append(f"'{where}' should be a finite number{_LIMITS}. Got {odd!r}.")
        return None
    try:
        # JSON in strict mode is what a plan means: 1 is a float, a list a tuple, but "1" and true are no numbers.
        return _adapter(hint).validate_json(json.dumps(raw, default=str), strict=True)
    except pydantic.ValidationError as error:
        reading.problems.append(f"'{where}' should be {_expected(hint, error)}. Got {raw!r}.")
        return None


def _expected(hint: Any, error: Any) -> str:
    """Return what a setting takes, in words; of one that takes several kinds, all of them."""
    says = [one["msg"].removeprefix("Input should be ").removeprefix("Value error, ") for one in error.errors()]
    several = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return " or ".join(dict.fromkeys(says)) if several else str(says[0])


LARGEST = 2**53  # of whole numbers; every one up to it is also a float, so nothing rounds it on its way
_LIMITS = ", and a whole one at most 2⁵³ on either side of 0"


def require_sane(table: Table, what: str) -> None:
    """Refuse a table with a number that could not be read back."""
    odd = _beyond(table)
    require(odd is None, f"Every number of {what} should be a finite number{_LIMITS}. Got {odd!r}.")


def _beyond(raw: object) -> float | None:
    """Return the first number in a value that is not finite or too large to be meant; None where all are sane."""
    if isinstance(raw, float) and not math.isfinite(raw):
        return raw
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) > LARGEST:
        return raw
    inner = raw.values() if isinstance(raw, Mapping) else raw if isinstance(raw, (list, tuple)) else ()
    return next((odd for one in inner if (odd := _beyond(one)) is not None), None)


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    import pydantic

    return pydantic.TypeAdapter(hint)


# ------------------------------------------------------------------------------------------------------------ writing


def to_table(value: Any) -> Table:
    """Return a dataclass's table: every setting, also those left at defaults; absent ones (None) are left out."""
    table = {}
    for name, hint in field_types(type(value)).items():
        item = getattr(value, name)
        if item is not None:
            table[name] = _write(piece_kind(hint), item)
    return table


def piece_to_table(kind: str, piece: object) -> Table:
    """Return the table of a piece, with its name."""
    return {"name": name_of(kind, piece), **to_table(piece)}


def _write(kind: str | None, value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_write(kind, one) for one in value]
    if isinstance(value, Mapping):
        return {key: _write(kind, one) for key, one in value.items() if one is not None}
    if kind is not None:
        return piece_to_table(kind, value)
    return to_table(value) if dataclasses.is_dataclass(value) else value


def import_paths(value: Any) -> Iterator[str]:
    """Yield every import path that a dataclass's table names."""
    for name, hint in field_types(type(value)).items():
        yield from _paths(hint, getattr(value, name))


def piece_import_paths(kind: str, piece: object) -> Iterator[str]:
    """Yield every import path that a piece's table names, beginning with its own where the catalogue lacks it."""
    name = name_of(kind, piece)
    if name not in CATALOGUE[kind]:
        yield name
    yield from import_paths(piece)


def _paths(hint: Any, value: Any) -> Iterator[str]:
    kind = piece_kind(hint)
    if isinstance(value, (tuple, list)) or (kind is not None and isinstance(value, Mapping)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _paths(hint, one)
    elif kind is not None and value is not None:
        yield from piece_import_paths(kind, value)
    elif dataclasses.is_dataclass(value):
        yield from import_paths(value)
    elif names_code(hint) and value is not None:
        yield value


# ------------------------------------------------------------------------------------------------------------- schema


def json_schema(cls: type[Any]) -> Table:
    """Return a JSON schema of a dataclass's tables, for editors."""
    required = [field.name for field in dataclasses.fields(cls) if field.init and _required(field)]
    properties = {name: _schema(hint) for name, hint in field_types(cls).items()}
    schema: Table = {"type": "object", "properties": properties, "additionalProperties": False}
    if cls.__doc__:
        schema["description"] = cls.__doc__.partition("\n")[0]
    return {**schema, "required": required} if required else schema


def _schema(hint: Any) -> Table:
    kind, hint = piece_kind(hint), _present(hint)
    if kind is not None:
        short = [{"type": "string"}, *([{"type": "number"}] if kind in NUMBERS else [])]
        one = {"anyOf": [*short, *(_piece_schema(kind, name) for name in CATALOGUE[kind])]}
        if _is_mapping(hint):
            return {"type": "object", "additionalProperties": one}
        return {"anyOf": [one, {"type": "array", "items": one}]} if _is_tuple(hint) else one
    if dataclasses.is_dataclass(hint):
        return json_schema(typing.cast(type[Any], hint))
    if _is_tuple(hint) and dataclasses.is_dataclass(element := typing.get_args(hint)[0]):
        return {"type": "array", "items": json_schema(typing.cast(type[Any], element))}
    return _adapter(hint).json_schema()


def _piece_schema(kind: str, name: str) -> Table:
    # A wrapper holds pieces of its own kind: one level down, the bare name must do, or the schema would never end.
    cls = find(kind, name)
    own = {
        key: {"type": ["string", "number", "object"]}
        if piece_kind(hint) in NUMBERS
        else {"type": ["string", "object"]}
        if piece_kind(hint)
        else _schema(hint)
        for key, hint in field_types(cls).items()
    }
    required = ["name", *(field.name for field in dataclasses.fields(cls) if field.init and _required(field))]
    properties = {"name": {"const": name}, **own}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


# -------------------------------------------------------------------------------------------------------------- types


def field_types(cls: type[Any]) -> Mapping[str, Any]:
    """Return the settings of a dataclass and their types, with annotations."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def piece_kind(hint: Any) -> str | None:
    """Return the kind of piece a field holds, if it holds one."""
    marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Piece)]
    return marks[0].kind if marks else None


def names_code(hint: Any) -> bool:
    """Tell whether a field holds an import path, or where it is optional or a tuple may hold some."""
    marked = any(isinstance(mark, ImportPath) for mark in getattr(hint, "__metadata__", ()))
    return marked or any(names_code(inner) for inner in typing.get_args(hint))


def _present(hint: Any) -> Any:
    """Return a settings table that may be absent, as the table it is when present."""
    inner = [one for one in typing.get_args(hint) if one is not type(None)]
    optional = isinstance(hint, types.UnionType) and len(inner) == 1 and dataclasses.is_dataclass(inner[0])
    return inner[0] if optional else hint


def _is_tuple(hint: Any) -> bool:
    inner = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    return typing.get_origin(inner) is tuple and not isinstance(inner, types.UnionType)


def _is_mapping(hint: Any) -> bool:
    inner = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    return typing.get_origin(inner) is Mapping
