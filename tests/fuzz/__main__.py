"""Runs campaigns: all of them, or those named."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

HERE = Path(__file__).parent


def campaigns() -> list[str]:
    """The modules beside this one that have a campaign."""
    names = [one.name for one in pkgutil.iter_modules([str(HERE)]) if not one.name.startswith(("_", "test_"))]
    return [name for name in names if hasattr(importlib.import_module(f".{name}", __package__), "main")]


def run() -> int:
    known = campaigns()
    words = argparse.ArgumentParser(prog="python -m tests.fuzz")
    words.add_argument("names", nargs="*", default=known, help=f"campaigns: {', '.join(known)}")
    words.add_argument("--cases", type=int, default=100)
    words.add_argument("--seed", type=int, default=0)
    asked = words.parse_args()
    failures = 0
    for name in asked.names:
        failures += importlib.import_module(f".{name}", __package__).main(asked.cases, asked.seed)
    print(f"{failures} failures")
    return failures


if __name__ == "__main__":
    sys.exit(min(run(), 1))
