"""What the page says in words, with the numbers of its tables: no number of a comparison is written by hand.

{mapping-20: FLIC-HL − Local}           the paired difference and its interval, in the problem's first metric
{heart-10: FedAvg − Local; AUC}         … in another one, by the beginning of its title
{size mapping-20: FLIC-HL − Local}      the mean difference alone, without its sign
{parkinsons: Local}                     the mean of a method
{W2 after round 5: FLIC-HL}             the mean distance of classes from their anchors; after round 0: at the start
{worse: FLIC-HL − Local}                in how many problems; also `better`, `neither` and `every`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

NUMBER = re.compile(
    r"\{(?P<size>size )?(?P<where>[^{}:]+): (?P<one>[^{}]+?)(?: − (?P<other>[^{};]+))?(?:; (?P<metric>[^{}]+))?\}"
)
SIDES = {"better": (1,), "worse": (-1,), "neither": (0,), "every": (1, 0, -1)}
DISTANCE = "W2 after round "

Told = Callable[[str, str, str | None, str], tuple[str, str]]  # a problem's number, and without its sign and interval
Sides = Callable[[str, str], Sequence[int]]  # by two methods: 1, 0 or −1 for every problem that has both


def filled(text: str, told: Told, sides: Sides, distances: Mapping[str, Sequence[float]]) -> str:
    """Return the words with their numbers, and signs as they are printed."""
    words = NUMBER.sub(partial(_number, told=told, sides=sides, distances=distances), text)
    if "{" in words:
        raise KeyError(f"no number is written like {words[words.index('{') :][:60]!r}")
    return words


def _number(found: re.Match[str], told: Told, sides: Sides, distances: Mapping[str, Sequence[float]]) -> str:
    where, one, other = found["where"], found["one"], found["other"]
    if where in SIDES:
        return str(sum(side in SIDES[where] for side in sides(one, other)))
    if where.startswith(DISTANCE):
        return f"{distances[one][int(where.removeprefix(DISTANCE))]:.1f}"
    whole, size = told(where, one, other, found["metric"] or "")
    return size if found["size"] else whole.replace("-", "−")
