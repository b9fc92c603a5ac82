"""Damage to trees of plain values and to bytes, drawn from a seed."""

from __future__ import annotations

import copy
import random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, -(2**63), 10**30, 0.0, -0.5, 1e308, float("inf"), float("nan"),
    "", " ", "0", "1", "nan", "../../escape", "/", "\0", "[/b]", "a:b", "..a:b", ":b", "a:", "os:system", "é\u202e🙂",
    "x" * 5000, [], [[]], [1, "a", None], {}, {"name": "digits"}, {"name": 3}, {"": {}}, {"name": "fedavg"},
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a tree of tables and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def look(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(tree: Any, rng: random.Random) -> Any:
    """The tree with one to three things deleted, replaced, doubled, nested, renamed or exchanged."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        inside = [place for place in places(tree) if place]
        if not inside:
            return rng.choice(ODD)
        *parent, key = rng.choice(inside)
        _change(look(tree, tuple(parent)), key, look(tree, rng.choice(inside)), rng)
    return tree


def _change(holder: Any, key: Any, other: Any, rng: random.Random) -> None:
    kind = rng.choice(("delete", "replace", "replace", "replace", "other", "nest", "twice", "number", "text"))
    value = holder[key]
    if kind == "delete":
        del holder[key]
    elif kind == "replace":
        holder[key] = copy.deepcopy(rng.choice(ODD))
    elif kind == "other":
        holder[key] = copy.deepcopy(other)
    elif kind == "nest":
        holder[key] = rng.choice(([value], {"name": value}, {key: value}))
    elif kind == "twice" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif kind == "twice":
        holder[f"{key}{rng.choice('_sé')}"] = copy.deepcopy(value)
    elif kind == "number" and isinstance(value, (int, float)) and not isinstance(value, bool):
        holder[key] = rng.choice((-value, value + 1, value * 10**6, value / 3, str(value), bool(value), [value]))
    elif kind == "text" and isinstance(value, str):
        holder[key] = rng.choice((value.upper(), value[:-1], value + "é", value * 40, value[::-1], [value], 7))


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Bytes with some of them flipped, cut off, left out, put in, overwritten or doubled."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        first = rng.randrange(len(found) + 1)
        kind = rng.choice(("flip", "flip", "cut", "drop", "insert", "overwrite", "double", "number"))
        if kind == "flip" and first < len(found):
            found[first] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del found[first:]
        elif kind == "drop":
            del found[first : first + rng.randint(1, 16)]
        elif kind == "insert":
            found[first:first] = rng.randbytes(rng.randint(1, 16))
        elif kind == "overwrite":
            found[first : first + 8] = rng.choice((bytes(8), b"\xff" * 8, rng.randbytes(8), b"\0\0\0\0\0\0\0\x7f"))
        elif kind == "double":
            found[first:first] = found[first : first + rng.randint(1, 64)]
        elif kind == "number" and (digits := [place for place, byte in enumerate(found) if 48 <= byte < 58]):
            found[rng.choice(digits)] = rng.choice(b"0123456789-.e")
    return bytes(found)
