"""The scripts of containers: the Dockerfile and compose.yaml start nothing else, and these start what they say."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "containers"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")


def start(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """What the script does where `hansa` and `python` only say how they were called."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("hansa", "python"):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        program.chmod(0o755)
    path = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", **env}
    return subprocess.run([SCRIPTS / "start", *words], env=path, capture_output=True, text=True, check=False)


def test_parts_are_started_by_their_own_commands(tmp_path: Path) -> None:
    made = start(tmp_path, "init", "/fed", "server", "north", "south hall", PORT="9443").stdout
    assert made == "hansa deploy init /fed --host server --port 9443 --site north --site south hall\n"
    assert start(tmp_path, "site", "/site").stdout == "hansa site serve /site/site.toml\n"
    assert start(tmp_path, "example", "/fed").stdout == f"python {SCRIPTS}/example.py /fed\n"
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "pid").write_text("")  # of a server that ended at once
    ended = start(tmp_path, "server", str(tmp_path))
    assert ended.stdout == f"hansa deploy up {tmp_path}\n" and ended.returncode == 1 and "superlink.log" in ended.stderr
    odd = start(tmp_path, "database", "/fed")
    assert odd.returncode == 2 and "There is no 'database' to start" in odd.stderr


def test_the_dockerfile_and_the_compose_file_start_nothing_else() -> None:
    text, compose = (ROOT / "Dockerfile").read_text(), (ROOT / "compose.yaml").read_text()
    run = re.findall(r"^(?:RUN|ENTRYPOINT) (.*)$", text, re.MULTILINE)
    assert run == ["/src/containers/install /opt/hansa", '["/src/containers/start"]']
    assert re.findall(r"command: \[(\w+)", compose) == ["server", "site"]
    sites = re.findall(r"sites/(\w+):/site", compose)
    told = re.search(r"init /federation/here server (.*)$", compose, re.MULTILINE)
    assert told is not None and told[1].split() == sites == ["north", "south", "west"]


def test_what_is_installed_is_what_a_deployment_needs() -> None:
    asked = re.search(r"\$here\[(.*?)\]", (SCRIPTS / "install").read_text())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert asked is not None and set(asked[1].split(",")) == {"flower", "secure"} <= extras.keys()
    for script in ("install", "start", "check"):
        assert subprocess.run(["sh", "-n", SCRIPTS / script], check=False).returncode == 0
