"""What decides a run's results, as its checkpoint notes it: the plan, the code and the data.

A run that is resumed must find all three as they were, or be told to accept what changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import hansa
from hansa.data.federation import Federation
from hansa.errors import HansaError, did_you_mean
from hansa.io.cache import digest
from hansa.io.codec import to_table
from hansa.lazy import torch
from hansa.models.parts import fingerprint_of
from hansa.plan.schema import Plan
from hansa.results.tracking import flatten

Facts = dict[str, Any]  # flat: a name and a value for everything that may change
KINDS = ("plan", "code", "data")
ASIDE = ("name", "track")  # settings that no result depends on
SHOWN = 3  # changes that a refusal names


def plan_facts(plan: Plan) -> Facts:
    """Return the settings of a plan that results depend on."""
    table = {key: value for key, value in to_table(plan).items() if key not in ASIDE}
    facts: Facts = json.loads(json.dumps(flatten(table)))  # as they will be read back
    return facts


def code_facts(plan: Plan) -> Facts:
    """Return the versions and sources that a run's numbers come from: ours, and those of pieces of one's own."""
    ours = Path(hansa.__file__).parent
    facts = {
        "hansa": hansa.__version__,
        "the source of hansa": digest_sources(ours.rglob("*.py"), ours),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    weights = fingerprint_of(plan.model)
    facts |= {"the weights that the model comes with": weights} if weights else {}
    own = sorted(set(_own_files(plan_facts(plan))))
    return facts | {f"the source of {file.name}": digest_sources([file], file.parent) for file in own}


def digest_sources(files: Iterable[Path], folder: Path) -> str:
    """Return a digest of files below a folder: what they are called there, and what they hold."""
    return digest(*(part for file in sorted(files) for part in (file.relative_to(folder).as_posix(), _content(file))))


def _content(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()


def data_facts(federation: Federation) -> Facts:
    """Return what the data is known by."""
    return {"the digest of names, inputs, labels and splits": federation.digest}


def _own_files(settings: Facts) -> Iterator[Path]:
    """Yield the files that a plan's import paths lead to, which are not ours."""
    for value in settings.values():
        for text in value if isinstance(value, list) else [value]:
            name, colon, _ = text.partition(":") if isinstance(text, str) else ("", "", "")
            file = getattr(sys.modules.get(name), "__file__", None)
            if colon and file is not None:
                yield Path(file)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Tell every fact that is not what it was."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [f"{name} was {_shown(before.get(name))} and is {_shown(now.get(name))}" for name in names]


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


def check_kinds(accept: Collection[str]) -> None:
    """Refuse to accept what is no kind of change."""
    for kind in accept:
        if kind not in KINDS:
            raise HansaError(f"There is no kind of change '{kind}' to accept.{did_you_mean(kind, KINDS)}")


def changed(
    kind: str, before: Mapping[str, Any], now: Mapping[str, Any], accept: Collection[str], run: Path
) -> list[str]:
    """Return what changed of one kind since a run began; refuse it where it is not accepted."""
    found = changes(before, now)
    if found and kind not in accept:
        told = "; ".join(found[:SHOWN]) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
        raise HansaError(
            f"The {kind} has changed since the run in '{run}' began ({told}): bring back what it was run with, or go "
            f"on all the same with 'hansa resume {run} --accept {kind}', which is recorded."
        )
    return found
