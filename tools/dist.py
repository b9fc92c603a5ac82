"""Build wheel and sdist into `dist/`, and use the wheel as somebody would who has nothing else of the project.

    python tools/dist.py

The wheel is made from the sdist, so that one is whole too.  It is installed into an environment of its own, which
borrows the dependencies that are installed here, and runs a shipped plan in an empty folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "hansa"


def build() -> Path:
    """Build both, and return the wheel."""
    out = ROOT / "dist"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"The wheel cannot be built:\n{done.stdout}{done.stderr}")
    (wheel,), (_,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel


def check_contents(wheel: Path) -> None:
    """Refuse a wheel that lacks a file of the package, or has one of something else."""
    wanted = {path.relative_to(ROOT / "src").as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as opened:
        found = {name for name in opened.namelist() if ".dist-info/" not in name}
    if found != wanted:
        sys.exit(f"{wheel.name} lacks {sorted(wanted - found)}, and has {sorted(found - wanted)} in addition.")


def use(wheel: Path, folder: Path) -> None:
    """Install the wheel into an environment of its own, and run a plan with it."""
    home = folder / "env"
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    binaries = home / ("Scripts" if os.name == "nt" else "bin")
    python = binaries / Path(sys.executable).name
    told = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(told, check=True, capture_output=True, text=True).stdout.strip())
    # A line of a .pth file adds a folder, and none of the .pth files in it: our own editable install stays out.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", "--force-reinstall", str(wheel)], check=True)
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    where = [python, "-c", "import hansa; print(hansa.__file__)"]
    for command in (
        where,
        [binaries / "hansa", "--version"],
        [binaries / "hansa", "run", "digits-fed3r", "--out", "run"],
        [binaries / "hansa", "report", "run"],
    ):
        done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, check=False)
        if done.returncode or (command is where and not Path(done.stdout.strip()).is_relative_to(home)):
            sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        print(done.stdout.splitlines()[-1])


def main() -> None:
    """Build, look inside, install and run."""
    wheel = build()
    check_contents(wheel)
    with tempfile.TemporaryDirectory() as folder:
        use(wheel, Path(folder).resolve())
    print(f"{wheel.name} holds {sum(1 for _ in PACKAGE.rglob('*.py'))} modules and runs.")


if __name__ == "__main__":
    main()
