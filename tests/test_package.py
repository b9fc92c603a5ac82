"""The package as a user meets it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import hansa

ROOT = Path(__file__).resolve().parents[1]


def seconds_to_import(*modules: str) -> float:
    """CPU seconds, the least of three, so that a busy machine does not matter."""
    code = f"import time; t = time.process_time(); import {', '.join(modules)}; print(time.process_time() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    return min(float(run.stdout) for run in runs)


def test_importing_is_quick() -> None:
    assert seconds_to_import("hansa") < 0.3


def test_importing_the_core_costs_little_beyond_torch() -> None:
    """A share of torch's own import in the same process; whether a full collection of torch's garbage happens to
    fall into ours is chance, so none is made."""
    code = """
import gc, time
gc.disable()
began = time.process_time()
import torch, torch.func, torch.utils.flop_counter
torch_is_there = time.process_time()
import hansa, hansa.contract, hansa.running.loop, hansa.algorithms.fedavg
print((time.process_time() - torch_is_there) / (torch_is_there - began))
"""
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) < 0.2


def test_every_public_name_is_there() -> None:
    for name in hansa.__all__:
        assert getattr(hansa, name) is not None


def test_metadata_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == hansa.__version__
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {hansa.__version__}\n" in cited and "\nlicense: Apache-2.0\n" in cited
    assert cited.count('notes: "') == 5  # the papers, each with the names it has here


def test_contributors_are_told_commands_that_exist() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", told, re.DOTALL))
    named = {word for line in re.findall(r"\bmake ([a-z -]+)", blocks) for word in line.split()}
    assert named and named <= targets
    for path in re.findall(r"\]\(([^)]+)\)", told) + re.findall(r"pytest (tests/\S+)", told):
        assert (ROOT / path).exists(), path
