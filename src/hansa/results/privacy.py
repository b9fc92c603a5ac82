"""The privacy of a run in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def privacy_text(told: Mapping[str, Any] | None) -> str:
    """Return what a run promises of its clients; empty where it claims no privacy."""
    if told is None:
        return ""
    if told["unprotected"]:
        return f"Privacy: none, as these phases are unprotected: {', '.join(told['unprotected'])}"
    worth = f"ε = {told['epsilon']:.3g} at δ = {told['delta']:.0e} for every {told['unit']}, {told['trust']} trust"
    outside = f"; not covered: {'; '.join(told['outside'])}" if told["outside"] else ""
    if told["noise"] == "simulated":
        return f"Privacy: simulated noise, not private; would be {worth}{outside}"
    return f"Privacy: {worth}{outside}"
