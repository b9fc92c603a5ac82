"""Runs that were made on another machine, brought here in a few small files.

    python experiments/pack.py out FOLDER [PREFIX …]   # there: the runs whose names begin so (all where none is given)
    python experiments/pack.py in FOLDER               # here: into runs/results

Of a finished run everything travels but its models and its checkpoint.  A run under way travels with its checkpoint, to
go on here or on the next machine, where that is small; else it is left out, by name.  Nothing here is replaced by less:
a finished run stays, and so does one that came further.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import common

from hansa.results.reader import Run, read_records

PART = 15 * 2**20  # bytes of a file that travels
SMALL = 2**25  # bytes of a checkpoint that does: a LeNet's server, and not its 500 clients' states
NAME = "runs.tar.gz"


def travelling(folder: Path) -> list[Path] | None:
    """Return the files of a run that travel; None where it is under way and its checkpoint is too large."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith("-lock")]
    heavy = [path for path in files if path.suffix == ".safetensors" or path.parent.name == "checkpoint"]
    if Run.open(folder).status == "finished":
        return [path for path in files if path not in heavy]
    return files if sum(path.stat().st_size for path in heavy) <= SMALL else None


def runs(folder: Path, prefixes: Sequence[str] = ()) -> Iterator[Path]:
    """Return the run folders in a folder whose names begin with one of the prefixes."""
    for path in sorted(folder.glob("*/plan.toml")):
        if not prefixes or path.parent.name.startswith(tuple(prefixes)):
            yield path.parent


def pack(out: Path, prefixes: Sequence[str] = ()) -> None:
    """Write the archive of all runs that travel, cut into parts."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{NAME}.*"):
        old.unlink()
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w:gz") as archive:
            for folder in runs(common.RUNS, prefixes):
                files = travelling(folder)
                for path in files or ():
                    archive.add(path, path.relative_to(common.RUNS).as_posix())
                told = "checkpoint too large, left out" if files is None else Run.open(folder).status
                print(f"  {folder.name}: {told}", flush=True)
        whole.seek(0)
        for number, part in enumerate(iter(lambda: whole.read(PART), b"")):
            (out / f"{NAME}.{number:03}").write_bytes(part)


def unpack(source: Path) -> None:
    """Put the runs of an archive beside those that are here."""
    parts = sorted(source.glob(f"{NAME}.*"))
    if not parts:
        raise SystemExit(f"There is no '{NAME}.000' in '{source}': give the folder that 'pack.py out' wrote.")
    common.RUNS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=common.RUNS) as place, tempfile.TemporaryFile() as whole:
        for part in parts:
            whole.write(part.read_bytes())
        whole.seek(0)
        with tarfile.open(fileobj=whole, mode="r:gz") as archive:
            archive.extractall(place, filter="data")
        for folder in runs(Path(place)):
            here = common.RUNS / folder.name
            if reached(here) >= reached(folder):
                print(f"  {folder.name}: as far here", flush=True)
                continue
            shutil.rmtree(here, ignore_errors=True)
            folder.rename(here)
            print(f"  {folder.name}: {Run.open(here).status}", flush=True)


def reached(folder: Path) -> tuple[bool, int]:
    """Return how far a run came: whether it is finished, and how many rounds it has recorded; no run, not even 0."""
    if not (folder / "plan.toml").exists():
        return False, -1
    return Run.open(folder).status == "finished", len(list(read_records(folder / "rounds.jsonl")))


def main(words: Sequence[str]) -> None:
    """Pack or unpack."""
    if len(words) < 2 or words[0] not in ("in", "out") or (words[0] == "in" and len(words) > 2):
        raise SystemExit("Say 'pack.py out FOLDER [PREFIX …]' or 'pack.py in FOLDER'.")
    pack(Path(words[1]), words[2:]) if words[0] == "out" else unpack(Path(words[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
