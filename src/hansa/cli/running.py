"""The commands that run plans, and those that show what came out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hansa.cli.options import AsJson, Changes, Out, PlanName, Seed, TrustOwnCode
from hansa.cli.text import printable
from hansa.errors import require


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
    from hansa.cli.live import live
    from hansa.plan.files import read_plan

    wanted = [] if engine is None else [f"engine={engine}"]
    read = read_plan(plan, [*wanted, *(changes or ())], trust=trust)
    read = read if seed is None else replace(read, seed=seed)
    path = out or api.new_folder(read)
    with live(read, path) as (watch, progress, tell):
        done = api.run(read, out=path, watchers=[watch], progress=progress, trust=trust, announce=tell)
    _finish(done, as_json)


def sweep_settings(
    plan: PlanName,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=a,b,c", help="A setting and the values to try, or a range: KEY=0.001..1."),
    ] = None,
    leave_out: Annotated[
        str | None, typer.Option(metavar="KIND", help="Instead: hold out every client or domain once, and test on it.")
    ] = None,
    changes: Changes = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from the plan's own on.")] = 1,
    halving: Annotated[
        bool, typer.Option("--halving", help="Few rounds for all first, more for the best third.")
    ] = False,
    draws: Annotated[
        int | None, typer.Option("--trials", min=1, help="Instead of all: let Optuna try so many, ranges too.")
    ] = None,
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
        require(
            not halving or draws is None, "A search (--trials) runs all that it tries in full: leave out --halving."
        )
        options: dict[str, Any] = {"seeds": seeds, "jobs": jobs, "as_json": as_json, "trust": trust}
        run_sweep(plan, changes or [], over or [], out, halving=halving, draws=draws, **options)
        return
    good = leave_out in ("client", "domain") and not halving and draws is None
    require(good, f"--leave-out takes 'client' or 'domain', and no --halving or --trials. Got '{leave_out}'.")
    by: Literal["client", "domain"] = "client" if leave_out == "client" else "domain"
    run_folds(plan, changes or [], by, out, seeds=seeds, jobs=jobs, as_json=as_json, trust=trust)


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
    with live(read_plan(done.path / "plan.toml", trust=trust), path) as (watch, progress, _):
        done = api.resume(path, accept=accept or (), watchers=[watch], progress=progress, trust=trust)
    _finish(done, as_json)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders.")],
    out: Annotated[Path | None, typer.Option(help="The page to write.  [default: report.html]")] = None,
) -> None:
    """Build one self-contained HTML page of one or several runs."""
    from hansa.results import report as reports

    default = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    print(f"Wrote {reports.build(runs, out or default)}")


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Run folders, or plans, which are run first.")],
    seed: Seed = None,
    out: Annotated[Path, typer.Option(help="Where the plans' run folders go.")] = Path("runs"),
    page: Annotated[Path | None, typer.Option("--report", help="Also write a report page.")] = None,
    as_json: AsJson = False,
    trust: TrustOwnCode = False,
) -> None:
    """Compare runs in one table: accuracy, rounds, bytes, FLOPs, seconds."""
    from hansa.cli.by_name import show_named
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
        show_named(opened)
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
    with live(plan, path) as (watch, progress, tell):
        done = api.run(plan, out=path, watchers=[watch], progress=progress, trust=trust, announce=tell)
    if done.status != "diverged":  # the table says so, beside the others
        _must_be_finished(done)
    return path


def _finish(run: Any, as_json: bool) -> None:
    from hansa.cli.by_name import show_named
    from hansa.cli.console import show_comparison

    for note in (*run.data.get("notes", ()), *run.oracles.values()):
        print(printable(f"Note: {note}"), file=sys.stderr)
    if as_json:
        print(json.dumps(run.summary, indent=1))
    else:
        show_comparison([run])
        show_named([run])
    _must_be_finished(run)


def _must_be_finished(run: Any) -> None:
    if run.status == "diverged":
        print(f"hansa: {run.summary['why']}", file=sys.stderr)
        raise SystemExit(1)
    if run.status != "finished":
        print(f"Interrupted; everything is kept. Continue with: hansa resume {run.path}", file=sys.stderr)
        raise SystemExit(130)
