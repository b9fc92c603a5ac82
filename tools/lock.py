"""Write `lock/all.txt` and `lock/core.txt`: every dependency that the two commands install, with its version and hash.

    python tools/lock.py

asks pip which wheels it would install here for all extras, without installing any, and notes their SHA-256.  What the
package needs without extras is the part of the same solution that `lock/core.txt` holds.  The result is for the Python
and platform that it is run on; the heading of the files says which.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "lock"
OWN = "hansa"
HEADING = """\
# What `make {commands}` installs: written by tools/lock.py (`make lock`) for Python {python} on {system} {machine}.
# Elsewhere the commands install what the ranges in pyproject.toml allow, as they do with LOCK=ranges.
"""

Entry = tuple[str, str, str]  # name, version, SHA-256


def normal(name: str) -> str:
    """Return a project's name in the one spelling that all spellings of it share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(file: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Read a lock file: version and hashes by name."""
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    split = [(line[0].partition("=="), tuple(part.removeprefix("--hash=") for part in line[1:])) for line in lines]
    return {name: (version, hashes) for (name, _, version), hashes in split}


def extras() -> str:
    """Return the extras that `make test` installs, as the Makefile lists them."""
    found = re.search(r"^EXTRAS := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def resolve(project: str, constraints: Path) -> list[Entry]:
    """Return what pip would install for a project, itself left out."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    told = subprocess.run([*command, "--constraint", str(constraints), project], check=True, stdout=subprocess.PIPE)
    report: dict[str, Any] = json.loads(told.stdout)
    return sorted(_entry(one) for one in report["install"] if normal(one["metadata"]["name"]) != OWN)


def _entry(installed: dict[str, Any]) -> Entry:
    """Return one wheel; a build such as `+cpu` is told by its hash, so that its version stays the public one."""
    about, download = installed["metadata"], installed["download_info"]
    if not download["url"].endswith(".whl"):
        raise SystemExit(f"{about['name']} {about['version']} has no wheel here, so installing it would run its code.")
    return normal(about["name"]), about["version"].partition("+")[0], download["archive_info"]["hashes"]["sha256"]


def write(file: Path, entries: list[Entry], commands: str) -> None:
    """Write a lock file."""
    where = {"python": ".".join(platform.python_version_tuple()[:2]), "system": platform.system()}
    heading = HEADING.format(commands=commands, **where, machine=platform.machine())
    lines = [f"{name}=={version} \\\n    --hash=sha256:{digest}\n" for name, version, digest in entries]
    file.write_text(heading + "".join(lines), encoding="utf-8")


def main() -> None:
    """Resolve all extras, then the package alone within that solution."""
    every = resolve(f"{ROOT}[{extras()}]", ROOT / "constraints.txt")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write("".join(f"{name}=={version}\n" for name, version, _ in every))
        pins.flush()
        core = resolve(str(ROOT), Path(pins.name))
    FOLDER.mkdir(exist_ok=True)
    write(FOLDER / "all.txt", every, "test")
    write(FOLDER / "core.txt", core, "demo")
    print(f"{len(every)} packages, {len(core)} of them without extras.")


if __name__ == "__main__":
    main()
