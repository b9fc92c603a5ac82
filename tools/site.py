"""What `mkdocs` needs to know beside `mkdocs.yml`: the order of the pages, and pages of the package's own docstrings.

The order is that of `docs/index.md`, so a page that is not linked there stops the build.  Pages of docstrings are made
for the modules that users import, the catalogue's pieces among them, and lie nowhere but in the site.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from hansa.io.registry import CATALOGUE  # noqa: E402

ROOMS = {"Python": ("hansa", "api", "contract", "task", "payload", "tree", "errors", "seeds", "sklearn", "ridge")}
FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)  # what follows the language is for the tests of the pages
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./((?:src|tests)/[^)]+)\)")


def modules() -> dict[str, list[str]]:
    """Return the modules that have a page, by the heading that they stand under."""
    named = {room: ["hansa" if one == "hansa" else f"hansa.{one}" for one in names] for room, names in ROOMS.items()}
    for kind, known in CATALOGUE.items():
        named[kind.capitalize()] = list(dict.fromkeys(path.partition(":")[0] for path in known.values()))
    return named


def page(module: str) -> str:
    """Return where a module's page lies."""
    return f"api/{module}.md"


def on_config(config: Any) -> Any:
    """Put the pages in the order of the index."""
    nav: list[Any] = [{"Hansa": "index.md"}]
    for section in (ROOT / "docs" / "index.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title = section.splitlines()[0].partition(":")[0]
        links = re.findall(r"\[([^\]]+)\]\(([^)#]+\.md)\)", section)
        nav.append({title: [{name: path} for name, path in links]})
    rooms = [{room: [{one.rpartition(".")[2]: page(one)} for one in own]} for room, own in modules().items()]
    config.nav = [*nav, {"Docstrings": rooms}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of docstrings."""
    for own in modules().values():
        for module in own:
            content = f"# {module}\n\n::: {module}\n"
            if page(module) not in files.src_uris:
                files.append(File.generated(config, page(module), content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead to a module's page instead of its source, or nowhere where it has none: sources are not in the site."""
    known = {module for own in modules().values() for module in own}

    def led(found: re.Match[str]) -> str:
        module = found[2].removeprefix("src/").removesuffix(".py").replace("/", ".")
        return f"[{found[1]}]({page(module)})" if module in known else found[1]

    return OUTSIDE.sub(led, FENCE.sub(r"\1", markdown))
