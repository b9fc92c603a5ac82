"""The reference pages against the code: every key, piece, command, option and public name, and nothing else.

`python tests/test_docs_reference.py` rewrites what is generated: the tables of pieces, the list of layers, and what the
laws try.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import hansa
from hansa.engines.vectorised import Vectorised
from hansa.io.codec import field_types, piece_kind
from hansa.io.registry import CATALOGUE, find, name_of
from hansa.io.store import MemoryStore
from hansa.plan.files import shipped
from hansa.running.phase_run import PhaseRun
from test_layers import LAYERS

sys.path.insert(0, str(Path(__file__).parent / "laws"))
from battery import ALGORITHMS, UNCHAINED, experiment

SOURCE = Path(__file__).resolve().parents[1] / "src" / "hansa"
DOCS = Path(__file__).resolve().parents[1] / "docs"
END = "<!-- end -->\n"


def section(page: Path, heading: str) -> str:
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^##+ {re.escape(heading)}$(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no section '{heading}'"
    return found[1]


def command_line() -> dict[str, Any]:
    from typer.main import get_command

    from hansa.cli.commands import app

    return dict(get_command(app).commands)  # type: ignore[attr-defined]


def test_the_command_line_is_documented() -> None:
    page = DOCS / "reference-cli.md"
    for name, command in command_line().items():
        text = section(page, f"hansa {name}")
        params = [one for part in (command, *getattr(command, "commands", {}).values()) for one in part.params]
        options = {word for one in params for word in (*one.opts, *one.secondary_opts) if word.startswith("--")}
        assert options - {"--help"} == set(re.findall(r"`(--[a-z-]+)", text)), f"hansa {name}"
    assert all(f"`{kind}`" in section(page, "hansa ls") for kind in ("plan", *CATALOGUE))
    headings = set(re.findall(r"^## hansa (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert headings == set(command_line())


def plan_tables() -> dict[str, type[Any]]:
    """The fixed tables of a plan, by the heading they are documented under."""
    from hansa.data.split import TestSplit
    from hansa.plan.schema import DataPlan, EvaluatePlan, PhasePlan, Plan, Start
    from hansa.training.local import LocalTraining

    return {
        "The plan": Plan,
        "data": DataPlan,
        "data.test": TestSplit,
        "phases": PhasePlan,
        "Local training": LocalTraining,
        "evaluate": EvaluatePlan,
        "start": Start,
    }


@pytest.mark.parametrize("heading", plan_tables())
def test_every_key_of_a_plan_is_documented(heading: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", section(DOCS / "reference-plan.md", heading), re.MULTILINE)
    cls = plan_tables()[heading]
    assert dict(rows) == {field.name: shown_default(cls, field) for field in dataclasses.fields(cls) if field.init}


def default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def shown_default(cls: type[Any], field: dataclasses.Field[Any]) -> str:
    value, kind = default_of(field), piece_kind(field_types(cls)[field.name])
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return "–"
    if kind is not None and not isinstance(value, tuple):
        return f'"{name_of(kind, value)}"'
    if dataclasses.is_dataclass(value):
        return "a table"
    return json.dumps(value, ensure_ascii=False).replace("][", "]\\[")  # two brackets in a row would be a link


def piece_row(kind: str, name: str) -> str:
    cls = find(kind, name)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    settings = ", ".join(f"`{field.name}` ({shown_default(cls, field)})" for field in fields) or "none"
    what = (cls.__doc__ or "").partition("\n")[0].replace("|", "\\|")
    return f"| `{name}` | {settings} | {what} |\n"


def pieces() -> str:
    """The pieces of every kind and the shipped plans."""
    parts = []
    for kind, names in CATALOGUE.items():
        rows = "".join(piece_row(kind, name) for name in names)
        parts.append(f"### {kind}\n\n| name | settings (defaults) | what |\n|---|---|---|\n{rows}")
    plans = "".join(f"| `{name}` | {text.splitlines()[1].removeprefix('# ')} |\n" for name, text in shipped().items())
    return "\n".join([*parts, f"### Shipped plans\n\n| name | what |\n|---|---|\n{plans}"])


def layers() -> str:
    return "".join(f"{number}. {', '.join(f'`{name}`' for name in names)}\n" for number, names in enumerate(LAYERS, 1))


def laws() -> str:
    """What the battery tries of every algorithm, and what holds of it there."""
    rows = "".join(_law_row(name) for name in CATALOGUE["algorithm"])
    settings, engines = len(ALGORITHMS) - 1, ", ".join(f"`{name}`" for name in CATALOGUE["engine"])
    told = f"{len(CATALOGUE['algorithm'])} names in {settings} settings; engines {engines}.\n\n"
    head = "| name | settings tried | personal | visits | chains | small networks train |\n|---|---|---|---|---|---|\n"
    return f"{told}{head}{rows}"


def _law_row(name: str) -> str:
    tried = [key for key in ALGORITHMS if key.partition("/")[0] == name]
    one = ALGORITHMS[tried[0]]
    run = PhaseRun(experiment(one), 0, MemoryStore(), None)
    path = Vectorised().usual_path(run.context)
    chains = "refused" if tried[0] in UNCHAINED else "yes"
    visits = "once" if one.one_shot else "any number"
    return f"| `{name}` | {len(tried)} | {'yes' if one.personal else 'no'} | {visits} | {chains} | {path} |\n"


GENERATED = {
    "reference-plan.md": ("pieces", pieces),
    "explanation-architecture.md": ("layers", layers),
    "reference-algorithms.md": ("laws", laws),
}


def with_fresh_tables(page: str) -> tuple[str, str]:
    """A page as it is, and as it should be."""
    mark, make = GENERATED[page]
    text = (DOCS / page).read_text(encoding="utf-8")
    before, rest = text.split(f"<!-- generated: {mark} -->\n")
    return text, f"{before}<!-- generated: {mark} -->\n{make()}{END}{rest.split(END, 1)[1]}"


@pytest.mark.parametrize("page", GENERATED)
def test_generated_parts_are_fresh(page: str) -> None:
    now, fresh = with_fresh_tables(page)
    assert now == fresh, "rewrite it with: python tests/test_docs_reference.py"


def test_the_walk_through_the_architecture_is_real() -> None:
    """Every file and name of the walk exists, hops are numbered, and both are counted right."""
    text = (DOCS / "explanation-architecture.md").read_text(encoding="utf-8")
    hops = re.findall(r"^\| (\d+) \| `([\w/.]+)` `(\w+)` \|", text, re.MULTILINE)
    assert [int(number) for number, _, _ in hops] == list(range(1, len(hops) + 1))
    for _, file, name in hops:
        module = (SOURCE / file).read_text(encoding="utf-8")
        assert re.search(rf"^(class|def) {name}\b", module, re.MULTILINE), f"{file} has no {name}"
    assert f"{len(hops)} hops through {len({file for _, file, _ in hops})} files" in text


def test_the_public_names_are_documented() -> None:
    rows = re.findall(r"^\| `(\w+)[(`]", (DOCS / "reference-python.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(set(rows) & set(hansa.__all__)) == sorted(hansa.__all__)


def rewrite() -> None:
    for page in GENERATED:
        (DOCS / page).write_text(with_fresh_tables(page)[1], encoding="utf-8")


if __name__ == "__main__":
    rewrite()
