"""Several extractors side by side: what each is called, and whether all of them can read the same samples."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.errors import HansaError, require
from hansa.features.extract import Extractor
from hansa.io.codec import to_table
from hansa.io.registry import name_of

KINDS = frozenset({"images", "numbers", "text"})  # of samples; an extractor that says nothing may read any


def extractor_names(extractors: Sequence[Extractor]) -> tuple[str, ...]:
    """Name every extractor as in the catalogue, with the settings that tell it from others of that name."""
    return tuple(_name(one, [other for other in extractors if type(other) is type(one)]) for one in extractors)


def _name(extractor: Extractor, alike: Sequence[Extractor]) -> str:
    name, settings = name_of("extractor", extractor), to_table(extractor)
    tables = [to_table(one) for one in alike]
    own = [key for key in settings if any(table.get(key) != settings[key] for table in tables)]
    return f"{name} ({', '.join(f'{key} {settings[key]}' for key in own)})" if own else name


def check_together(extractors: Sequence[Extractor]) -> None:
    """Refuse an extractor that is there twice, and extractors that no one sample can be read by."""
    names = extractor_names(extractors)
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
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
