"""A campaign: many damaged inputs, each of which must be taken or refused with a sentence, and counts of what came."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable

from hansa.engines.session import ClientFailed
from hansa.errors import HansaError

Case = Callable[[random.Random], object]


def outcome(case: Case, rng: random.Random) -> str:
    """Carry out one case: 'taken', 'refused', or what a person would have seen as a traceback."""
    try:
        case(rng)
    except (HansaError, ClientFailed) as error:
        return "refused" if str(error).strip() else "refused without a sentence"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {place.filename.rpartition('/')[2]}:{place.lineno}: {str(error)[:120]}"
    return "taken"


def campaign(name: str, case: Case, cases: int, seed: int) -> int:
    """Carry out many cases, print how they ended, and return how many failed; any can be repeated by its number."""
    ends: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for number in range(cases):
        end = outcome(case, random.Random(f"{name}/{seed}/{number}"))
        ends[end] += 1
        examples.setdefault(end, f"{name}/{seed}/{number}")
    good = {"taken", "refused"}
    for end, count in ends.most_common():
        print(f"{name}: {count:6d} {end}" + ("" if end in good else f"  (first: {examples[end]})"))
    return sum(count for end, count in ends.items() if end not in good)
