"""What stands between a command and its work: imports, mostly.  CPU time, as a ratio to importing torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import hansa
from hansa.plan.files import shipped

UNWANTED = ("torch._dynamo", "torch._inductor", "sympy", "sklearn", "scipy", "transformers", "matplotlib", "flwr")
TELL = f"""
import json, sys, time
print(json.dumps([time.process_time(), [name for name in {UNWANTED} if name in sys.modules]]))
"""
RUN = f"""
import sys
from hansa.cli import main
main()
{TELL}
"""

VALIDATE = """
import sys
from hansa.cli.commands import app
for plan in sys.argv[1:]:
    app(["validate", plan], standalone_mode=False)
    assert "torch" not in sys.modules, plan
    assert "sklearn" not in sys.modules, plan
"""
LOOK = """
import sys
from hansa.cli.commands import app
for words in (["new", "own.toml", "--from", "sensors.npz"], ["split", "own.toml"], ["advise", "sensors.npz"]):
    app(words, standalone_mode=False)
    assert "torch" not in sys.modules, words
"""
CATALOGUE = """
import importlib, sys
from hansa.io.registry import CATALOGUE
for path in (path for known in CATALOGUE.values() for path in known.values()):
    importlib.import_module(path.partition(":")[0])
    assert "torch" not in sys.modules, path
"""


def tell(code: str, *arguments: str, path: Path | None = None) -> tuple[float, list[str]]:
    """CPU seconds of a fresh Python, and which heavy modules it loaded; `path` has the package in place of ours."""
    command, places = [sys.executable, "-c", code, *arguments], {"PYTHONPATH": str(path)} if path else {}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **places})
    seconds, loaded = json.loads(done.stdout.splitlines()[-1])
    return seconds, loaded


@pytest.fixture(scope="module")
def torch_alone() -> float:
    return min(tell(f"import torch{TELL}")[0] for _ in range(2))


def test_a_run_starts_soon(tmp_path: Path, torch_alone: float) -> None:
    """Measured: 1.5 times as long as importing torch; loading the compiler and scikit-learn would make it 3.5."""
    arguments = ("run", "digits-fedavg", "--set", "phases.0.rounds=1", "--out")
    found = [tell(RUN, *arguments, str(tmp_path / str(number))) for number in range(2)]
    assert found[0][1] == []
    ratio = min(seconds for seconds, _ in found) / torch_alone
    print(f"{ratio:.2f}")
    assert ratio <= 2.5


def test_no_piece_imports_torch_before_it_computes() -> None:
    subprocess.run([sys.executable, "-c", CATALOGUE], check=True)


def test_plans_are_checked_without_torch() -> None:
    """All but those of sites with inputs of their own: whether their networks fit is known when these are built."""
    sources = {name: tomllib.loads(text)["data"]["source"] for name, text in shipped().items()}
    apart = {name for name, source in sources.items() if "columns_of" in source}
    assert len(apart) == 2 and len(sources) > 8
    subprocess.run([sys.executable, "-c", VALIDATE, *sorted(sources.keys() - apart)], check=True, capture_output=True)


def test_data_is_looked_at_without_torch(tmp_path: Path) -> None:
    """Also where inputs will be standardised and a test set is cut for all: only labels are looked at."""
    y = np.arange(120) % 3
    sensors = np.eye(3)[y] + np.random.default_rng(0).normal(size=(120, 3))
    np.savez(tmp_path / "sensors.npz", x=sensors, y=y, client=np.repeat(["a", "b", "c", "d"], 30))
    subprocess.run([sys.executable, "-c", LOOK], check=True, capture_output=True, cwd=tmp_path)
    plan = tomllib.loads((tmp_path / "own.toml").read_text())["data"]
    assert plan["source"]["scale"] == "standard" and plan["test"]["kind"] == "both"


def test_a_check_takes_less_than_half_of_importing_torch(tmp_path: Path, torch_alone: float) -> None:
    """Measured: 0.28, of a package that is compiled already, as `pip install` leaves it."""
    shutil.copytree(Path(hansa.__file__).parent, tmp_path / "hansa", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(tmp_path)], check=True)
    ratio = min(tell(RUN, "validate", "digits-fedavg", path=tmp_path)[0] for _ in range(2)) / torch_alone
    print(f"{ratio:.2f}")
    assert ratio <= 0.5
