"""Names of an evaluation's numbers: names in files taken apart, titles and order made from the metrics.

`client_validation_accuracy_worst10` is the accuracy on clients' validation sets, over the worst tenth of the clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hansa.metrics.facts import BEST, CATALOGUED, CHAIN, HEADLINES, WORST, Facts

if TYPE_CHECKING:
    from hansa.metrics.pieces import Metric
    from hansa.metrics.suite import Suite

PLACES = {
    "test_": "Test",
    "client_": "Client",
    "validation_": "Validation",
    "client_validation_": "Client validation",
}
DECILES = tuple(f"decile{place}" for place in range(1, 10))
PARTS = {
    "weighted": "weighted",
    "mean": "mean",
    "mean_visited": "mean of visited clients",
    "mean_unvisited": "mean of clients never visited",
    "std": "std",
    **{f"worst{share}": f"worst {share} %" for share in WORST},
    **{f"best{share}": f"best {share} %" for share in BEST},
    "pooled": "pooled",
    **{name: f"decile {place}" for place, name in enumerate(DECILES, start=1)},
}


HEADLINE_NAMES = frozenset(facts.name for facts in HEADLINES)
SHOWN = ("", "weighted", "pooled")  # of every metric
SHOWN_OF_HEADLINES = ("", "weighted", "mean", "mean_visited", "mean_unvisited", "std", "worst10")


# Forgetting along chains: on which samples, and when.
CHAIN_SAMPLES = {"": "", "train_": "training samples of "}
CHAIN_TIMES = {"own": "after their own turn", "end": "at the chain's end"}
CHAINS = tuple(
    Facts(
        f"{CHAIN}{samples}{metric.name}_{when}",
        f"{metric.title} on {what}a chain's earlier clients, {told}",
        metric.higher,
        metric.percent,
    )
    for metric in HEADLINES
    for samples, what in CHAIN_SAMPLES.items()
    for when, told in CHAIN_TIMES.items()
)
UNDEFINED = Facts("undefined", "outputs that are no numbers", higher=False)
# Numbers that no metric piece stands for: they compare two groups of classes, or count what has no metric.
OTHERS = (
    Facts("local_class_accuracy", "own classes", percent=True),
    Facts("outside_class_accuracy", "other classes", percent=True),
    *CHAINS,
    UNDEFINED,
)


def facts_of(metric: Metric) -> Facts:
    """Return a metric's facts about itself."""
    return Facts(metric.name, metric.title, metric.higher, metric.percent)


def recorded(suite: Suite) -> list[dict[str, Any]]:
    """Return a suite's facts as `summary.json` holds them."""
    return [asdict(facts_of(metric)) for metric in suite.metrics]


@dataclass(frozen=True)
class Column:
    """One number of an evaluation: which metric, on which test set, and which mean over clients."""

    name: str
    facts: Facts
    place: str = ""
    part: str = ""
    rank: int = 0

    @property
    def title(self) -> str:
        """A heading: 'Client accuracy, worst 10 %'."""
        words = f"{PLACES[self.place]} {self.facts.title}" if self.place else _capital(self.facts.title)
        return f"{words}, {PARTS[self.part]}" if self.part else words

    @property
    def short(self) -> str:
        """The same for a narrow column: of a headline, the clients' values need no metric beside them."""
        known = self.part and self.is_headline
        words = self.title.replace(f"Client {self.facts.title}", "Clients") if known else self.title
        return words.replace(" %", "\u00a0%")

    @property
    def is_headline(self) -> bool:
        """Whether its metric is one whose spread over clients is told in full."""
        return self.facts.name in HEADLINE_NAMES

    @property
    def compared(self) -> bool:
        """Whether tables that compare runs have it: the spread over clients is told of headlines alone."""
        return bool(self.place) and self.part in (SHOWN_OF_HEADLINES if self.is_headline else SHOWN)

    @cached_property
    def order(self) -> tuple[int, int, int, str]:
        """The sort key: metric, then test set, then mean."""
        parts, places = ["", *PARTS], ["", *PLACES]
        return self.rank, places.index(self.place), parts.index(self.part), self.name


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def column(name: str, known: Sequence[Facts] = ()) -> Column:
    """Take a name in a file apart; `known` are metrics beside those of the catalogue."""
    every = {facts.name: facts for facts in (*CATALOGUED, *known, *OTHERS)}
    ranks = {found: rank for rank, found in enumerate(every)}
    for place, part in _splits(name):
        middle = name.removeprefix(place).removesuffix(f"_{part}" if part else "")
        if middle in every and (bool(part) == place.startswith("client") or middle == UNDEFINED.name):
            return Column(name, every[middle], place, part, ranks[middle])
    facts = every.get(name, Facts(name, name.replace("_", " ")))
    return Column(name, facts, rank=ranks.get(name, len(every)))


def _splits(name: str) -> list[tuple[str, str]]:
    """Return the places and parts that a name may begin and end with, the longest first."""
    places = sorted((place for place in PLACES if name.startswith(place)), key=len, reverse=True)
    parts = sorted((part for part in PARTS if name.endswith(f"_{part}")), key=len, reverse=True)
    return [(place, part) for place in places for part in (*parts, "")]


def ordered(names: Iterable[str], known: Sequence[Facts] = ()) -> list[Column]:
    """Sort columns in the order of tables: by metric, then by test set, then by mean over clients."""
    return sorted((column(name, known) for name in set(names)), key=lambda one: one.order)


def facts_from(table: Iterable[Mapping[str, Any]]) -> tuple[Facts, ...]:
    """Return the facts that a run folder recorded."""
    return tuple(Facts(str(one["name"]), str(one["title"]), bool(one["higher"]), bool(one["percent"])) for one in table)
