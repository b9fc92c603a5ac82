"""`hansa ls`: the plans and pieces that a plan can name, and the settings of one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table

from hansa.cli.console import bare_table, plain, show
from hansa.cli.settings import Setting, first_line, settings_of
from hansa.errors import HansaError, did_you_mean
from hansa.io.registry import CATALOGUE, find
from hansa.plan.files import shipped

KINDS = ("plan", *CATALOGUE)


def show_catalogue(kind: str | None, name: str | None = None, as_json: bool = False) -> None:
    """Show plans and pieces with their one-line descriptions, or one of them with its settings."""
    if kind is not None and kind not in KINDS:
        raise HansaError(f"There is no kind '{kind}' to list.{did_you_mean(kind, KINDS)}")
    entries = {shown: dict(_plans() if shown == "plan" else _pieces(shown)) for shown in KINDS if kind in (None, shown)}
    if kind is not None and name is not None:
        _show_one(kind, name, entries[kind], as_json)
    elif as_json:
        print(json.dumps([_entry(*one) for one in _flat(entries)], indent=1, ensure_ascii=False))
    else:
        _show_all(entries)


def _show_all(entries: dict[str, dict[str, str]]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for kind, known in entries.items():
        table.add_row(plain(kind, "bold"), "", "")
        for name, text in known.items():
            table.add_row("", plain(name), plain(text))
    show(table)


def _show_one(kind: str, name: str, known: dict[str, str], as_json: bool) -> None:
    """Show a piece's settings, or a plan's text."""
    if name not in known:
        raise HansaError(f"There is no {kind} '{name}'.{did_you_mean(name, known)}")
    settings = [] if kind == "plan" else list(settings_of(find(kind, name)))
    if as_json:
        told = {"plan": shipped()[name]} if kind == "plan" else {"settings": [asdict(one) for one in settings]}
        print(json.dumps({**_entry(kind, name, known[name]), **told}, indent=1, ensure_ascii=False))
    elif kind == "plan":
        print(shipped()[name], end="")
    else:
        show(plain(f"{name}: {known[name]}"), wrap=False)
        _show_settings(settings)


def _show_settings(settings: list[Setting]) -> None:
    table = bare_table()
    for title in ("setting", "default", "meaning"):
        table.add_column(title)
    for one in settings:
        table.add_row(plain(one.name), plain(one.default), plain(one.text))
    show(table if settings else plain("It has no settings."))


def _entry(kind: str, name: str, text: str) -> dict[str, Any]:
    return {"kind": kind, "name": name, "text": text}


def _flat(entries: dict[str, dict[str, str]]) -> Iterator[tuple[str, str, str]]:
    return ((kind, name, text) for kind, known in entries.items() for name, text in known.items())


def _plans() -> Iterator[tuple[str, str]]:
    for name, text in shipped().items():
        lines = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
        yield name, lines[1] if len(lines) > 1 else ""


def _pieces(kind: str) -> Iterator[tuple[str, str]]:
    for name in CATALOGUE[kind]:
        yield name, first_line(find(kind, name))
