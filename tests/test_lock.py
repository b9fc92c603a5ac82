"""What the two commands install is written down, whole, with hashes and licences."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import licences  # noqa: E402
import lock  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCKED = {name: lock.read(ROOT / "lock" / f"{name}.txt") for name in ("core", "all")}


def wanted(name: str) -> list[Requirement]:
    """What the package itself asks for, without extras or with all that `make test` installs."""
    extras = lock.extras().split(",") if name == "all" else []
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    return [Requirement(text) for text in texts]


def needs(requirement: Requirement) -> Iterator[Requirement]:
    """What an installed package needs in turn, here and with the extras it was asked for."""
    for text in importlib.metadata.requires(requirement.name) or ():
        further = Requirement(text)
        marks = [{"extra": extra} for extra in requirement.extras or ("",)]
        if further.marker is None or any(further.marker.evaluate(mark) for mark in marks):
            yield further


@pytest.mark.parametrize("name", ["core", "all"])
def test_every_dependency_is_locked_within_its_range_and_so_is_what_it_needs(name: str) -> None:
    left, seen = wanted(name), set()
    while left:
        requirement = left.pop()
        version, _ = LOCKED[name][lock.normal(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} is not met by {version}"
        if (str(requirement)) not in seen:
            seen.add(str(requirement))
            left += needs(requirement)
    reached = {lock.normal(Requirement(text).name) for text in seen}
    assert reached == set(LOCKED[name]), "the lock names what nobody needs"


@pytest.mark.parametrize("name", ["core", "all"])
def test_every_locked_package_has_a_hash(name: str) -> None:
    for package, (_, hashes) in LOCKED[name].items():
        assert hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), package


def test_what_is_needed_without_extras_is_part_of_the_same_solution() -> None:
    assert LOCKED["core"].items() <= LOCKED["all"].items()


@pytest.mark.parametrize(("setting", "hashed"), [("hashes", True), ("ranges", False)])
def test_the_commands_install_by_hash_unless_told_otherwise(setting: str, hashed: bool, tmp_path: Path) -> None:
    make = ["make", "--dry-run", f"LOCK={setting}", f"VENV={tmp_path}", f"{tmp_path}/all"]
    told = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ("--require-hashes" in told) is hashed and ("lock/all.txt" in told) is hashed


@pytest.mark.parametrize(("where", "setting"), [("3 11 Linux x86_64", "--require-hashes"), ("3 12 Linux x86_64", ".[")])
def test_the_lock_is_used_where_it_was_made_for(where: str, setting: str, tmp_path: Path) -> None:
    make = ["make", "--dry-run", f"HERE={where}", f"VENV={tmp_path}", f"{tmp_path}/all"]
    told = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert setting in told and ("--require-hashes" in told) != (".[" in told)


def test_the_page_of_licences_has_every_locked_package_and_none_of_the_gpl_family() -> None:
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (.+?) \|", licences.FILE.read_text(encoding="utf-8"), re.MULTILINE)
    found = {name: (version, licence) for name, version, licence in rows if name not in ("package", "---")}
    assert {name: version for name, (version, _) in found.items()} == {
        name: version for name, (version, _) in LOCKED["all"].items()
    }
    assert not [name for name, (_, licence) in found.items() if licences.is_copyleft(licence) or licence == "not told"]


@pytest.mark.parametrize(
    ("licence", "copyleft"),
    [
        ("GPL-3.0-only", True),
        ("LGPLv2+", True),
        ("AGPL-3.0", True),
        ("GNU General Public License", True),
        ("MIT", False),
        ("MPL-2.0", False),
        ("Apache-2.0 WITH LLVM-exception", False),
    ],
)
def test_licences_of_the_gpl_family_are_told_from_others(licence: str, copyleft: bool) -> None:
    assert licences.is_copyleft(licence) is copyleft
