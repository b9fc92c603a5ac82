"""The commands before a run: what there is, a plan, whether it makes sense, what it will cost.

Imports of weight happen inside commands, so that `hansa --help` is quick.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hansa.cli.options import AsJson, Changes, PlanName, Seed, TrustOwnCode
from hansa.errors import HansaError, did_you_mean, require


def list_pieces(
    kind: Annotated[str | None, typer.Argument(help="Only this kind: plan, source, partition, model …")] = None,
    name: Annotated[str | None, typer.Argument(help="Only this one of the kind, with its settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the plans and pieces that a plan can name, or the settings of one of them."""
    from hansa.cli.catalogue import show_catalogue

    show_catalogue(kind, name, as_json)


def new_plan(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the plan.")],
    like: Annotated[
        str | None, typer.Option(help="The shipped plan to start from; see `hansa ls plan`.  [default: digits-fed3r]")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--from", metavar="DATA", help="Instead: look at this folder or file of data.")
    ] = None,
) -> None:
    """Write a plan of your own to start from: like a shipped one, or for data of your own."""
    from hansa.io.files import write_whole
    from hansa.io.names import bad_name
    from hansa.plan.files import named, shipped

    require(like is None or data is None, "A plan is like another one (--like) or from data (--from): say one.")
    if data is not None:
        from hansa.cli.advising import new_from

        new_from(path, data)
        return
    known, like = shipped(), like or "digits-fed3r"
    if like not in known:
        raise HansaError(f"There is no shipped plan '{like}'.{did_you_mean(like, known)}")
    require(not (why := bad_name(path.stem)), f"A plan is named after its file, and {why}.")
    if path.exists():
        raise HansaError(f"'{path}' is there already; choose another name.")
    if not path.resolve().parent.is_dir():
        raise HansaError(f"'{path}' cannot be written: there is no folder '{path.parent}'.")
    write_whole(path, named(known[like], path.stem).replace(f"hansa run {like}", f"hansa run {path}", 1))
    print(f"Wrote {path}. Next: hansa validate {path}")


def advise_plans(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A folder or file of data.")],
    out: Annotated[Path, typer.Option(help="The folder to write plans to.")] = Path("plans"),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was seen and advised as JSON.")] = False,
) -> None:
    """Look at data, say which plans to try first and why, and write them."""
    from hansa.cli.advising import advise

    advise(data, out, as_json)


def validate(
    plan: Annotated[str | None, typer.Argument(metavar="PLAN", help="A plan file, or a shipped plan's name.")] = None,
    changes: Changes = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of plans instead.")] = False,
    trust: TrustOwnCode = False,
) -> None:
    """Check a plan, and tell everything that is wrong with it at once."""
    from hansa.plan.checks import check_phases
    from hansa.plan.files import plan_schema, read_plan, write_plan

    if schema:
        print(json.dumps(plan_schema(), indent=1))
    elif plan is None:
        raise HansaError("Name a plan to check, or ask for its --schema.")
    else:
        read = read_plan(plan, changes or (), trust=trust)
        check_phases(read)
        print(write_plan(read), end="")


def predict_cost(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan, or a run folder to compare with its plan.")],
    changes: Changes = None,
    by_client: Annotated[bool, typer.Option("--clients", help="Also show every client.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
    trust: TrustOwnCode = False,
) -> None:
    """Predict what a plan will send, compute and need, by phase and client, from a rehearsal on a few samples."""
    from hansa.cli.costing import show_cost

    show_cost(plan, changes or [], by_client, as_json, trust)


def split(
    plan: PlanName,
    changes: Changes = None,
    seed: Seed = None,
    picture: Annotated[Path | None, typer.Option(help="Write the picture here.  [default: split.html]")] = None,
    as_json: AsJson = False,
    trust: TrustOwnCode = False,
) -> None:
    """Show how a plan's data is distributed over its clients, as a table and a picture."""
    from hansa.cli.splitting import show_split

    show_split(plan, changes or [], seed, picture or Path("split.html"), as_json, trust)
