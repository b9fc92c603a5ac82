"""The command line: every command under its name, in the order in which `hansa --help` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from hansa import __version__
from hansa.cli import after, before, running
from hansa.cli.deploying import deploy_app, site_app

COMMANDS: Mapping[str, Callable[..., Any]] = {
    "ls": before.list_pieces,
    "new": before.new_plan,
    "advise": before.advise_plans,
    "validate": before.validate,
    "run": running.run,
    "cost": before.predict_cost,
    "sweep": running.sweep_settings,
    "resume": running.resume,
    "forget": after.forget,
    "predict": after.predict,
    "save": after.save,
    "adapt": after.adapt_newcomer,
    "upload": after.recreate,
    "split": before.split,
    "report": running.report,
    "compare": running.compare,
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(site_app, name="site")
app.add_typer(deploy_app, name="deploy")


def _version(asked: bool) -> None:
    if asked:
        print(f"hansa {__version__}")
        raise typer.Exit


@app.callback()
def hansa(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Federated learning when clients differ."""
