"""The options and arguments that several commands have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

PlanName = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file, or the name of a shipped plan.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: phases.0.rounds=5.")
]
Seed = Annotated[int | None, typer.Option(help="The seed all randomness of the run comes from.")]
Out = Annotated[Path | None, typer.Option(help="The run folder to write.  [default: runs/NAME-TIME]")]
ModelOf = Annotated[str | None, typer.Option("--client", help="Whose model.  [default: the global one]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON; everything else goes to stderr.")]


def _look_here(trust: bool) -> bool:
    """Find trusted modules in the current folder too; without trust nothing in it is ever imported."""
    if trust:
        sys.path.insert(0, "")
    return trust


TrustOwnCode = Annotated[
    bool,
    typer.Option("--trust", callback=_look_here, help="Run the code that import paths name; read it first."),
]
