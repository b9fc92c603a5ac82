"""A run's memory: the server's state, every client's state, and how far it came.

Everything written since the last `commit` becomes visible to a later start together, or not at all: a run killed at any
moment resumes at its last commit.  Client states live on disk, so memory does not grow with the number of clients: only
what was put of late is held, until a commit, since clients that come again soon would be written for nothing, and
after it, since they would be read again.

Every row has a digest of its tree, and a commit notes a sum over all rows' names, clients and digests.  So rows that
were exchanged, lost or added behind the store's back are noticed when it is opened, without reading a tree, and a tree
that was changed is noticed when it is read.  This tells accidents and mistakes; whoever means harm could write a note
to match.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

from hansa.errors import DamagedStore, HansaError, StoreFault, require
from hansa.io import wire
from hansa.io.lock import take
from hansa.lazy import Tensor, torch
from hansa.tree import Tree

Progress = dict[str, Any]
Held = bytes | Tree  # packed, or as it is where leaves lie on a device: to fetch them is the most of the work

APPLICATION = 0x48414E53  # "HANS", which tells a store from other programs' SQLite files
FORMAT = 2  # of stores; those of the first format had no number
NOTE = "progress"  # the row of the note, which holds the sum over all others
MODULUS = 2**128
PAGE = 2**14  # bytes: states of megabytes lie in pages like these, and a small store is not much larger for them
CACHE = 2**16  # KiB of pages that may change before some are written ahead of a commit, and then again
HELD = 2**26  # bytes of trees held in memory; beyond, those that were put longest ago are written, and no longer held
ONE, ALL = "name = ? AND client = ?", "name = ? AND client != ''"  # one row, and the rows of all clients
_TABLE = "CREATE TABLE trees (name TEXT, client TEXT, digest BLOB, tree BLOB)"
# An index with the digests in it: all rows can be checked without reading a tree.
_INDEX = "CREATE INDEX digests ON trees (name, client, digest)"


def fingerprint(tree: Tree) -> Tensor:
    """Return a tree's fingerprint, a tensor that tells it from others."""
    mark = hashlib.blake2b(wire.pack(tree), digest_size=16).digest()
    return torch.frombuffer(bytearray(mark), dtype=torch.uint8)


def checkpoint_of(run: Path) -> Path:
    """Return the path of a run folder's store."""
    return run / "checkpoint" / "state.sqlite"


class Store(Protocol):
    """Trees by name and client, and a progress note, committed together."""

    def get(self, name: str, client: str = "") -> Tree | None:
        """Return a tree, or None where none was put."""
        ...

    def put(self, name: str, tree: Tree, client: str = "") -> None:
        """Store a tree under a name, of one client or (without a client) of the server."""
        ...

    def drop(self, name: str, client: str = "") -> None:
        """Remove a tree for good."""
        ...

    def clients(self, name: str) -> Iterator[str]:
        """Return the clients that have a tree of this name."""
        ...

    def copy(self, name: str, to: str) -> None:
        """Put every client's tree of one name under another name too, in place of what was there."""
        ...

    def commit(self, progress: Progress) -> None:
        """Make everything put so far permanent, with a note of how far the run came."""
        ...

    def progress(self) -> Progress | None:
        """Return the note of the last commit."""
        ...


class MemoryStore:
    """A store for runs that leave nothing behind."""

    def __init__(self) -> None:
        self._trees: dict[tuple[str, str], Tree] = {}
        self._progress: Progress | None = None

    def get(self, name: str, client: str = "") -> Tree | None:
        """Return a tree, or None where none was put."""
        return self._trees.get((name, client))

    def put(self, name: str, tree: Tree, client: str = "") -> None:
        """Store a tree under a name."""
        self._trees[name, client] = tree

    def drop(self, name: str, client: str = "") -> None:
        """Remove a tree for good."""
        self._trees.pop((name, client), None)

    def clients(self, name: str) -> Iterator[str]:
        """Return the clients that have a tree of this name."""
        return (client for known, client in self._trees if known == name and client)

    def copy(self, name: str, to: str) -> None:
        """Put every client's tree of one name under another name too, in place of what was there."""
        kept = {key: tree for key, tree in self._trees.items() if key[0] != to or not key[1]}
        kept.update({(to, client): tree for (known, client), tree in kept.items() if known == name and client})
        self._trees = kept

    def commit(self, progress: Progress) -> None:
        """Note how far the run came."""
        self._progress = progress

    def progress(self) -> Progress | None:
        """Return the note of the last commit."""
        return self._progress


def _lock_of(store: Path) -> Path:
    return store.with_name(f"{store.name}-lock")


def in_use(run: Path) -> bool:
    """Tell whether another process is writing to a run folder."""
    try:
        with _lock_of(checkpoint_of(run)).open("rb+") as lock:
            return not take(lock)
    except FileNotFoundError:
        return False


class DiskStore:
    """A store in one SQLite file: transactions make a commit atomic, and memory holds what was put of late only.

    Whoever opens it to write holds a lock beside it until it is closed or the process dies.
    """

    def __init__(self, path: Path, *, read_only: bool = False):
        self.path, self._rows = path, 0  # the sum over the rows as they are now
        self._held: dict[tuple[str, str], Held] = {}  # what was put of late, by name and client, longest ago first
        self._waiting: set[tuple[str, str]] = set()  # those of it that are not written yet
        self._bytes = 0  # of what is held
        self._lock: IO[bytes] | None = None
        if read_only:
            require(path.is_file(), f"There is no checkpoint '{path}': the run has not got far enough to leave one.")
        else:
            self._lock = self._taken()
        try:
            self._database = sqlite3.connect(path, isolation_level=None, timeout=1.0)
        except sqlite3.Error as error:
            raise self._damaged(error) from error
        try:
            self._open(read_only)
        except (sqlite3.Error, TypeError) as error:  # a damaged row may hold anything where a name should be
            self.close()
            raise self._damaged(error) from error
        except BaseException:
            self.close()
            raise

    def _taken(self) -> IO[bytes]:
        """Return the lock that makes this process the only writer."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = _lock_of(self.path).open("ab")
        except OSError as error:
            raise StoreFault(f"The checkpoint '{self.path}' cannot be written: {error.strerror}.") from error
        if not take(lock):
            lock.close()
            raise HansaError(f"The checkpoint '{self.path}' is in use: another run is writing to this folder.")
        return lock

    def _open(self, read_only: bool) -> None:
        """Begin a transaction, and look whether everything is as it was left."""
        if read_only:
            self._database.execute("BEGIN")
        else:
            # A write-ahead log survives the death of the process at any moment, and appends instead of seeking.
            self._database.execute(f"PRAGMA page_size={PAGE}")  # of a new file; others keep theirs
            self._database.execute(f"PRAGMA cache_size={-CACHE}")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")  # a commit is on the disk when it returns
            self._database.execute("PRAGMA secure_delete=ON")  # what is dropped is overwritten, not only unlinked
            self._database.execute("BEGIN IMMEDIATE")
        tables = {name for (name,) in self._database.execute("SELECT name FROM sqlite_master")}
        if tables or read_only:
            self._check_format(tables)
        else:
            self._make()
        self._rows = self._sum()
        self._check_rows()
        if read_only:
            self._database.execute("COMMIT")

    def _make(self) -> None:
        """Make the tables of a new store, and say whose and of which format it is."""
        for line in (_TABLE, _INDEX, f"PRAGMA application_id={APPLICATION}", f"PRAGMA user_version={FORMAT}"):
            self._database.execute(line)

    def _check_format(self, tables: set[str]) -> None:
        """Refuse files of other programs and stores of other formats."""
        (owner,) = self._database.execute("PRAGMA application_id").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        first = (owner, version) == (0, 0) and "trees" in tables
        if owner != APPLICATION and not first:
            raise self._damaged("it is not one of Hansa's")
        version = 1 if first else version
        says = f"The checkpoint '{self.path}' has format {version}"
        if version > FORMAT:
            raise DamagedStore(f"{says}, newer than {FORMAT}: please update hansa to read it.")
        if version < FORMAT:
            raise DamagedStore(f"{says}, older than {FORMAT}: use the version of hansa that wrote it, or run again.")

    def _check_rows(self) -> None:
        """Refuse a store whose rows are not those of the last commit."""
        noted = self._noted()
        if self._rows != (0 if noted is None else int(noted["rows"], 16)):
            raise self._damaged("its rows are not those of the last commit")

    def _sum(self) -> int:
        rows = self._database.execute("SELECT name, client, digest FROM trees WHERE name != ?", (NOTE,))
        return sum(_mark(*row) for row in rows) % MODULUS

    def _damaged(self, why: object) -> DamagedStore:
        return DamagedStore(
            f"The checkpoint '{self.path}' cannot be used ({why}). If it is cut off or damaged, run the plan again "
            "in another folder."
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Tell what the file system says of writing as a fault of the store."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # a full disk, or a folder that is gone
                raise StoreFault(f"The checkpoint '{self.path}' cannot be written: {error}.") from error
            raise self._damaged(error) from error

    def _digests(self, which: str, *given: str) -> list[tuple[str, str, bytes]]:
        found = self._database.execute(f"SELECT name, client, digest FROM trees WHERE {which}", given)
        return found.fetchall()

    def _remove(self, which: str, *given: str) -> None:
        """Remove rows from the table and from the sum."""
        if gone := self._digests(which, *given):
            self._database.execute(f"DELETE FROM trees WHERE {which}", given)
            self._count(gone, -1)

    def _count(self, rows: Iterable[tuple[str, str, bytes]], sign: int) -> None:
        self._rows = (self._rows + sign * sum(_mark(*row) for row in rows if row[0] != NOTE)) % MODULUS

    def _hold(self, name: str, client: str, held: Held) -> None:
        """Keep a tree for the next commit, and write those that were put longest ago where that is too much."""
        self._let_go(name, client)
        self._held[name, client] = held
        self._waiting.add((name, client))
        self._bytes += _weight(held)
        while self._bytes > HELD:
            oldest = next(iter(self._held))
            waited = oldest in self._waiting
            held = self._let_go(*oldest)
            if waited:
                self._write(*oldest, _packed(held))

    def _let_go(self, name: str, client: str) -> Held:
        held = self._held.pop((name, client), b"")
        self._waiting.discard((name, client))
        self._bytes -= _weight(held)
        return held

    def _write_held(self) -> None:
        for key, held in self._held.items():
            if key in self._waiting:
                self._write(*key, _packed(held))
        self._waiting.clear()

    def _write(self, name: str, client: str, blob: bytes) -> None:
        row = (name, client, _digest(blob))
        with self._writing():
            before = self._digests(ONE, name, client)
            if before:  # of the same size, it takes the place of the one before, page by page
                changed = f"UPDATE trees SET digest = ?, tree = ? WHERE {ONE}"
                self._database.execute(changed, (row[2], blob, name, client))
            else:
                self._database.execute("INSERT INTO trees VALUES (?, ?, ?, ?)", (*row, blob))
            self._count(before, -1)
            self._count([row], 1)

    def _read(self, name: str, client: str) -> bytes | None:
        try:
            row = self._database.execute(f"SELECT digest, tree FROM trees WHERE {ONE}", (name, client)).fetchone()
        except sqlite3.Error as error:
            raise self._damaged(error) from error
        if row is None:
            return None
        if not isinstance(row[1], bytes) or _digest(row[1]) != row[0]:
            raise self._damaged(f"'{name}' does not match its checksum")
        return row[1]

    def _noted(self) -> dict[str, Any] | None:
        blob = self._read(NOTE, "")
        return None if blob is None else json.loads(blob)

    def get(self, name: str, client: str = "") -> Tree | None:
        """Return a tree, or None where none was put."""
        found = self._held[name, client] if (name, client) in self._held else self._read(name, client)
        return wire.unpack(found)[0] if isinstance(found, bytes) else found

    def put(self, name: str, tree: Tree, client: str = "") -> None:
        """Store a tree under a name; permanent from the next commit on."""
        away = any(leaf.device.type != "cpu" for leaf in tree.values())
        self._hold(name, client, _own(tree) if away else wire.pack(tree))

    def drop(self, name: str, client: str = "") -> None:
        """Remove a tree; gone for good from the next commit on."""
        self._let_go(name, client)
        with self._writing():
            self._remove(ONE, name, client)

    def clients(self, name: str) -> Iterator[str]:
        """Return the clients that have a tree of this name."""
        try:
            rows = self._database.execute(f"SELECT client FROM trees WHERE {ALL}", (name,))
            yield from {client: None for (client,) in rows} | {
                c: None for known, c in self._held if c and known == name
            }
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def copy(self, name: str, to: str) -> None:
        """Put every client's tree of one name under another name too, in place of what was there."""
        self._write_held()
        for known, client in [key for key in self._held if key[0] == to and key[1]]:
            self._let_go(known, client)
        with self._writing():
            self._remove(ALL, to)
            copied = f"INSERT INTO trees SELECT ?, client, digest, tree FROM trees WHERE {ALL}"
            self._database.execute(copied, (to, name))
            self._count(self._digests(ALL, to), 1)

    def commit(self, progress: Progress) -> None:
        """Write what waited, end one transaction and begin the next."""
        self._write_held()
        self._write(NOTE, "", json.dumps({NOTE: progress, "rows": f"{self._rows:032x}"}).encode())
        with self._writing():
            self._database.execute("COMMIT")
            self._database.execute("BEGIN IMMEDIATE")

    def progress(self) -> Progress | None:
        """Return the note of the last commit."""
        noted = self._noted()
        return None if noted is None else dict(noted[NOTE])

    def close(self) -> None:
        """Forget what was not committed, leave one file, and let others write to it."""
        with suppress(sqlite3.Error):  # nothing is lost that was committed
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        self._database.close()
        if self._lock is not None:
            self._lock.close()


def _own(tree: Tree) -> Tree:
    """Return a tree that lies on a device, in memory of its own, laid out as it would be read."""
    return {key: leaf.detach().clone(memory_format=torch.contiguous_format) for key, leaf in tree.items()}


def _packed(held: Held) -> bytes:
    return held if isinstance(held, bytes) else wire.pack(held)


def _weight(held: Held) -> int:
    return len(held) if isinstance(held, bytes) else wire.size(held)


def _digest(blob: bytes) -> bytes:
    return hashlib.blake2b(blob, digest_size=16).digest()


def _mark(name: str, client: str, digest: bytes) -> int:
    """Return a number for a row, in which its name, its client and its digest have their part."""
    told = f"{len(name)},{len(client)},{name}{client}".encode() + digest
    return int.from_bytes(_digest(told), "big")
