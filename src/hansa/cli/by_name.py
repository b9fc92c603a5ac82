"""Few clients and few classes by name: how each fares in a run or in several, who fares worst, and what is gained."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from hansa.cli.console import bare_table, plain, show
from hansa.results.by_class import ByClass, by_class
from hansa.results.by_client import few
from hansa.results.fares import Fares, fares, learnt_alone, namesakes
from hansa.results.reader import Run
from hansa.results.report.format import count_text, gain_text, metric_text, share_text, spread_text
from hansa.results.report.ranking import MOST_CARDS
from hansa.results.spread import group_labels, repetitions


def show_named(runs: Sequence[Run]) -> None:
    """Show few clients by name, in every phase of one run or in every run; of one run also few classes."""
    groups = repetitions(runs)
    found = fares(groups, group_labels(groups))
    names = few([one for told in found for one in told.each])
    for metric in dict.fromkeys(one.metric for one in found) if names else ():
        same = [one for one in found if one.metric == metric]
        print()
        if len(same) > MOST_CARDS:
            show(_by_run(names, same))
        else:
            show(_by_client(names, same))
            show(plain(_worst(same[-1:] if len(runs) == 1 else same)), wrap=False)
    if found and names and (told := namesakes(runs)):
        show(plain(told), wrap=False)
    if len(runs) == 1 and (classes := by_class(runs[0])) is not None:
        _show_classes(classes)


def _by_client(names: Sequence[str], shown: Sequence[Fares]) -> Table:
    """Return a row per client, and a column per run or phase; what it gains over clients alone has another."""
    gaining = [(one, alone) for one in shown if (alone := learnt_alone(one, shown)) is not None]
    table = bare_table()
    table.add_column(plain(f"{shown[0].metric.facts.title} by client"))
    gains = [f"gain of {one.label}\nover alone" for one, _ in gaining]
    for title in ("test samples", *(one.label for one in shown), *gains):
        table.add_column(plain(title), justify="right", no_wrap=True)
    for client in names:
        counts = [count for one in shown if (count := one.samples(client)) is not None]
        told = [_fare(one, client) for one in shown]
        gained = [gain_text(one.metric, one.gain(alone, client)) for one, alone in gaining]
        table.add_row(*map(plain, (client, count_text(counts[0]) if counts else "–", *told, *gained)))
    return table


def _by_run(names: Sequence[str], shown: Sequence[Fares]) -> Table:
    """Return a row per run, the best first by the mean over clients, with who fares worst in it."""
    table, higher = bare_table(), shown[0].metric.facts.higher
    table.add_column(plain(f"{shown[0].metric.facts.title} by client"))
    for name in names:
        table.add_column(plain(name), justify="right", no_wrap=True)
    table.add_column("worst off")
    for one in sorted(shown, key=lambda told: -told.mean if higher else told.mean):
        table.add_row(*map(plain, (one.label, *(_fare(one, client) for client in names), _joined(one.worst))))
    return table


def _fare(one: Fares, client: str) -> str:
    told = one.told(client)
    return "–" if told is None else spread_text(one.metric, told)


def _worst(shown: Sequence[Fares]) -> str:
    """Return who fares worst: with which value where one run is told of, else in which run."""
    if len(shown) > 1:
        told = [f"{_joined(one.worst)} in {one.label}" for one in shown if one.worst]
        return f"Worst off: {'; '.join(told)}." if told else "All clients fare alike."
    (one,) = shown
    value = f"{one.metric.facts.title} {metric_text(one.metric, one.end)}"
    return f"Worst off: {_joined(one.worst)}, with {value}." if one.worst else f"All clients have {value}."


def _show_classes(found: ByClass) -> None:
    """Show how many test samples of every class are recognised, what the others are taken for, and the worst class."""
    table = bare_table()
    table.add_column("class")
    for title in ("test samples", "recognised", "mostly taken for"):
        table.add_column(title, justify="left" if title.startswith("mostly") else "right", no_wrap=True)
    for name, told in found.each.items():
        texts = (str(told.count), share_text(told), found.mistaken.get(name, "–"))
        table.add_row(*map(plain, (name, *texts)))
    print()
    show(table)
    if found.worst:
        worst = share_text(found.each[found.worst[0]])
        whose = "its" if len(found.worst) == 1 else "their"
        least = f"Recognised least: {_joined(found.worst)}, with {worst} of {whose} test samples."
        show(plain(least), wrap=False)


def _joined(names: Sequence[str]) -> str:
    """Return names as one says them: a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
