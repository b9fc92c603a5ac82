"""HTML and SVG elements whose text and attributes are always escaped: a run folder may hold any string."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is already markup and goes into the page as it is."""

    __slots__ = ()


Child = str | Iterable[str] | None
COLOURS = 8  # that are told apart; more runs have the same in patterns
VOID = frozenset({"input", "meta", "link", "br"})


def render(child: Child) -> str:
    """Render markup as it is, text escaped, several one after the other, nothing for None."""
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(child)
    return "".join(render(part) for part in child)


def element(tag: str, *children: Child, **attributes: object) -> Markup:
    """Return an element: `element("text", "a < b", x=3, class_="tick")`; None and False leave an attribute out."""
    opening = tag + "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{''.join(render(child) for child in children)}</{tag}>")


def join(parts: Iterable[str]) -> Markup:
    """Join several elements into one."""
    return Markup("".join(render(part) for part in parts))


def hue(place: int) -> str:
    """Return the classes of a run's colour: eight, then the same dashed, then dotted; two dozen tell apart."""
    return f"c{place % COLOURS}{('', ' again', ' dotted')[min(place // COLOURS, 2)]}"


def number(value: float) -> str:
    """Write a coordinate, short: a tenth of a pixel is fine enough."""
    return f"{value:.1f}".removesuffix(".0")


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-").replace("viewbox", "viewBox")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text)}"'
