"""`hansa new --from` and `hansa advise`: a look at data, and first plans for it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from hansa.cli.console import bare_table, plain, show
from hansa.cli.text import printable
from hansa.data.federation import build_federation
from hansa.errors import HansaError, require
from hansa.features.sketch import sketch_features
from hansa.io.codec import from_table
from hansa.io.files import write_whole
from hansa.io.names import bad_name
from hansa.plan.advice import Facts, Rule, advised, facts_of, plan_table
from hansa.plan.files import plan_from_table
from hansa.plan.looking import Draft, look
from hansa.plan.schema import DataPlan

PATHS = ("path", "root", "test_path", "files")


def looked_at(path: str) -> tuple[Draft, Facts]:
    """Look at data, and divide it as a first plan would."""
    draft = look(path)
    require(draft.kind != "text" or draft.features is not None, _NO_ENCODER)
    section: Mapping[str, Any] = {"source": draft.source, "partition": draft.partition, "test": draft.test}
    planned: DataPlan = from_table(DataPlan, section)
    federation = build_federation(draft.data, planned.partition, seed=0, test=planned.test, labels_only=True)
    width = 0
    if draft.features is not None:
        extractors = from_table(DataPlan, {**section, "features": draft.features}).features
        width = sketch_features(draft.data, *extractors).width
    return draft, facts_of(draft, federation, width)


_NO_ENCODER = (
    "These are texts, and a model reads numbers: install a text encoder with pip install 'hansa[text]', "
    "or write a plan whose data.features names one."
)


def new_from(path: Path, data: str) -> None:
    """Write the plan that is advised first."""
    draft, facts = looked_at(data)
    rule = advised(facts)[0]
    _write(path, draft, rule, facts)
    for guess in draft.guesses:
        print(printable(f"Guessed: {guess}."))
    print(printable(f"Wrote {path}: {rule.why(facts)}. Next: {shlex.join(['hansa', 'run', str(path)])}"))


def advise(data: str, out: Path, as_json: bool) -> None:
    """Write the plans that are advised, and tell why."""
    draft, facts = looked_at(data)
    rules = advised(facts)
    require(not (why := bad_name(Path(data).stem or "data")), f"Plans are named after the data, and {why}.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HansaError(f"The folder '{out}' cannot be made: {error.strerror}.") from error
    files = {rule.name: out / f"{Path(data).stem}-{rule.name}.toml" for rule in rules}
    for rule in rules:
        _write(files[rule.name], draft, rule, facts)
    if as_json:
        told = [
            {"plan": str(files[one.name]), "why": one.why(facts), "page": f"docs/results/{one.page}.md"}
            for one in rules
        ]
        print(json.dumps({"facts": asdict(facts), "guesses": list(draft.guesses), "plans": told}, indent=1))
        return
    _show(draft, facts, rules, files)


def _show(draft: Draft, facts: Facts, rules: list[Rule], files: Mapping[str, Path]) -> None:
    classes = f"{facts.classes} classes, {facts.share:.0%} of them at a client" if facts.classes else "a real target"
    own = f", {facts.outside:.0%} of own test samples of classes never trained on" if facts.own_tests else ""
    show(
        plain(f"{facts.clients} clients, {facts.samples:,} training samples of {draft.kind}, {classes}{own}."),
        wrap=False,
    )
    for guess in draft.guesses:
        show(plain(f"Guessed: {guess}."), wrap=False)
    table = bare_table()
    for title in ("try", "because", "seen in"):
        table.add_column(title)
    for rule in rules:
        table.add_row(*map(plain, (str(files[rule.name]), rule.why(facts), f"docs/results/{rule.page}.md")))
    show(table)
    words = shlex.join(["hansa", "compare", *(str(files[rule.name]) for rule in rules)])
    show(plain(f"Next: {words}"), wrap=False)


def _write(path: Path, draft: Draft, rule: Rule, facts: Facts) -> None:
    require(not (why := bad_name(path.stem)), f"A plan is named after its file, and {why}.")
    require(not path.exists(), f"'{path}' is there already; choose another name, or another folder with --out.")
    require(path.resolve().parent.is_dir(), f"'{path}' cannot be written: there is no folder '{path.parent}'.")
    table = plan_table(draft, rule, facts, path.stem)
    table["data"] = {**table["data"], "source": _beside(draft.source, path.resolve().parent)}
    plan_from_table(json.loads(json.dumps(table)), str(path), path.resolve().parent)  # a plan that is wrong is ours
    lines = [f"hansa run {path}", f"{rule.why(facts)[:1].upper()}{rule.why(facts)[1:]}."]
    lines += [f"Guessed: {guess}." for guess in draft.guesses]
    write_whole(path, "".join(f"# {line}\n" for line in lines) + tomli_w.dumps(table))


def _beside(source: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a source whose paths are relative to a plan's folder, where both lie in the current one; else absolute."""
    whole, here = {key: Path(source[key]).expanduser().resolve() for key in PATHS if key in source}, Path.cwd()
    near = {key: folder.is_relative_to(here) and one.is_relative_to(here) for key, one in whole.items()}
    return {**source, **{key: os.path.relpath(one, folder) if near[key] else str(one) for key, one in whole.items()}}
