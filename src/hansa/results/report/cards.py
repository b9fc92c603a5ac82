"""A card for each of few runs: what it deploys, what it took, and what it was."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hansa.results.privacy import privacy_text
from hansa.results.reader import Run
from hansa.results.report import tables
from hansa.results.report.format import bytes_text, count_text, flops_text, seconds_text, spread_text
from hansa.results.report.markup import Markup, element
from hansa.results.rows import Headline, Row, averaged, phases, spread_of, total
from hansa.results.spread import group_labels, repetitions


def together(runs: Sequence[Run]) -> tuple[list[list[Run]], list[str], list[int]]:
    """Return the runs with several seeds of one plan together, their names, and the colour of each one's first run."""
    found = repetitions(runs)
    place = {id(run): number for number, run in enumerate(runs)}
    return found, group_labels(found), [place[id(group[0])] for group in found]


def card(group: Sequence[Run], name: str, colour: int, *, several: bool) -> Markup:
    """Show what a run deploys and what it took, never its best test.  A run alone is named by the page's title."""
    run, wholes = group[0], [total(told) for one in group if (told := phases(one))]
    rows = phases(run)
    found = rows[-1].headline if rows else None
    diverged = bool(rows and rows[-1].metrics and not found)
    about = "The model's outputs are no numbers" if diverged else "No round was evaluated yet"
    about = _about(found, rows[-1].exploded) if found else about
    about += f"; mean ± standard deviation of {len(group)} seeds" if len(group) > 1 else ""
    about += _since(rows[-1]) if rows else ""
    spread = spread_of(wholes, found.column.name) if found else None
    shown = element("p", spread_text(found.column, spread) if found and spread else "–", class_="value")
    return element(
        "article",
        element("h3", tables.swatch(colour), name, _badge(run)) if several else _badge(run),
        element("div", shown, element("p", about, class_="about")),
        element("div", _spent(averaged(wholes)) if rows else None, element("p", _facts(group, rows), class_="fact")),
        class_=f"card c{colour % 8}",
    )


def _about(found: Headline, exploded: bool) -> str:
    """Tell which metric it is, of which round, and how that round was chosen."""
    when = "at the round that validation chose" if found.deployed else "at the last evaluation"
    lower = "" if found.column.facts.higher else "; lower is better"
    title = found.column.title
    title += "," if "," in title else ""
    return f"{title} {when}, round {found.round}{lower}{'; the loss exploded' if exploded else ''}"


def _since(row: Row) -> str:
    """Tell that clients were forgotten after the rounds that the curves show."""
    many = len(row.forgotten)
    who = f"{many} client{'s were' if many > 1 else ' was'} forgotten"
    known = "evaluated again" if row.metrics else "not evaluated again"
    return f"; after it {who} and the model was {known}, while curves show the rounds as they were" if many else ""


def _badge(run: Run) -> Markup | None:
    return None if run.status == "finished" else element("span", run.status, class_="badge")


def _spent(whole: Row) -> Markup:
    pairs = (
        ("Rounds", count_text(whole.rounds)),
        ("Bytes", bytes_text(whole.bytes)),
        ("FLOPs", flops_text(whole.flops)),
        ("Time", seconds_text(whole.seconds)),
    )
    return element(
        "dl", *(element("div", element("dt", name), element("dd", text)) for name, text in pairs), class_="spent"
    )


def _facts(group: Sequence[Run], rows: Sequence[Row]) -> str:
    run = group[0]
    many = len(rows) > 1
    told = " → ".join(f"{place} {row.phase}" if many else row.phase for place, row in enumerate(rows, start=1))
    private = privacy_text(run.summary.get("privacy"))
    seeds = f"seed{'s' if len(group) > 1 else ''} {', '.join(str(one.seed) for one in group)}"
    return " · ".join(part for part in (told, seeds, _started(run), private) if part)


def _started(run: Run) -> str:
    told = str(run.environment.get("started", ""))
    try:
        moment = datetime.fromisoformat(told)
    except ValueError:
        return told
    return f"{moment.day}\u00a0{moment:%B\u00a0%Y}, {moment:%H:%M}"
