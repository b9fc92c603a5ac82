"""Processes the engine starts must find the examples too."""

from __future__ import annotations

import os
from pathlib import Path

HERE = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH", "")]))
