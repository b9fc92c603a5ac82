"""Imports point down: the straight line of the architecture, enforced."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "hansa"

# A module may import from the lines above its own, and from its own package; two in one line never meet.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("lazy",),
    ("errors", "seeds", "tree"),
    ("io", "payload"),
    ("task", "server", "metrics", "channels"),
    ("contract", "task_table", "ridge", "data", "orchestrate"),
    ("models", "training", "sklearn"),
    ("features", "algorithms", "engines"),
    ("attacks",),
    ("running",),
    ("results",),
    ("plan",),
    ("api", "deploy"),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    """The parts of the package that a module imports, at the top or inside functions; types alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hansa":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("hansa.")}
    return found - {"__version__"}


MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in LEVEL, f"{own} has no place in the layers"
    for other in imports(path) - {own}:
        assert other in LEVEL, f"{other} has no place in the layers"
        assert LEVEL[other] < LEVEL[own], f"{own} (line {LEVEL[own]}) imports {other} (line {LEVEL[other]})"


def test_every_layer_is_real() -> None:
    there = {path.name.removesuffix(".py") for path in ROOT.iterdir()} - {
        "__init__",
        "__pycache__",
        "py.typed",
    }
    assert there == set(LEVEL)


def test_flower_stays_in_its_places() -> None:
    where = {path.relative_to(ROOT).as_posix() for path in MODULES if "import flwr" in path.read_text(encoding="utf-8")}
    assert where <= {"engines/flower.py", "data/partitions/flower.py"}


def test_nothing_can_run_code_from_a_file() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert "import pickle" not in text and "allow_pickle=True" not in text, path
        assert text.count("torch.load(") == text.count("weights_only=True"), path


def test_torch_is_imported_late() -> None:
    """A module that imports torch at its top makes `hansa validate` wait for it, unless only functions import it."""
    where = {
        path.relative_to(ROOT).as_posix()
        for path in MODULES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
        if str(name).split(".")[0] == "torch" and getattr(node, "module", "") != "hansa.lazy"
    }
    assert {one for one in where if not one.startswith("models/networks/")} == {"io/flops.py"}, (
        "import torch, nn, F and Tensor from hansa.lazy"
    )
