"""How many samples of every class a run recognises, by the class's name: the other first question beside the client."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hansa.results.reader import Run
from hansa.results.spread import Spread, share

CONFUSIONS = ("test_confusion", "client_confusion")  # of the global test set where there is one, else of all clients'
FEW = 30  # classes that a table has room for


@dataclass(frozen=True)
class ByClass:
    """The share of every class's test samples that is recognised, and what the others are mostly taken for."""

    phase: str
    each: Mapping[str, Spread]  # with its standard error; a class without test samples is not there
    mistaken: Mapping[str, str]

    @property
    def worst(self) -> list[str]:
        """The classes that are recognised least; none where all are alike."""
        means = [told.mean for told in self.each.values()]
        return [name for name, told in self.each.items() if told.mean == min(means) < max(means)]

    @property
    def mean(self) -> float:
        """The share that is recognised, every class counted once."""
        return statistics.fmean(told.mean for told in self.each.values())


def over_seeds(found: Sequence[ByClass]) -> ByClass:
    """Return several seeds as one: the mean of every class's share and its standard deviation."""
    if len(found) == 1:
        return found[0]
    names = dict.fromkeys(name for one in found for name in one.each)
    each = {name: Spread.of([one.each[name].mean for one in found if name in one.each]) for name in names}
    return ByClass(found[0].phase, each, {})


def by_class(run: Run) -> ByClass | None:
    """Return what the last phase makes of every class; None where the plan asked for no confusion, or has many."""
    phases, names = run.tables.get("phases", []), [str(name) for name in run.data.get("class_names", ())]
    counts = next((phases[-1]["tables"][one] for one in CONFUSIONS if phases and one in phases[-1]["tables"]), None)
    if counts is None or not 0 < len(names) == len(counts) <= FEW:
        return None
    each, mistaken = dict[str, Spread](), dict[str, str]()
    for place, (name, told) in enumerate(zip(names, counts, strict=True)):
        row = [count or 0.0 for count in told]
        samples, others = round(sum(row)), [0.0 if other == place else count for other, count in enumerate(row)]
        if samples:
            each[name] = share(row[place] / samples, samples)
        if any(others):
            mistaken[name] = names[others.index(max(others))]
    return ByClass(str(phases[-1]["phase_name"]), each, mistaken) if each else None
