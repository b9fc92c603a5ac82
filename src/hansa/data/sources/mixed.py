"""Several sources side by side, whose inputs need not be alike: tables of some, pictures of any size of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from hansa.data.dataset import Array, Dataset, Glanced, Samples, Source
from hansa.data.targets import Classes, Target
from hansa.errors import HansaError, require
from hansa.io.registry import Piece
from hansa.task import ClientInputs


@dataclass(frozen=True)
class Mixed:
    """Several sources with inputs of their own, by name: each is a domain, and a client unless it names its own.

    A client CLIENT of a source SOURCE is called `SOURCE/CLIENT`.  Classes are those of all sources, by their names.
    """

    sources: Annotated[Mapping[str, Source], Piece("source")] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        few = len(self.sources)
        require(
            few > 1, f"The 'sources' of Mixed are two or more, each with a name. Got {few}: name the source itself."
        )

    def source_of(self, client: str) -> Source:
        """Return the source of a client's samples, which its name begins with."""
        own = [name for name in self.sources if client == name or client.startswith((f"{name}/", f"{name}-"))]
        says = f"Client '{client}' is of none of the sources {', '.join(self.sources)}"
        require(bool(own), f"{says}: call it after one, such as '{next(iter(self.sources))}/{client}'.")
        return self.sources[max(own, key=len)]

    def glances(self) -> Iterator[tuple[str, ClientInputs]]:
        """Yield what samples of the sources are like, of those that tell before they are loaded."""
        for name, source in self.sources.items():
            with suppress(HansaError):  # of a file that is missing or damaged, loading tells
                found = source.glance(name) if isinstance(source, Glanced) else None
                if found is not None:
                    yield name, found

    def load(self) -> Dataset:
        """Load every source, and number their samples one after the other."""
        return mixed({name: source.load() for name, source in self.sources.items()})


def mixed(found: Mapping[str, Dataset]) -> Dataset:
    """Return data sets as the parts of one, whose inputs are the numbers of samples."""
    for name, data in found.items():
        require(not (why := _unfit(data)), f"The source '{name}' cannot be one of several: {why}.")
    target = _common_target({name: data.target for name, data in found.items()})
    parts = [_under(data, target) for data in found.values()]
    tested = [_tests(name, data) for name, data in found.items()]
    untold = [name for name, told in zip(found, tested, strict=True) if told is None]
    whole = [told for told in tested if told is not None] if not untold else []
    if not whole:
        parts = [replace(part, test=None, client_test=None) for part in parts]
    return Dataset(
        train=_numbered([part.train for part in parts]),
        target=target,
        test=_numbered([part.test for part in parts if part.test is not None]) if whole else None,
        client=np.concatenate([_clients(name, data.client, len(data.train)) for name, data in found.items()]),
        client_test=np.concatenate(whole) if whole else None,
        domain=np.concatenate([np.full(len(data.train), name) for name, data in found.items()]),
        notes=tuple(f"{name}: {note}" for name, data in found.items() for note in data.notes) + _lost(found, untold),
        parts=tuple(parts),
    )


def _unfit(data: Dataset) -> str:
    if data.apart:
        return "it has clients with inputs of their own already; name each of its files as a source"
    if data.train.x.dtype == np.int64:
        return "its inputs are tokens, which no network reads beside tables and pictures"
    return "its 'scale' is fitted to all pictures together; leave 'scale' out" if data.standardise else ""


def _common_target(targets: Mapping[str, Target]) -> Target:
    """Return the classes of all sources in the order in which they are named first; real targets must be the same."""
    (first, one), *others = targets.items()
    for name, other in others:
        alike = other == one or (isinstance(one, Classes) and isinstance(other, Classes))
        require(alike, f"The sources '{first}' and '{name}' have different targets: {one.names} and {other.names}.")
    if not isinstance(one, Classes):
        return one
    return Classes(tuple(dict.fromkeys(name for found in targets.values() for name in found.names)))


def _under(data: Dataset, target: Target) -> Dataset:
    """Return a part with the class numbers of all sources."""
    if not isinstance(target, Classes):
        return data
    number = np.array([target.names.index(name) for name in data.class_names], dtype=np.int64)
    test = None if data.test is None else Samples(data.test.x, number[data.test.y])
    return replace(data, target=target, train=Samples(data.train.x, number[data.train.y]), test=test)


def _numbered(parts: Sequence[Samples]) -> Samples:
    y = np.concatenate([part.y for part in parts])
    return Samples(np.arange(len(y))[:, None], y)


def _clients(source: str, own: Array | None, count: int) -> Array:
    return np.full(count, source) if own is None else np.char.add(f"{source}/", own)


def _tests(source: str, data: Dataset) -> Array | None:
    """Return whose the test samples of a source are; None where it has none, or they are nobody's."""
    if data.test is None or (data.client is not None and data.client_test is None):
        return None
    return _clients(source, data.client_test, len(data.test))


def _lost(found: Mapping[str, Dataset], untold: Sequence[str]) -> tuple[str, ...]:
    """Return a note on test sets that are not used, because another source has none that belongs to clients."""
    lost = [name for name, data in found.items() if data.test is not None and untold]
    says = f"Not used: the test samples of {', '.join(lost)}, as {', '.join(untold)} has none of its clients' own."
    return (says,) if lost else ()
