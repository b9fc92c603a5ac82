"""Text of a user on a console: shown as it is, whatever is in it."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text in which nothing steers the console: what cannot be shown, but for new lines, becomes a mark."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text)
