"""Several extractors side by side: what each is called, and whether all of them can read the same samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hansa.errors import HansaError, require
from hansa.features.extract import Extractor
from hansa.io.codec import to_table
from hansa.io.registry import name_of

KINDS = frozenset({"images", "numbers", "text"})  # of samples; an extractor that says nothing may read any


def extractor_names(extractors: Sequence[Extractor]) -> tuple[str, ...]:
    """Name every extractor as in the catalogue, with the settings that tell it from others of that name."""
    alike = [[_settings(other) for other in extractors if type(other) is type(one)] for one in extractors]
    pairs = list(zip(extractors, alike, strict=True))
    short = tuple(_name(one, others, lambda value: Path(value).name) for one, others in pairs)
    return short if len(set(short)) == len(short) else tuple(_name(one, others, str) for one, others in pairs)


def _name(extractor: Extractor, alike: Sequence[dict[str, Any]], text: Callable[[str], str]) -> str:
    name, settings = name_of("extractor", extractor), _settings(extractor)
    own = {key: value for key, value in settings.items() if any(other.get(key) != value for other in alike)}
    told = ", ".join(f"{key} {text(value) if isinstance(value, str) else value}" for key, value in own.items())
    return f"{name} ({told})" if own else name


def _settings(extractor: Extractor) -> dict[str, Any]:
    """Return all settings, those of an option for themselves."""
    table = to_table(extractor)
    inner = {key: value for options in table.values() if isinstance(options, dict) for key, value in options.items()}
    return {key: value for key, value in table.items() if not isinstance(value, dict)} | inner


def check_together(extractors: Sequence[Extractor]) -> None:
    """Refuse an extractor that is there twice, and extractors that no one sample can be read by."""
    names = extractor_names(extractors)
    twice = next((names[place] for place, one in enumerate(extractors) if one in extractors[:place]), None)
    require(twice is None, f"The extractor '{twice}' stands twice in data.features; remove one of the two.")
    kinds = [_kinds(one) for one in extractors]
    for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        odd = next((other for other in range(place) if not kind & kinds[other]), None)
        if odd is not None:
            raise HansaError(
                f"All extractors of data.features read the same samples, but '{names[odd]}' reads {_told(kinds[odd])} "
                f"and '{name}' reads {_told(kind)}; leave one of them out."
            )


def _kinds(extractor: Extractor) -> frozenset[str]:
    found: frozenset[str] = getattr(extractor, "reads", KINDS)
    return found


def _told(kinds: frozenset[str]) -> str:
    return " or ".join(sorted(kinds))
