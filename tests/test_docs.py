"""The documentation, executed: every block runs, every plan is read, every link leads somewhere.

Blocks of one page run in order, in one namespace and one empty folder.  A Python block that begins with `# name.py`
and a plan that begins with `# hansa run name.toml` are also saved under that name, as a reader would do.
`python tests/test_docs.py` rewrites the generated tables of docs/reference-plan.md.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hansa
from hansa.codec import field_types, piece_kind
from hansa.pieces import CATALOGUE, find, name_of
from hansa.plan.files import plan_from_table, shipped

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = ("console", "text")  # what a command prints: there is nothing to run
NOT_RUN = ("cd ", "git clone ", "make ", "pip install ", "pytest ", "python -m venv ", "tensorboard ", "wandb ")
MARKS = "<!-- generated: pieces -->\n", "<!-- end -->\n"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@dataclasses.dataclass(frozen=True)
class Block:
    info: str
    body: str
    line: int


def blocks(text: str) -> list[Block]:
    found = list(FENCE.finditer(text))
    assert sum(line.lstrip().startswith("```") for line in text.splitlines()) == 2 * len(found), "a fence is left open"
    return [Block(m["info"].strip(), m["body"], text.count("\n", 0, m.start()) + 1) for m in found]


# -------------------------------------------------------------------------------------------------------------- blocks


def missing_packages(names: list[str]) -> list[str]:
    """What a block marked `python extras NAME…` lacks here; a name is an extra of the package, or a package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    wanted = [re.split(r"[<>=]", one)[0] for name in names for one in extras.get(name, [name])]
    installed = {re.sub("[-_.]+", "-", d.metadata["Name"]).lower() for d in importlib.metadata.distributions()}
    return [name for name in wanted if re.sub("[-_.]+", "-", name).lower() not in installed]


def commands(body: str) -> Iterator[str]:
    for line in body.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


class Reader:
    """Does what a page says, in an empty folder."""

    def __init__(self, page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page, self.folder, self.monkeypatch = page, folder, monkeypatch
        self.module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
        self.missing: list[str] = []
        monkeypatch.setitem(sys.modules, self.module.__name__, self.module)
        monkeypatch.setenv("HANSA_CACHE", str(folder / ".cache"))
        monkeypatch.chdir(folder)

    def read(self, block: Block) -> None:
        language, *marks = block.info.split()
        if language == "python":
            assert not marks or (marks[0] == "extras" and len(marks) > 1), f"unknown marks {marks}: name the extras"
            lacking = missing_packages(marks[1:])
            self.missing += lacking
            if not lacking:
                self.python(block)
        elif language == "toml":
            self.plan(block)
        elif language == "bash":
            self.shell(block)
        else:
            assert block.info in SHOWN, f"no rule for a block of '{block.info}'"

    def save(self, pattern: str, body: str) -> None:
        if name := re.match(pattern, body):
            (self.folder / name[1]).write_text(body, encoding="utf-8")

    def python(self, block: Block) -> None:
        self.save(r"# (\w+\.py)\n", block.body)
        code = compile("\n" * block.line + block.body, str(self.page), "exec")
        with self.monkeypatch.context() as here:
            here.syspath_prepend(self.folder)
            exec(code, self.module.__dict__)

    def plan(self, block: Block) -> None:
        """A whole plan, or a fragment, which is read as part of a small one."""
        self.save(r"# hansa run (\S+\.toml)\n", block.body)
        table = tomllib.loads(block.body)
        small: dict[str, Any] = {"source": "digits", "partition": "iid"}
        data = {**small, **table.get("data", {})}
        with self.monkeypatch.context() as here:
            here.syspath_prepend(self.folder)
            plan_from_table({"phases": [{"algorithm": "fedavg"}], **table, "data": data}, "block", self.folder)

    def shell(self, block: Block) -> None:
        for line in commands(block.body):
            if line.startswith("hansa "):
                self.hansa(shlex.split(line)[1:])
            elif line.startswith("PYTHONPATH=. hansa "):
                command = [sys.executable, "-c", "from hansa.cli import main; main()", *shlex.split(line)[2:]]
                subprocess.run(command, env={**os.environ, "PYTHONPATH": "."}, check=True, capture_output=True)
            else:
                assert line.startswith(NOT_RUN), f"no rule for the command '{line}'"

    def hansa(self, words: list[str]) -> None:
        from hansa.cli import main

        self.monkeypatch.setattr(sys, "argv", ["hansa", *words])
        try:
            main()
        except SystemExit as end:
            assert end.code in (0, None), f"hansa {' '.join(words)} ended with {end.code}"

    def leave(self) -> None:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]


@every_page
def test_every_block_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(page, tmp_path, monkeypatch)
    try:
        for block in blocks(page.read_text(encoding="utf-8")):
            try:
                reader.read(block)
            except BaseException as error:
                error.add_note(f"in the block at line {block.line} of {page.name}")
                raise
    finally:
        reader.leave()
    if reader.missing:
        pytest.skip(f"blocks that need {', '.join(reader.missing)} were left out; all others ran")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\n1 / 0\n```\n", "division by zero"),
        ("```toml\nsed = 1\n```\n", "Did you mean 'seed'"),
        ("```bash\nhansa run no-such-plan\n```\n", "ended with 2"),
        ("```bash\nrm -r runs\n```\n", "no rule for the command"),
        ("```ruby\nputs 1\n```\n", "no rule for a block of 'ruby'"),
        ("```\nbare\n```\n", "unpack"),
        ("```python\nopen fence\n", "a fence is left open"),
    ],
)
def test_a_wrong_block_is_noticed(text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path / "page.md", tmp_path, monkeypatch)
    with pytest.raises((Exception, AssertionError), match=says):
        for block in blocks(text):
            reader.read(block)


# --------------------------------------------------------------------------------------------------------------- links


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page)) + re.findall(r"(?:src|href)=\"([^\"]+)\"", prose(page))
    return [link for link in found if not link.startswith(("http://", "https://"))]


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and target.is_relative_to(ROOT), f"{page.name} links to {link}"
        if anchor:
            headings = {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(target), re.MULTILINE)}
            assert anchor in headings, f"{page.name} links to {link}"


def test_the_map_names_every_page_and_the_readme_the_map() -> None:
    named = {link.partition("#")[0] for link in links(DOCS / "index.md")}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= named
    assert "docs/index.md" in links(ROOT / "README.md")


# ----------------------------------------------------------------------------------------------------------- reference


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
        options = {word for one in command.params for word in (*one.opts, *one.secondary_opts) if word.startswith("--")}
        assert options - {"--help"} == set(re.findall(r"`(--[a-z-]+)", text)), f"hansa {name}"
    headings = set(re.findall(r"^## hansa (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert headings == set(command_line())


def plan_tables() -> dict[str, type[Any]]:
    """The fixed tables of a plan, by the heading they are documented under."""
    from hansa.data.split import TestSplit
    from hansa.local.sgd import LocalSGD
    from hansa.plan.schema import DataPlan, PhasePlan, Plan

    return {
        "The plan": Plan,
        "data": DataPlan,
        "data.test": TestSplit,
        "phases": PhasePlan,
        "Local training": LocalSGD,
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
    return json.dumps(value, ensure_ascii=False)


def piece_row(kind: str, name: str) -> str:
    cls = find(kind, name)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    settings = ", ".join(f"`{field.name}` ({shown_default(cls, field)})" for field in fields) or "none"
    what = (cls.__doc__ or "").partition("\n")[0].replace("|", "\\|")
    return f"| `{name}` | {settings} | {what} |\n"


def generated() -> str:
    """The pieces of every kind and the shipped plans, from the code itself."""
    parts = []
    for kind, names in CATALOGUE.items():
        rows = "".join(piece_row(kind, name) for name in names)
        parts.append(f"### {kind}\n\n| name | settings (defaults) | what |\n|---|---|---|\n{rows}")
    plans = "".join(f"| `{name}` | {text.splitlines()[1].removeprefix('# ')} |\n" for name, text in shipped().items())
    return "\n".join([*parts, f"### Shipped plans\n\n| name | what |\n|---|---|\n{plans}"])


def split_reference() -> tuple[str, str, str]:
    before, rest = (DOCS / "reference-plan.md").read_text(encoding="utf-8").split(MARKS[0])
    inside, after = rest.split(MARKS[1])
    return before, inside, after


def test_the_pieces_are_documented() -> None:
    inside = split_reference()[1]
    assert inside == generated(), "rewrite the tables with: python tests/test_docs.py"


def test_the_public_names_are_documented() -> None:
    rows = re.findall(r"^\| `(\w+)[(`]", (DOCS / "reference-python.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(set(rows) & set(hansa.__all__)) == sorted(hansa.__all__)


# ----------------------------------------------------------------------------------------------------------------- demo


def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    """Bytes and rounds to the letter; accuracies within three points, since other processors round differently."""
    from hansa.report.format import bytes_text
    from hansa.results import comparison

    rows = re.findall(
        r"│ (\S+) +│ (\S+) +│ +([\d.]+) % │ +(\d+) │ +([\d.]+ k?M?B) │", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    line = next(one for one in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "hansa compare" in one)
    plans = [word for word in line.split() if word.startswith("digits-")]
    real = comparison([hansa.run(plan, out=tmp_path / plan) for plan in plans])
    assert [(row.run, row.phase, str(row.rounds), bytes_text(row.bytes_up)) for row in real] == [
        (run, phase, rounds, up) for run, phase, _, rounds, up in rows
    ]
    for row, (_, _, accuracy, _, _) in zip(real, rows, strict=True):
        assert 100 * row.metrics["test_accuracy"] == pytest.approx(float(accuracy), abs=3)


def rewrite() -> None:
    before, _, after = split_reference()
    (DOCS / "reference-plan.md").write_text(before + MARKS[0] + generated() + MARKS[1] + after, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
