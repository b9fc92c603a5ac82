"""Damaged checkpoints and journals: a run that is resumed on one ends as if nothing had been, or is refused."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hansa
from hansa.errors import HansaError
from hansa.io.store import checkpoint_of

from . import runs

Damage = Callable[[Path, random.Random], None]


def flip(run: Path, rng: random.Random) -> None:
    """One bit of the checkpoint, its log or the journal."""
    file = rng.choice([checkpoint_of(run), checkpoint_of(run), *_logs(run), run / "rounds.jsonl"])
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(bytes(content))


def cut(run: Path, rng: random.Random) -> None:
    """The end of the checkpoint, its log or the journal is lost."""
    file = rng.choice([checkpoint_of(run), *_logs(run), run / "rounds.jsonl"])
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def blank(run: Path, rng: random.Random) -> None:
    """A stretch of the checkpoint reads as zeros."""
    content = bytearray(checkpoint_of(run).read_bytes())
    start = rng.randrange(len(content))
    content[start : start + 4096] = bytes(len(content[start : start + 4096]))
    checkpoint_of(run).write_bytes(bytes(content))


def delete_row(run: Path, rng: random.Random) -> None:
    """A row is gone: of a client, of the server, or the note."""
    _execute(run, "DELETE FROM trees WHERE rowid = ?", _row(run, rng))


def rename_row(run: Path, rng: random.Random) -> None:
    """A row belongs to another client."""
    _execute(run, "UPDATE trees SET client = client || 'x' WHERE rowid = ?", _row(run, rng))


def swap_rows(run: Path, rng: random.Random) -> None:
    """The states of two clients are exchanged, digests and all."""
    rows = _select(run, "SELECT rowid, client FROM trees WHERE name = '1/client'")
    (one, anna), (other, bert) = rng.sample(rows, 2)
    _execute(run, "UPDATE trees SET client = ? WHERE rowid = ?", bert, one)
    _execute(run, "UPDATE trees SET client = ? WHERE rowid = ?", anna, other)


def add_row(run: Path, rng: random.Random) -> None:
    """A client has a state that nobody gave it."""
    _execute(
        run, "INSERT INTO trees SELECT '2/client', client, digest, tree FROM trees WHERE rowid = ?", _row(run, rng)
    )


def other_format(run: Path, rng: random.Random) -> None:
    """The checkpoint says that it is of another format, or of another program."""
    _execute(run, rng.choice(["PRAGMA user_version = 1", "PRAGMA user_version = 99", "PRAGMA application_id = 7"]))


def change_journal(run: Path, rng: random.Random) -> None:
    """A line of the journal is missing, or all of it."""
    lines = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    del lines[rng.randrange(len(lines)) : rng.choice([len(lines), None])]
    (run / "rounds.jsonl").write_bytes(b"".join(lines))


def claim_the_end(run: Path, rng: random.Random) -> None:
    """The summary says that the run is finished, which it is not."""
    (run / "summary.json").write_text((run / "summary.json").read_text().replace('"running"', '"finished"'))


DAMAGES: tuple[Damage, ...] = (
    *(flip,) * 3,
    *(cut,) * 2,
    blank,
    delete_row,
    rename_row,
    swap_rows,
    add_row,
    other_format,
    change_journal,
    claim_the_end,
)


def _logs(run: Path) -> list[Path]:
    return [log for log in run.glob("checkpoint/*-wal") if log.stat().st_size]


def _select(run: Path, query: str) -> list[tuple[int, str]]:
    database = sqlite3.connect(checkpoint_of(run))
    rows = database.execute(query).fetchall()
    database.close()
    return rows


def _execute(run: Path, query: str, *given: object) -> None:
    database = sqlite3.connect(checkpoint_of(run), isolation_level=None)
    database.execute(query, given)
    database.close()


def _row(run: Path, rng: random.Random) -> int:
    return rng.choice(_select(run, "SELECT rowid, client FROM trees ORDER BY rowid"))[0]


def accepted(run: Path, expected: tuple[object, ...]) -> str:
    """How resuming ended: 'refused', 'the same', or what must not be."""
    try:
        hansa.resume(run, data=runs.data())
    except HansaError:
        return "refused"
    except Exception as error:
        return f"FAILED with {type(error).__name__}: {error}"
    return "the same" if runs.outcome(run) == expected else "FAILED: another result, silently"


def foreign(folder: Path, stopped: Path, expected: tuple[object, ...]) -> str:
    """The checkpoint and journal of another seed lie in the run's folder."""
    runs.begin(folder / "other", replace(runs.plan(), seed=4), stop_after=8)
    run = runs.copied(stopped, folder / "foreign")
    runs.copied(folder / "other" / "checkpoint", run / "checkpoint")
    (run / "rounds.jsonl").write_bytes((folder / "other" / "rounds.jsonl").read_bytes())
    return accepted(run, expected)


def main(cases: int, seed: int) -> int:
    """Damage copies of a stopped run, resume each, and count those that went on to another result."""
    runs.every_round_commits()
    rng, counts = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs.begin(folder / "whole", runs.plan())
        expected = runs.outcome(folder / "whole")
        for after in (5, 8):  # in the middle of the second phase and of the third
            runs.begin(folder / f"stopped{after}", runs.plan(), stop_after=after)
        counts[foreign(folder, folder / "stopped8", expected)] += 1
        for case in range(cases - 1):
            damage = DAMAGES[case % len(DAMAGES)]
            run = runs.copied(folder / f"stopped{rng.choice((5, 8))}", folder / "damaged")
            damage(run, rng)
            ended = accepted(run, expected)
            counts[ended] += 1
            if ended.startswith("FAILED"):
                print(f"case {case}, {damage.__name__}: {ended}")
    failures = sum(count for ended, count in counts.items() if ended.startswith("FAILED"))
    print(f"damage: {sum(counts.values())} cases, {dict(counts)}")
    return failures
