"""The page: sections in the order a reader asks, put into one file with its style and script."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from importlib.resources import files

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
from hansa.results.report.cards import card, together
from hansa.results.report.markup import Child, Markup, element
from hansa.results.report.ranking import MOST_CARDS, ranking
from hansa.results.rows import phases, total

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
WIDE_RANGE = 5.0
NAMED = 3  # runs that a title names


def page(runs: Sequence[Run]) -> str:
    """Return the whole report of one or more runs."""
    names = labels(runs)
    title = names[0] if len(runs) == 1 else f"{len(runs)} runs compared"
    body = element(
        "main",
        _header(runs, title),
        _curves(runs, names),
        _comparison(runs),
        _named_clients(runs),
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
    found = together(runs)
    if len(found[0]) > MOST_CARDS:
        lead = "The best first, by the last evaluation or the round that validation chose. Press a title to sort by it."
        return element("header", brand, heading, element("p", lead, class_="lead"), ranking(*found))
    named = zip(*found, strict=True)
    cards = [card(group, name, colour, several=several) for group, name, colour in named]
    return element("header", brand, heading, element("div", *cards, class_="cards" if several else "cards one"))


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
    found = together(runs)
    if len(found[0]) < len(runs):
        lead += " Runs that differ in their seed alone share a row: mean ± standard deviation, and mean costs."
    return _section(title, lead, tables.comparison_table(*found), *_oracles(runs))


def _oracles(runs: Sequence[Run]) -> list[Markup]:
    """Say which phases know what nobody would tell them: what comes of these is for comparison."""
    whose: dict[str, list[str]] = {}
    for run, name in zip(runs, labels(runs), strict=True):
        for phase, told in run.oracles.items():
            whose.setdefault(told, []).append(f"{name}, {phase}" if len(runs) > 1 else phase)
    return [element("p", f"{'; '.join(names)}: {told}", class_="note") for told, names in whose.items()]


def _named_clients(runs: Sequence[Run]) -> Markup | None:
    found, labels, _ = together(runs)
    drawn = by_name.section(found, labels)
    lead = "Each client's model on the client's own test samples."
    return None if drawn is None else _section("Client by client", lead, drawn)


def _fold(title: Markup, *content: Child) -> Markup:
    """Return something long that is opened by its title."""
    return element("details", element("summary", title), *content, class_="fold")


def _changes(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    """Return every metric before and after; where runs are compared it is folded, since it is long."""
    drawn = changes.section([phases(run) for run in runs], names, facts_in(runs))
    lead = "Evaluated before a phase's first round and after its last; changes of shares are percentage points."
    title = "Before and after each phase"
    if drawn is None or len(runs) == 1:
        return _panels(title, lead, drawn)
    content = (element("p", lead, class_="lead"), element("div", drawn, class_="panels"))
    return element("section", _fold(element("h2", title), *content))


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
    """Return what is recognised of every class; tables of counts are many where runs are compared, and folded."""
    drawn, (found, labels, _) = counts.section(runs, names), together(runs)
    told = counts.recognised(found, labels)
    panels = element("div", drawn, class_="panels") if drawn else None
    if panels and len(runs) > 1:
        panels = _fold(element("h3", "What each run takes every class for"), panels)
    return _section("Class by class", None, told, panels) if drawn or told else None


def _costs(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    if not any(phases(run) for run in runs):
        return None
    drawn = element("div", tables.costs(runs, names), class_="panels")
    more = {
        "Messages": tables.exchanges(runs, names),
        "Per client: median, lowest and highest": tables.per_client(runs, names),
    }
    many = len(runs) > MOST_CARDS
    below = [
        _fold(element("h3", title), one) if many else (element("h3", title), one) for title, one in more.items() if one
    ]
    lead = "Shades are phases in their order, the strongest first. " if _phased(runs) else ""
    lead += f"Grey is the extraction of frozen features{_extractors(runs)}." if _extracted(runs) else ""
    return _section("Cost by phase", lead, drawn, *below)


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
    drawn = [
        ([names[index] for index in alike], distribution.section(runs[alike[0]].data))
        for alike in sorted(shared.values(), key=len, reverse=True)
    ]
    title = "How the data is divided"
    return [
        _section(title, _runs(whose) if len(shared) > 1 else None, one)
        if place == 0
        else element(
            "section", _fold(element("h2", f"{title} in {_few(whose)}"), element("p", _runs(whose), class_="lead"), one)
        )
        for place, (whose, one) in enumerate(drawn)
    ]


def _runs(names: Sequence[str]) -> str:
    return "Runs: " + "; ".join(names)


def _few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    left = len(names) - NAMED
    return "; ".join(names[:NAMED]) + (f"; and {left} more" if left > 0 else "")
