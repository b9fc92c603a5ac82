"""Flower's own programs: where they are, and in which environment they run."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from hansa.errors import HansaError

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}

HERE = "127.0.0.1"
DIRECT = ("no_proxy", "NO_PROXY")  # of which some programs read the one and some the other


def direct(said: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which programs of this machine reach each other without the proxy of an environment."""
    others = next((said[name] for name in DIRECT if said.get(name)), "")
    return dict.fromkeys(DIRECT, ",".join(filter(None, (others, HERE))))


def _places() -> str:
    """Return where programs are looked for: beside this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def tool(name: str) -> str:
    """Return the path of one of Flower's programs."""
    found = shutil.which(name, path=_places())
    if found is None:
        raise HansaError(f"Flower's '{name}' is not installed here: pip install 'hansa[flower]'.")
    return found


def guarded(name: str) -> list[str]:
    """Return the command of Flower's server or node, which hears its own account and registered keys alone."""
    tool(f"flower-{name}")
    return [sys.executable, "-P", "-m", "hansa.deploy.flower_guard", name]


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: a home of its own, no telemetry, and its own tools found first."""
    home.mkdir(parents=True, exist_ok=True)
    return {**os.environ, **QUIET, **direct(os.environ), "FLWR_HOME": str(home), "PATH": _places()}


def free_port() -> int:
    """Return a port of this machine that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        port: int = probe.getsockname()[1]
    return port
