"""The page: sections in the order a reader asks, put into one file with its style and script."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files

from hansa.results.privacy import privacy_text
from hansa.results.reader import Record, Run, facts_in, labels
from hansa.results.report import (
    attacks,
    by_name,
    classes,
    clients,
    counts,
    curves,
    distribution,
    exhibits,
    forgetting,
    groups,
    plans,
    tables,
    timeline,
)
from hansa.results.report import phases as changes
from hansa.results.report.format import bytes_text, count_text, flops_text, seconds_text, spread_text
from hansa.results.report.markup import Child, Markup, element
from hansa.results.report.ranking import MOST_CARDS, ranking
from hansa.results.rows import Headline, Row, averaged, phases, spread_of, total
from hansa.results.spread import group_labels, repetitions

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
WIDE_RANGE = 5.0


def page(runs: Sequence[Run]) -> str:
    """Return the whole report of one or more runs."""
    names = labels(runs)
    title = names[0] if len(runs) == 1 else f"{len(runs)} runs compared"
    body = element(
        "main",
        _header(runs, title),
        _curves(runs, names),
        _comparison(runs),
        _named_clients(runs, names),
        _counts(runs, names),
        _changes(runs, names),
        _classes(runs, names),
        _costs(runs, names),
        _clients(runs, names),
        _exhibits(runs, names),
        _superclients(runs, names),
        _forgetting(runs, names),
        _attacks(runs, names),
        *_data(runs, names),
        _section("Plan and environment", "What to repeat to get these numbers again.", plans.blocks(runs, names)),
    )
    return document(title, body)


def split_page(title: str, data: Record) -> str:
    """Return the page on how a split divides the data, before anything is trained on it."""
    brand = element("header", element("p", "Hansa split", class_="brand"), element("h1", title))
    return document(
        title, element("main", brand, _section("How the data is divided", None, distribution.section(data)))
    )


def document(title: str, body: Markup) -> str:
    """Return a complete file: style and script inside, and a policy that forbids everything from elsewhere."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{title} · Hansa report"),
        element("style", _asset("page.css")),
    )
    tip = element("div", id="tip", role="status", hidden=True)
    script = element("script", _asset("page.js"))
    return "<!doctype html>\n" + element("html", head, element("body", body, tip, script), lang="en") + "\n"


def _asset(name: str) -> Markup:
    return Markup(files("hansa.results.report").joinpath(name).read_text(encoding="utf-8"))


def _section(title: str, lead: Child, *content: Child, **attributes: object) -> Markup:
    about = element("p", lead, class_="lead") if lead else None
    return element("section", element("h2", title), about, *content, **attributes)


def _header(runs: Sequence[Run], title: str) -> Markup:
    several = len(runs) > 1
    brand, heading = element("p", "Hansa report", class_="brand"), element("h1", title)
    together = _together(runs)
    if len(together[0]) > MOST_CARDS:
        lead = "The best first, by the last evaluation or the round that validation chose. Press a title to sort by it."
        return element("header", brand, heading, element("p", lead, class_="lead"), ranking(*together))
    named = zip(*together, strict=True)
    cards = [_card(group, name, colour, several=several) for group, name, colour in named]
    return element("header", brand, heading, element("div", *cards, class_="cards" if several else "cards one"))


def _together(runs: Sequence[Run]) -> tuple[list[list[Run]], list[str], list[int]]:
    """Return the runs with several seeds of one plan together, their names, and the colour of each one's first run."""
    found = repetitions(runs)
    place = {id(run): number for number, run in enumerate(runs)}
    return found, group_labels(found), [place[id(group[0])] for group in found]


def _card(group: Sequence[Run], name: str, colour: int, *, several: bool) -> Markup:
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
    return f"{found.column.title} {when}, round {found.round}{lower}{'; the loss exploded' if exploded else ''}"


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


def _curves(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    metrics = curves.metrics_to_draw(runs)
    if not metrics:
        return _section("Metrics and what they cost", "No round was evaluated yet.")
    groups = [
        element("div", curves.panels(runs, names, metric), class_="panels", data_metric=metric.name, hidden=place > 0)
        for place, metric in enumerate(metrics)
    ]
    several = len(runs) > 1
    lead = "Every evaluation against what had been spent by then. "
    lead += "A dotted line carries a run's last value on. " if several else ""
    lead += "A diamond marks where a phase begins. " if several and _phased(runs) else ""
    controls = element(
        "div", _switch("metric", [(m.name, m.title) for m in metrics]), _axis_switch(), class_="controls"
    )
    scale = "log" if _wide(runs) else "linear"
    named = dict.fromkeys(metric.facts.title for metric in metrics if metric.is_headline) or [metrics[0].facts.title]
    what = " and ".join(named)
    return _section(
        f"{what[:1].upper()}{what[1:]} and what it costs",
        lead + ("Extracting frozen features is not counted here; see the cost by phase." if _extracted(runs) else ""),
        controls,
        _legend(names) if several else None,
        *groups,
        id="curves",
        data_scale=scale,
    )


def _wide(runs: Sequence[Run]) -> bool:
    """Tell whether costs differ so much between runs or phases that an even axis would squeeze some into a corner."""
    ends = []
    for run in runs:
        rows = phases(run)
        ends += [total(rows[: place + 1]).bytes for place in range(len(rows))]
    positive = [end for end in ends if end > 0]
    return bool(positive) and max(positive) / min(positive) >= WIDE_RANGE


def _phased(runs: Sequence[Run]) -> bool:
    return any(len(phases(run)) > 1 for run in runs)


def _extracted(runs: Sequence[Run]) -> bool:
    return any(run.summary.get("features") for run in runs)


def _extractors(runs: Sequence[Run]) -> str:
    """Tell which columns of the features came from which extractor, where runs recorded it."""
    spans = dict.fromkeys(tuple(map(tuple, run.data.get("task", {}).get("spans", ()))) for run in runs)
    told = [_columns(one) for one in spans if one]
    return f": {'; or '.join(told)}" if told else ""


def _columns(spans: Sequence[tuple[str, int]]) -> str:
    ends = itertools.accumulate(width for _, width in spans)
    places = (f"{name} in columns {end - width + 1} to {end}" for (name, width), end in zip(spans, ends, strict=True))
    return ", ".join(places)


def _switch(name: str, options: Sequence[tuple[str, str]]) -> Markup | None:
    if len(options) < 2:
        return None
    buttons = [
        element(
            "label", element("input", type="radio", name=name, value=value, checked=place == 0), element("span", text)
        )
        for place, (value, text) in enumerate(options)
    ]
    return element("fieldset", element("legend", name.capitalize()), *buttons, class_="switch")


def _axis_switch() -> Markup:
    box = element("input", type="checkbox", id="scale")
    return element("label", box, element("span", "Logarithmic costs"), class_="tickbox")


def _legend(names: Sequence[str]) -> Markup:
    entries = [
        element("button", tables.swatch(colour), name, type="button", data_run=colour, aria_pressed="false")
        for colour, name in enumerate(names)
    ]
    return element("div", *entries, class_="legend", role="group", aria_label="Runs; press one to bring it forward")


def _comparison(runs: Sequence[Run]) -> Markup:
    lead = "Metrics are those of each phase's last evaluation, never the best on the test set."
    if any(row.deployed is not None for run in runs for row in phases(run)):
        lead = "Metrics are those of the round that validation chose, else of the last; never the best on the test set."
    title = "Comparison" if len(runs) > 1 else "Result by phase"
    together = _together(runs)
    if len(together[0]) < len(runs):
        lead += " Runs that differ in their seed alone share a row: mean ± standard deviation, and mean costs."
    return _section(title, lead, tables.comparison_table(*together))


def _named_clients(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    drawn = by_name.section(runs, names)
    lead = "Each client's model on the client's own test samples."
    return None if drawn is None else _section("Client by client", lead, drawn)


def _changes(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    """Return every metric before and after; where runs are compared it is folded, since it is long."""
    drawn = changes.section([phases(run) for run in runs], names, facts_in(runs))
    lead = "Evaluated before a phase's first round and after its last; changes of shares are percentage points."
    title = "Before and after each phase"
    if drawn is None or len(runs) == 1:
        return _panels(title, lead, drawn)
    content = (element("p", lead, class_="lead"), element("div", drawn, class_="panels"))
    return element("section", element("details", element("summary", element("h2", title)), *content, class_="fold"))


def _panels(title: str, lead: str | None, drawn: Markup | None) -> Markup | None:
    """Return a section of charts side by side; none where there is nothing to draw."""
    return None if drawn is None else _section(title, lead, element("div", drawn, class_="panels"))


def _classes(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    lead = (
        "Every client's model on everyone's test samples: the mean accuracy over the classes the client trains on, "
        "and over those it has never seen."
    )
    return _panels("Classes outside the client", lead, classes.section(runs, names))


def _counts(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    drawn = counts.section(runs, names)
    told = counts.recognised(runs, names)
    panels = element("div", drawn, class_="panels") if drawn else None
    return _section("Class by class", None, told, panels) if drawn or told else None


def _costs(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    if not any(phases(run) for run in runs):
        return None
    drawn = element("div", tables.costs(runs, names), class_="panels")
    each = tables.per_client(runs, names)
    note = element("h3", "Per client: median, lowest and highest") if each else None
    sent = tables.exchanges(runs, names)
    messages = element("h3", "Messages") if sent else None
    lead = "Shades are phases in their order, the strongest first. " if _phased(runs) else ""
    lead += f"Grey is the extraction of frozen features{_extractors(runs)}." if _extracted(runs) else ""
    return _section("Cost by phase", lead, drawn, messages, sent, note, each)


def _clients(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    found = clients.groups(runs, names)
    if not found:
        return None
    lead = (
        "Each client's model on the client's own test set. "
        "The strong part of the bars is the worst tenth of the clients, the dashed line the median."
    )
    return _section(
        "How the clients fare", lead, element("div", clients.section(found, len(runs) > 1), class_="panels")
    )


def _exhibits(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    lead = "Tables that the algorithm of a phase adds to the metrics; of pictures the first evaluation and the last."
    return _panels("What the algorithms show", lead, exhibits.section(runs, names))


def _superclients(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    mixes, times = groups.section(runs, names), timeline.section(runs, names)
    if times is None:
        return None
    lead = "Clients that train one after the other: what they hold together, and when they are visited."
    drawn = element("div", mixes, class_="panels") if mixes else None
    return _section("Superclients and chains", lead, drawn, element("div", times, class_="below"))


def _forgetting(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    lead = (
        "One chain of every evaluated round, client by client: how good its model is on the clients before the last, "
        "right after each has trained it and when all have."
    )
    return _panels("Forgetting along chains", lead, forgetting.section(runs, names))


def _attacks(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    drawn = attacks.section(runs, names)
    lead = "Simulated clients that worked against the others, as the plan asked."
    return None if drawn is None else _section("Attacks", lead, drawn)


def _data(runs: Sequence[Run], names: Sequence[str]) -> list[Markup]:
    """Show a section per different split; runs on the same split share one."""
    shared: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        found = run.data.get("counts", run.data.get("means"))
        if found is not None:
            shared.setdefault(json.dumps([found, run.data.get("class_names")]), []).append(index)
    one = len(shared) == 1
    return [
        _section(
            "How the data is divided",
            None if one else "Runs: " + ", ".join(names[index] for index in alike),
            distribution.section(runs[alike[0]].data),
        )
        for alike in shared.values()
    ]
