"""The commands.  Imports of weight happen inside them, so that `hansa --help` is quick."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hansa import __version__
from hansa.cli.deploying import deploy_app, site_app
from hansa.cli.text import printable
from hansa.errors import HansaError, did_you_mean, require

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(site_app, name="site")
app.add_typer(deploy_app, name="deploy")

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


@app.command("ls")
def list_pieces(
    kind: Annotated[str | None, typer.Argument(help="Only this kind: plan, source, partition, model …")] = None,
    name: Annotated[str | None, typer.Argument(help="Only this one of the kind, with its settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the plans and pieces that a plan can name, or the settings of one of them."""
    from hansa.cli.catalogue import show_catalogue

    show_catalogue(kind, name, as_json)


@app.command("new")
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


@app.command("advise")
def advise_plans(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A folder or file of data.")],
    out: Annotated[Path, typer.Option(help="The folder to write plans to.")] = Path("plans"),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was seen and advised as JSON.")] = False,
) -> None:
    """Look at data, say which plans to try first and why, and write them."""
    from hansa.cli.advising import advise

    advise(data, out, as_json)


@app.command()
def validate(
    plan: Annotated[str | None, typer.Argument(metavar="PLAN", help="A plan file, or a shipped plan's name.")] = None,
    changes: Changes = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of plans instead.")] = False,
    trust: TrustOwnCode = False,
) -> None:
    """Check a plan, and tell everything that is wrong with it at once."""
    from hansa.plan.assemble import check_phases
    from hansa.plan.files import plan_schema, read_plan, write_plan

    if schema:
        print(json.dumps(plan_schema(), indent=1))
    elif plan is None:
        raise HansaError("Name a plan to check, or ask for its --schema.")
    else:
        read = read_plan(plan, changes or (), trust=trust)
        check_phases(read)
        print(write_plan(read), end="")


@app.command()
def run(
    plan: PlanName,
    changes: Changes = None,
    engine: Annotated[str | None, typer.Option(help="The engine to run it on, in place of the plan's.")] = None,
    seed: Seed = None,
    out: Out = None,
    as_json: AsJson = False,
    trust: TrustOwnCode = False,
) -> None:
    """Run a plan.  Ctrl-C keeps the run; `hansa resume` continues it."""
    from dataclasses import replace

    from hansa import api
    from hansa.cli.costing import announce
    from hansa.cli.live import live
    from hansa.plan.files import read_plan

    wanted = [] if engine is None else [f"engine={engine}"]
    read = read_plan(plan, [*wanted, *(changes or ())], trust=trust)
    read = read if seed is None else replace(read, seed=seed)
    path = out or api.new_folder(read)
    with live(read, path) as (watch, progress):
        done = api.run(read, out=path, watchers=[watch], progress=progress, trust=trust, announce=announce)
    _finish(done, as_json)


@app.command("cost")
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


@app.command("sweep")
def sweep_settings(
    plan: PlanName,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=a,b,c", help="A setting and the values to try; several make a grid."),
    ] = None,
    leave_out: Annotated[
        str | None, typer.Option(metavar="KIND", help="Instead: hold out every client or domain once, and test on it.")
    ] = None,
    changes: Changes = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from the plan's own on.")] = 1,
    halving: Annotated[
        bool, typer.Option("--halving", help="Few rounds for all first, more for the best third.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time.  [default: one per core]")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of all runs.  [default: runs/NAME-sweep]")] = None,
    as_json: AsJson = False,
    trust: TrustOwnCode = False,
) -> None:
    """Run a plan with several settings, choose by validation samples, and test the chosen ones once.

    The same command goes on with a sweep that was stopped.
    """
    from hansa.cli.leaving_out import run_folds
    from hansa.cli.sweeping import run_sweep

    require(
        bool(over) != bool(leave_out), "A sweep tries settings (--over) or holds out in turn (--leave-out): say one."
    )
    if leave_out is None:
        run_sweep(
            plan, changes or [], over or [], out, seeds=seeds, halving=halving, jobs=jobs, as_json=as_json, trust=trust
        )
        return
    good = leave_out in ("client", "domain") and not halving
    require(good, f"--leave-out takes 'client' or 'domain', and no --halving. Got '{leave_out}'.")
    by: Literal["client", "domain"] = "client" if leave_out == "client" else "domain"
    run_folds(plan, changes or [], by, out, seeds=seeds, jobs=jobs, as_json=as_json, trust=trust)


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    accept: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Go on although this has changed: plan, code or data.")
    ] = None,
    as_json: AsJson = False,
    trust: TrustOwnCode = False,
) -> None:
    """Continue a run that was interrupted or killed; the result is the same, bit for bit."""
    from hansa import api
    from hansa.cli.live import live
    from hansa.plan.files import read_plan
    from hansa.results.reader import Run

    done = Run.open(path)
    with live(read_plan(done.path / "plan.toml", trust=trust), path) as (watch, progress):
        done = api.resume(path, accept=accept or (), watchers=[watch], progress=progress, trust=trust)
    _finish(done, as_json)


@app.command()
def forget(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    client: Annotated[str, typer.Option(help="The client that leaves.")],
    upload: Annotated[Path | None, typer.Option(help="What the client sends again, where nothing was kept.")] = None,
    trust: TrustOwnCode = False,
) -> None:
    """Take a client out of a closed-form classifier, with no training and no contact with the others.

    The record says whether that is exact, and what the client still touches.
    """
    from hansa.deploy.forget import forget as forget_client

    record = forget_client(path, client, upload, trust=trust)
    print(json.dumps(record, indent=1))
    learnt = [f"{one['where']} ({one['what']})" for one in record["remains"] if one["learnt"]]
    exact = f"Exact: nothing that the model depends on remains of '{client}'."
    print(f"Not exact, because this remains: {'; '.join(learnt)}." if learnt else exact, file=sys.stderr)
    if record["not_evaluated"]:
        print(record["not_evaluated"], file=sys.stderr)


@app.command()
def predict(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a file that `hansa save` wrote.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Samples: .npz, .npy, .safetensors, a table, images.")],
    client: ModelOf = None,
    out: Annotated[Path | None, typer.Option(help="Write the predictions here, as a CSV table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON.")] = False,
    trust: TrustOwnCode = False,
) -> None:
    """Predict with the model that a client deploys after a run, or with the global one."""
    from hansa.cli.predicting import show_predictions

    show_predictions(path, client, file, out, as_json, trust)


@app.command()
def save(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: NAME.safetensors.")],
    client: ModelOf = None,
    trust: TrustOwnCode = False,
) -> None:
    """Save a model as one file that predicts where neither the run nor its data are."""
    from hansa.cli.predicting import save_model

    save_model(path, client, out, trust)


@app.command("adapt")
def adapt_newcomer(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    data: Annotated[Path, typer.Option(help="The new client's samples, with labels, in a file as `predict` reads it.")],
    client: Annotated[str, typer.Option(help="The name of the client that joins.")],
    rounds: Annotated[
        int, typer.Option(help="Local rounds in every phase in which clients learn parts of their own.")
    ] = 10,
    out: Annotated[Path | None, typer.Option(help="The file to write.  [default: CLIENT.safetensors]")] = None,
    trust: TrustOwnCode = False,
) -> None:
    """Learn the own part of a client that was not in the run, with local work only, and save its model."""
    from hansa.cli.predicting import adapt_model
    from hansa.io.names import bad_name

    if out is None and (why := bad_name(client)):
        raise HansaError(f"A client's name begins that of its file, and {why}, or give a file with --out.")
    adapt_model(path, data, client, rounds, out or Path(f"{client}.safetensors"), trust)


@app.command("upload")
def recreate(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    client: Annotated[str, typer.Option(help="The client.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    trust: TrustOwnCode = False,
) -> None:
    """Compute what a client sent in a run's last phase from its data again, to be forgotten by it."""
    from hansa.deploy.forget import recreate_upload

    print(f"Wrote {recreate_upload(path, client, out, trust=trust)}")


@app.command()
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


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders.")],
    out: Annotated[Path | None, typer.Option(help="The page to write.  [default: report.html]")] = None,
) -> None:
    """Build one self-contained HTML page of one or several runs."""
    from hansa.results import report as reports

    default = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    print(f"Wrote {reports.build(runs, out or default)}")


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Run folders, or plans, which are run first.")],
    seed: Seed = None,
    out: Annotated[Path, typer.Option(help="Where the plans' run folders go.")] = Path("runs"),
    page: Annotated[Path | None, typer.Option("--report", help="Also write a report page.")] = None,
    as_json: AsJson = False,
    trust: TrustOwnCode = False,
) -> None:
    """Compare runs in one table: accuracy, rounds, bytes, FLOPs, seconds."""
    from hansa.cli.console import show_comparison
    from hansa.results import report as reports
    from hansa.results.reader import Run
    from hansa.results.rows import comparison

    folders = [_run_or_plan(name, seed, out, trust) for name in runs]
    opened = [Run.open(folder) for folder in folders]
    if as_json:
        print(json.dumps([asdict(row) for row in comparison(opened)], indent=1))
    else:
        show_comparison(opened)
    if page is not None:
        print(f"Wrote {reports.build(folders, page)}", file=sys.stderr)
    for one in opened:
        if one.status == "diverged":
            _must_be_finished(one)


def _run_or_plan(name: str, seed: int | None, out: Path, trust: bool) -> Path:
    """Return a run folder as it is; run a plan first, in a folder of its own under `out`."""
    if Path(name).is_dir():
        return Path(name)
    from hansa import api  # only now: a comparison of folders alone is quick
    from hansa.cli.live import live
    from hansa.plan.files import read_plan

    plan = read_plan(name, [] if seed is None else [f"seed={seed}"], trust=trust)
    path = out / api.new_folder(plan).name
    with live(plan, path) as (watch, progress):
        done = api.run(plan, out=path, watchers=[watch], progress=progress, trust=trust)
    if done.status != "diverged":  # the table says so, beside the others
        _must_be_finished(done)
    return path


def _finish(run: Any, as_json: bool) -> None:
    from hansa.cli.console import show_summary

    for note in run.data.get("notes", ()):
        print(printable(f"Note: {note}"), file=sys.stderr)
    if as_json:
        print(json.dumps(run.summary, indent=1))
    else:
        show_summary(run)
    _must_be_finished(run)


def _must_be_finished(run: Any) -> None:
    if run.status == "diverged":
        print(f"hansa: {run.summary['why']}", file=sys.stderr)
        raise SystemExit(1)
    if run.status != "finished":
        print(f"Interrupted; everything is kept. Continue with: hansa resume {run.path}", file=sys.stderr)
        raise SystemExit(130)
