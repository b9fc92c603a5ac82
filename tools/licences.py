"""Write `docs/licences.md`: the licence of every dependency in `lock/all.txt`, as its own metadata tells it.

    python tools/licences.py

reads what is installed, so it is run where `make test` has installed everything.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import lock

FILE = lock.ROOT / "docs" / "licences.md"
HEADING = """\
# Licences of dependencies

Hansa is under the Apache License 2.0. `make demo` and `make test` install the packages below; each line is what the
package says of itself: its licence expression, else its licence field or classifier. A package marked **extra** is
needed by an extra or by the tests alone. Written by `tools/licences.py` from what `lock/all.txt` installs.

Wheels may bundle parts under further licences, which their licence files tell: those of numpy, scipy and scikit-learn
name GCC's runtime libraries (GPL with the runtime exception), that of setuptools a vendored part under the LGPL.

"""
COPYLEFT = re.compile(r"(?<![A-Za-z])(A|L)?GPL|GNU|General Public", re.IGNORECASE)
CLASSIFIER = "License :: OSI Approved :: "


def licence_of(name: str) -> str:
    """Return a package's own word on its licence, in one line."""
    about = importlib.metadata.metadata(name)
    classifiers = [one.removeprefix(CLASSIFIER) for one in about.get_all("Classifier", []) if CLASSIFIER in one]
    free = (about.get("License") or "").strip()
    field = free if free and "\n" not in free and len(free) < 80 and free != "UNKNOWN" else ""
    return about.get("License-Expression") or field or " / ".join(sorted(classifiers)) or _file(name)


def _file(name: str) -> str:
    """Return the first line of a package's licence file, where its metadata has nothing."""
    files = [one for one in importlib.metadata.files(name) or () if "licen" in one.name.lower()]
    lines = [line.strip() for line in files[0].read_text().splitlines() if line.strip()] if files else []
    return f"{lines[0]} (licence file)" if lines else "not told"


def is_copyleft(licence: str) -> bool:
    """Tell whether a licence is of the GPL family, which would reach further than the package itself."""
    return COPYLEFT.search(licence) is not None


def rows() -> list[tuple[str, str, str, bool]]:
    """Return name, version, licence and whether an extra needs it, of every locked package."""
    every, core = lock.read(lock.FOLDER / "all.txt"), lock.read(lock.FOLDER / "core.txt")
    return [(name, version, licence_of(name), name not in core) for name, (version, _) in sorted(every.items())]


def page() -> str:
    """Return the whole page."""
    found = rows()
    lines = [
        f"| {name} | {version} | {licence} | {'extra' if more else ''} |" for name, version, licence, more in found
    ]
    odd = [f"{name} ({licence})" for name, _, licence, _ in found if is_copyleft(licence)]
    told = f"Of the GPL family: {', '.join(odd)}." if odd else "None names a licence of the GPL family for itself."
    return HEADING + told + "\n\n| package | version | licence | |\n|---|---|---|---|\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    print(f"{len(rows())} packages in {FILE.relative_to(Path.cwd()) if FILE.is_relative_to(Path.cwd()) else FILE}")
