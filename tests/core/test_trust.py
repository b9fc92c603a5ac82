"""Opening never executes: what a table names is imported only where whoever opens it said so."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import HansaError
from hansa.features.module import FrozenModule
from hansa.io.codec import from_table, import_paths, piece_from_table, piece_import_paths, piece_to_table
from hansa.io.registry import CATALOGUE, find
from hansa.io.trust import EVERYBODY, NOBODY, ImportPath, Trust, imported, is_import_path
from hansa.models.module import Module
from hansa.models.random_features import RandomFeaturesModel
from hansa.plan.files import read_plan, shipped
from hansa.plan.schema import Plan
from hansa.task_table import task_from_table

ROOT = Path(__file__).resolve().parents[2] / "src" / "hansa"
ATTACKS = (
    "os:system",
    "subprocess:run",
    "subprocess:Popen",
    "builtins:exec",
    "builtins:eval",
    "hansa.cli:main",
    "hansa.engines.worker:serve",
    "hansa.io.files:write_whole",
    "torch:load",
    "trapped:Thing",  # a module whose import is noticed
)
ODD = ("..a:b", "a..b:c", ":c", "a:", "a:b.c", "a:b:c", "a b:c", "a/b:c", ".:x", "os.path:join()", "a\x00b:c", "1a:b")
identifiers = st.from_regex(r"[a-zA-Z_][a-zA-Z_0-9]{0,8}", fullmatch=True)
paths = st.builds("{}:{}".format, st.lists(identifiers, min_size=1, max_size=3).map(".".join), identifiers)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once a module `trapped` has been imported."""
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w').close()\nfrom dataclasses import dataclass\nfrom subprocess import run\n"
    code += "@dataclass(frozen=True)\nclass Thing:\n    size: int = 1\n"
    code += "def launch(): open({!r}, 'w').close()\n".format(str(tmp_path / "launched"))
    (tmp_path / "trapped.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield marker
    sys.modules.pop("trapped", None)
    find.cache_clear()


# ------------------------------------------------------------------------------------------------- nothing is imported


@pytest.mark.parametrize("kind", CATALOGUE)
@pytest.mark.parametrize("path", ATTACKS)
def test_every_kind_of_piece_refuses_every_import_path(kind: str, path: str, trap: Path) -> None:
    for table in (path, {"name": path}, {"name": path, "args": ["touch", str(trap)]}):
        with pytest.raises(HansaError, match=f"'{path}' is code outside the catalogue, which runs only if you trust"):
            piece_from_table(kind, table)
    assert not trap.exists() and "trapped" not in sys.modules


@pytest.mark.parametrize("kind", CATALOGUE)
def test_a_piece_of_another_kind_is_no_piece_of_this_kind(kind: str) -> None:
    """Neither by its name nor by the import path behind it; the own ones have names, so they need no path either."""
    for name, path in ((name, path) for known in CATALOGUE.values() for name, path in known.items()):
        if name not in CATALOGUE[kind]:
            with pytest.raises(HansaError, match=f"There is no {kind} '{name}'"):
                find(kind, name)
        with pytest.raises(HansaError, match="is code outside the catalogue"):
            find(kind, path)


@given(kind=st.sampled_from(sorted(CATALOGUE)), path=paths)
@settings(max_examples=200, deadline=None)
def test_no_import_path_is_imported_untrusted(kind: str, path: str) -> None:
    known = set(sys.modules)
    with pytest.raises(HansaError, match="is code outside the catalogue"):
        piece_from_table(kind, path)
    assert set(sys.modules) == known


@pytest.mark.parametrize("path", ATTACKS)
@pytest.mark.parametrize(("kind", "name"), [("model", "module"), ("extractor", "module")])
def test_a_catalogue_piece_cannot_smuggle_an_import_path_in(kind: str, name: str, path: str, trap: Path) -> None:
    table = {"name": name, "path": path, "options": {"args": f"touch {trap}", "shell": True}}
    with pytest.raises(HansaError, match=f"In 'p.path': The factory '{path}' is code outside the catalogue"):
        piece_from_table(kind, table, "p")
    inner = {"name": "random-features", "inner": table}
    if kind == "model":
        with pytest.raises(HansaError, match=r"In 'p\.inner\.path'"):
            piece_from_table(kind, inner, "p")
    assert not trap.exists() and "trapped" not in sys.modules


@dataclass(frozen=True)
class SeveralPaths:
    maybe: Annotated[str, ImportPath()] | None = None
    many: tuple[Annotated[str, ImportPath()], ...] = ()


def test_an_optional_import_path_or_a_list_of_them_is_asked_for_too() -> None:
    assert from_table(SeveralPaths, {}) == SeveralPaths()
    for table in ({"maybe": "os:system"}, {"many": ["os:system"]}):
        with pytest.raises(HansaError, match="'os:system' is code outside the catalogue"):
            from_table(SeveralPaths, table)
    both = {"maybe": "os:getcwd", "many": ["os:getpid", "os:getppid"]}
    found = from_table(SeveralPaths, both, trust=EVERYBODY)
    assert list(import_paths(found)) == ["os:getcwd", "os:getpid", "os:getppid"]


def test_every_setting_that_is_imported_later_is_marked() -> None:
    """Whatever class calls `make` of a path must have marked it, or a table could smuggle one in."""
    users = [path for path in ROOT.rglob("*.py") if "models.factory import" in path.read_text(encoding="utf-8")]
    assert {one.relative_to(ROOT).as_posix() for one in users} == {"models/module.py", "features/module.py"}
    for user in users:
        assert "path: Annotated[str, ImportPath()]" in user.read_text(encoding="utf-8")


def test_a_task_in_a_message_names_no_code(trap: Path) -> None:
    for model in ("trapped:Thing", {"name": "module", "path": "trapped:launch"}):
        with pytest.raises(HansaError, match=r"In 'task\.model.*is code outside the catalogue"):
            task_from_table({"model": model, "input_shape": [2], "outputs": 2})
    assert not trap.exists()


@pytest.mark.parametrize("path", ODD)
def test_what_is_no_import_path_is_told(path: str) -> None:
    assert not is_import_path(path)
    for trust in (NOBODY, EVERYBODY):
        with pytest.raises(HansaError, match="must be named by an import path such as"):
            piece_from_table("algorithm", path, trust=trust)
    with pytest.raises(HansaError, match="must be an import path such as"):
        Module(path)
    with pytest.raises(HansaError, match="Trust is given to"):
        Trust((path,))


# ------------------------------------------------------------------------------------------------------ what is trusted


def test_what_is_trusted_is_imported(trap: Path) -> None:
    for trust in (True, ["trapped.*"], "trapped:Thing", ["other.*", "trapped:Thing"]):
        found = piece_from_table("rule", {"name": "trapped:Thing", "size": 3}, trust=Trust.of(trust))
        assert type(found).__name__ == "Thing" and found.size == 3
    assert trap.exists()
    with pytest.raises(HansaError, match="is code outside the catalogue"):  # once imported is not for ever trusted
        piece_from_table("rule", "trapped:Thing")


@pytest.mark.parametrize(
    ("trust", "admitted", "refused"),
    [
        (False, [], ["a:b", "a.b:c"]),
        (True, ["a:b", "a.b:c"], []),
        (["a.*"], ["a:b", "a.b:c", "a.b.c:d"], ["ab:c", "b.a:c", "aa.b:c"]),
        (["a.b.*"], ["a.b:c", "a.b.c:d"], ["a:b", "a.bc:d", "a.c:b"]),
        (["a.b:c"], ["a.b:c"], ["a.b:d", "a:b", "a.b.c:c"]),
        (["*"], ["a:b"], []),
        ([], [], ["a:b"]),
    ],
)
def test_trust_admits_what_it_says(trust: Any, admitted: list[str], refused: list[str]) -> None:
    assert all(Trust.of(trust).admits(path) for path in admitted)
    assert not any(Trust.of(trust).admits(path) for path in refused)


@pytest.mark.parametrize("pattern", ["a*", "a.b*", "**", "*.a", "a.*.b", "a.*:c", "a:*", "", "a", ".*", "a..*"])
def test_a_pattern_that_says_more_than_it_seems_is_refused(pattern: str) -> None:
    with pytest.raises(HansaError, match="Trust is given to"):
        Trust.of([pattern])


@pytest.mark.parametrize("given", [None, 1, 0.5, {"a:b"}])
def test_trust_is_yes_no_or_a_list(given: Any) -> None:
    with pytest.raises(HansaError, match="The 'trust' must be True, False or a list of import paths"):
        read_plan("digits-fed3r", trust=given)
    with pytest.raises(HansaError, match="Trust is given to"):
        read_plan("digits-fed3r", trust=[given])


def test_trust_in_a_module_is_no_trust_in_what_it_imported(trap: Path) -> None:
    """`from subprocess import run` in a trusted module would otherwise hand `run` to every plan."""
    with pytest.raises(HansaError, match="'trapped:run' was only imported there, from 'subprocess', which is not"):
        imported("trapped:run", "factory", Trust.of(["trapped.*"]))
    table = {"name": "module", "path": "trapped:run", "options": {"args": ["touch", str(trap.with_name("ran"))]}}
    with pytest.raises(HansaError, match="was only imported there"):
        piece_from_table("model", table, trust=Trust.of(["trapped.*"]))
    assert not trap.with_name("ran").exists()
    assert imported("trapped:run", "factory", Trust.of(["trapped:run"])).__name__ == "run"


def test_a_class_that_is_no_network_is_not_even_made() -> None:
    for piece in (Module("subprocess:Popen", options={"args": ["false"]}), FrozenModule("subprocess:Popen")):
        with pytest.raises(HansaError, match="and is the class of something else"):
            piece.build((2,), 2) if isinstance(piece, Module) else piece.prepare()


# -------------------------------------------------------------------------------------------------- the paths of pieces


@dataclass(frozen=True)
class OwnAlgorithm(FedAvg):
    pass


def test_the_import_paths_of_a_plan_are_those_that_must_be_trusted() -> None:
    own = f"{__name__}:OwnAlgorithm"
    assert list(piece_import_paths("algorithm", FedAvg())) == []
    assert list(piece_import_paths("algorithm", OwnAlgorithm())) == [own]
    model = RandomFeaturesModel(Module("own:network"))
    assert list(piece_import_paths("model", model)) == ["own:network"]
    for kind, piece in (("algorithm", OwnAlgorithm()), ("model", RandomFeaturesModel(Module("json:dumps")))):
        exact = Trust(tuple(piece_import_paths(kind, piece)))
        table = json.loads(json.dumps(piece_to_table(kind, piece)))
        assert piece_from_table(kind, table, trust=exact) == piece
        with pytest.raises(HansaError, match="is code outside the catalogue"):
            piece_from_table(kind, table)


@pytest.mark.parametrize("name", shipped())
def test_shipped_plans_need_no_trust(name: str) -> None:
    assert list(import_paths(read_plan(name))) == []


def test_all_refusals_of_a_table_are_told_at_once(trap: Path) -> None:
    table = {
        "data": {"source": "trapped:Thing", "partition": "iid"},
        "model": {"name": "module", "path": "trapped:launch"},
        "phases": [{"algorithm": {"name": "personal", "inner": "trapped:Thing"}}],
    }
    with pytest.raises(HansaError) as error:
        from_table(Plan, table)
    assert [line.split(":")[0] for line in str(error.value).splitlines()] == [
        "In 'data.source'",
        "In 'model.path'",
        "In 'phases.0.algorithm.inner'",
    ]
    assert not trap.exists()


# ------------------------------------------------------------------------------------------------------------- the code

IMPORTERS = {
    "__init__.py",  # these two: the package's own names, from a fixed table
    "models/networks/__init__.py",
    "lazy.py",  # torch
    "io/trust.py",  # the one place where text becomes code
    "data/partitions/flower.py",  # these import one package each, by a name that stands in the code
    "models/efficientnet.py",
    "results/tracking.py",
}
FORBIDDEN = {"eval", "exec", "compile", "__import__"}  # as plain names; methods such as module.eval() are others
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "runpy", "code", "imp", "yaml"}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_code_of_ours_can_run_what_a_file_says(path: Path) -> None:
    name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for called, node in calls(path):
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        assert called not in FORBIDDEN, f"{name}: {called}"
        assert not called.startswith(("os.system", "os.popen", "os.exec", "os.spawn")), f"{name}: {called}"
        assert given.get("shell", "False") == "False", f"{name}: shell"
        assert called not in ("torch.load", "load") or given.get("weights_only") == "True", f"{name}: {called}"
        assert called not in ("np.load", "numpy.load") or given.get("allow_pickle") == "False", f"{name}: {called}"
        assert not called.endswith("import_module") or name in IMPORTERS, f"{name}: {called}"
        if called.endswith(".from_pretrained"):
            assert given.get("trust_remote_code") == "False", f"{name}: {called}"
            assert called.startswith("library.AutoTokenizer") or given.get("use_safetensors") == "True", name
    assert "sys.path" not in text or name in ("cli/options.py", "io/search_path.py"), f"{name}: sys.path"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            assert not {one.split(".")[0] for one in found} & MODULES, f"{name}: {found}"
            assert "entry_points" not in ast.unparse(node), f"{name}: entry points run whatever is installed"
