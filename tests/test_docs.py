"""The documentation, executed: every block runs, every plan is read, every link leads somewhere.

Blocks of one page run in order, in one namespace and one empty folder.  A Python block that begins with `# name.py`
and a plan that begins with `# hansa run name.toml` are also saved under that name, as a reader would do.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hansa
from hansa.plan.files import plan_from_table

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = ("console", "text")  # what a command prints: there is nothing to run
NOT_RUN = (
    ". .venv/",
    "cd ",
    "git clone ",
    "make ",
    "pip install ",
    "pytest ",
    "python -m venv ",
    "tensorboard ",
    "wandb ",
)

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


def plans(body: str) -> Iterator[dict[str, Any]]:
    """A whole plan, or a fragment completed to a small one; lines `algorithm = …` are phases to choose from."""
    lines = [line for line in body.splitlines() if line.strip() and not line.startswith("#")]
    choice = all(line.startswith("algorithm = ") for line in lines)
    for text in lines if choice else [body]:
        table = tomllib.loads(text)
        table = {"phases": [table]} if choice else table
        data = {"source": "digits", "partition": "iid", **table.get("data", {})}
        yield {"phases": [{"algorithm": "fedavg"}], **table, "data": data}


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
        self.save(r"# hansa run (\S+\.toml)\n", block.body)
        with self.monkeypatch.context() as here:
            here.syspath_prepend(self.folder)
            for table in plans(block.body):
                plan_from_table(table, "block", self.folder, trust=True)

    def shell(self, block: Block) -> None:
        for line in commands(block.body):
            if line.startswith("hansa "):
                self.hansa(shlex.split(line)[1:])
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
        ("```toml\nalgorithm = 'fed3r'\nalgorithm = 'fedavgg'\n```\n", "Did you mean 'fedavg'"),
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


# ---------------------------------------------------------------------------------------------------------------- demo


def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    """Bytes and rounds to the letter; accuracies within three points, since other processors round differently."""
    from hansa.results.report.format import bytes_text
    from hansa.results.rows import comparison

    rows = re.findall(
        r"^(\S+) +(\S+) +(?:[\d.]+ → )?([\d.]+) % +(\d+) +([\d.]+ k?M?B) ",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    line = next(one for one in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "hansa compare" in one)
    plans = [word for word in line.split() if word.startswith("digits-")]
    real = comparison([hansa.run(plan, out=tmp_path / plan) for plan in plans])
    assert [(row.run, row.phase, str(row.rounds), bytes_text(row.bytes_up)) for row in real] == [
        (run, phase, rounds, up) for run, phase, _, rounds, up in rows
    ]
    for row, (_, _, accuracy, _, _) in zip(real, rows, strict=True):
        assert 100 * row.metrics["test_accuracy"] == pytest.approx(float(accuracy), abs=3)
