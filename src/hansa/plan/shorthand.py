"""The papers' notation as a plan: `OLL(Fed3R + FedAvg(features)) + FP(head)`.

Phases are joined by `+`.  A phase is a name, with what it trains (or keeps personal) in brackets and its rounds after a
dash: `FedAvg-300(features)`, `FedSim(head)`; after DeepAFL stands the number of its layers, `DeepAFL-5`, and after
Fed3R-RF that of the random features, `Fed3R-RF-10k`.  `OLL( … )` prunes the classifier after the phases it encloses.
What comes out is an ordinary list of phases, and everything a plan may say of a phase can be changed in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hansa.errors import HansaError, did_you_mean

Table = dict[str, Any]

PARTS = {"head": "head", "features": "features", "all": "all", "ψ": "head", "φ": "features", "m": "all"}
ROUNDS, EPOCHS = 100, 25  # of a federated phase, and of full personalisation
LOCAL = {"batch_size": 64, "weight_decay": 4e-5}  # of the paper's personalised experiments
_TOKEN = re.compile(r"\s*([+()]|[^\s+()]+)")


class Word(NamedTuple):
    """The meaning of a name of the notation."""

    phases: Callable[[str], list[Table]]  # made for a part
    default: str = ""
    parts: tuple[str, ...] = ()
    layers: int = 0  # phases that it stands for where no number is given; 0 where a number is one of rounds


def expand(table: Table) -> list[Table]:
    """Put the phases that a plan's line of notation stands for in its place; return what lifts the model for them."""
    line = table.get("phases")
    if not isinstance(line, str):
        return []
    table["phases"] = phases_from(line)
    made = [phase["algorithm"] for phase in table["phases"]]
    lifts = [{"name": "random-features", **_dimension(line)}] if SCALE in made else []
    if layers := made.count("deepafl"):
        lifts.append({"name": "deep-random-features", "layers": layers})
    lift(table, lifts)
    return lifts


def lift(table: Table, lifts: Sequence[Table]) -> None:
    """Put random features on top of a plan's model, whichever it is; a model that has them is given their number."""
    for one in lifts:
        model = table.get("model", "linear")
        there = model if isinstance(model, dict) else {"name": model}
        table["model"] = {**there, **one} if there.get("name") == one["name"] else {**one, "inner": model}


def _dimension(line: str) -> Table:
    """Return the number of random features that a line asks for, as a setting of the model; nothing where it does not.

    A plan has one model, so a line may ask for one number only.
    """
    numbers = {_rounds(word)[1] for word in _TOKEN.findall(line) if _rounds(word)[0].lower() == "fed3r-rf"} - {None}
    if len(numbers) > 1:
        raise HansaError(f"The phases '{line}' cannot be read: there is one model, so Fed3R-RF has one number.")
    return {"dimension": numbers.pop()} if numbers else {}


def phases_from(text: str) -> list[Table]:
    """Return the phases that a line of notation stands for, as tables."""
    tokens = _Tokens(text)
    phases = _sequence(tokens)
    if tokens.next:
        raise tokens.error(f"'{tokens.next}' is not expected there")
    return phases


def _sequence(tokens: _Tokens) -> list[Table]:
    phases = _term(tokens)
    while tokens.next == "+":
        tokens.take("+")
        phases += _term(tokens)
    return phases


def _term(tokens: _Tokens) -> list[Table]:
    word = tokens.take()
    if word.lower() == "oll":
        tokens.take("(")
        inside = _sequence(tokens)
        tokens.take(")")
        return [*inside[:-1], {**inside[-1], "oll": True}]
    part = ""
    if tokens.next == "(":
        tokens.take("(")
        part = tokens.take()
        tokens.take(")")
    return _phase(tokens, word, part)


def _phase(tokens: _Tokens, word: str, part: str) -> list[Table]:
    name, rounds = _rounds(word)
    known = WORDS.get(name.lower())
    if known is None:
        hint = did_you_mean(name.lower(), WORDS)
        raise tokens.error(f"there is no phase '{name}'.{hint} Known: oll, {', '.join(WORDS)}")
    meant = PARTS.get(part.lower(), part) if part else known.default
    if part and meant not in known.parts:
        use = f"use {' or '.join(known.parts)}" if known.parts else "leave the brackets out"
        raise tokens.error(f"'{part}' cannot stand in the brackets of {name}; {use}")
    counts = bool(known.parts or known.layers) or name.lower() == "fed3r-rf"
    if rounds is not None and not counts:
        raise tokens.error(f"{name} is one round, so no number stands after it; write {name}")
    if rounds == 0:
        raise tokens.error(f"the number after {name} must be 1 or more")
    written = f"{name}({meant})" if known.parts and meant != "none" else name
    changed = {"rounds": rounds} if rounds and known.parts else {}
    if known.layers:
        made = known.phases(meant) * (rounds or known.layers)
        return [{"name": f"{name} {place}", **phase} for place, phase in enumerate(made, 1)]
    *before, last = known.phases(meant)  # what only prepares is known by its algorithm
    return [*before, {"name": written, **last, **changed}]


def _rounds(word: str) -> tuple[str, int | None]:
    """Split `FedAvg-1k` into a name and a number of rounds; `Fed3R-RF` is a name alone."""
    match = re.fullmatch(r"(.+)-(\d+)(k?)", word)
    return (match[1], int(match[2]) * (1000 if match[3] else 1)) if match else (word, None)


def _closed_form(*algorithms: str | Table) -> Word:
    return Word(lambda _: [{"algorithm": algorithm} for algorithm in algorithms])


def _tuning(algorithm: str, **settings: Any) -> Word:
    """Return federated fine-tuning: what is in brackets trains, the rest stays."""

    def phases(part: str) -> list[Table]:
        made = {"name": algorithm, **settings, "local": {**LOCAL, "train": part}}
        return [{"algorithm": made, "rounds": ROUNDS, "evaluate_every": 10}]

    return Word(phases, "all", ("all", "features", "head"))


def _partial(algorithm: str, default: str = "head") -> Word:
    """Return partial personalisation: what is in brackets is the client's own."""

    def phases(part: str) -> list[Table]:
        made = {"name": algorithm, "keep": part, "local": LOCAL}
        return [{"algorithm": made, "rounds": ROUNDS, "evaluate_every": 10}]

    return Word(phases, default, ("head", "features"))


def _full(strength: float) -> Word:
    """Return full personalisation: every client by itself, a round an epoch, so that there is a curve over epochs."""

    def phases(part: str) -> list[Table]:
        made = {"name": "local", "strength": strength, "local": {**LOCAL, "train": part}}
        return [{"algorithm": made, "orchestration": "sweep", "rounds": EPOCHS}]

    return Word(phases, "all", ("all", "features", "head"))


SCALE = {"name": "feature-scale", "factor": 2.0}
WORDS: Mapping[str, Word] = {
    "fed3r": _closed_form("fed3r"),
    "fed3r-rf": _closed_form(SCALE, "fed3r"),
    "fedncm": _closed_form("fedncm"),
    "fedcof": _closed_form("fedcof"),
    "lda": _closed_form("lda"),
    "deepafl": _closed_form("deepafl")._replace(layers=5),
    "calibrate": _closed_form("calibrate"),
    "fedavg": _tuning("fedavg"),
    "fedavgm": _tuning("fedavg", server={"name": "sgd", "momentum": 0.9}),
    "fedadam": _tuning("fedavg", server="adam"),
    "fedyogi": _tuning("fedavg", server="yogi"),
    "fedprox": _tuning("fedprox"),
    "scaffold": _tuning("scaffold"),
    "feddyn": _tuning("feddyn"),
    "mime": _tuning("mime"),
    "mimelite": _tuning("mimelite"),
    "fedsim": _partial("fedsim"),
    "fedalt": _partial("fedalt"),
    "pfedme": _partial("pfedme", "none"),
    "fp": _full(0.0),
    "fp-ditto": _full(0.1),
}


class _Tokens:
    """Words, brackets and plus signs, one after the other."""

    def __init__(self, text: str):
        self.text = text
        self._left: Iterator[str] = iter(_TOKEN.findall(text))
        self.next = next(self._left, "")

    def take(self, expected: str = "") -> str:
        """Take the next token; refuse where another one is expected, or none is left."""
        token = self.next
        wrong = token != expected if expected else token in ("", "+", "(", ")")
        if wrong:
            where = f"before '{token}'" if token else "at the end"
            raise self.error(f"{f'a {expected!r}' if expected else 'a name'} is expected {where}")
        self.next = next(self._left, "")
        return token

    def error(self, problem: str) -> HansaError:
        """Return the error of a wrong line."""
        return HansaError(f"The phases '{self.text}' cannot be read: {problem}.")
