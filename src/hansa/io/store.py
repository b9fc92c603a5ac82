"""A run's memory: the server's state, every client's state, and how far it came.

Everything written since the last `commit` becomes visible to a later start together, or not at all: a run killed at any
moment resumes at its last commit.  Client states live on disk, so memory does not grow with the number of clients.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from hansa.errors import HansaError, StoreFault, require
from hansa.io import wire
from hansa.tree import Tree

Progress = dict[str, Any]

_TABLE = """
CREATE TABLE IF NOT EXISTS trees (name TEXT, client TEXT, digest BLOB, tree BLOB, PRIMARY KEY (name, client))
"""


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


class DiskStore:
    """A store in one SQLite file: transactions make a commit atomic, and no tree is held in memory."""

    def __init__(self, path: Path, *, read_only: bool = False):
        self.path = path
        if read_only:
            require(path.is_file(), f"There is no checkpoint '{path}': the run has not got far enough to leave one.")
            self._database = sqlite3.connect(path, isolation_level=None, timeout=1.0)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = sqlite3.connect(path, isolation_level=None, timeout=1.0)
            # A write-ahead log survives the death of the process at any moment, and appends instead of seeking.
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute("PRAGMA secure_delete=ON")  # what is dropped is overwritten, not only unlinked
            self._database.execute(_TABLE)
            self._database.execute("BEGIN IMMEDIATE")  # the only writer: a second run in the same folder is refused
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise HansaError(
                    f"The checkpoint '{path}' is in use: another run is writing to this folder."
                ) from error
            raise self._broken(error) from error

    def _broken(self, why: object) -> StoreFault:
        return StoreFault(
            f"The checkpoint '{self.path}' cannot be used ({why}). If it is cut off or damaged, run the plan again "
            "in another folder."
        )

    def _write(self, name: str, client: str, blob: bytes) -> None:
        digest = hashlib.blake2b(blob, digest_size=16).digest()
        try:
            self._database.execute("INSERT OR REPLACE INTO trees VALUES (?, ?, ?, ?)", (name, client, digest, blob))
        except sqlite3.Error as error:
            raise StoreFault(f"The checkpoint '{self.path}' cannot be written: {error}.") from error

    def _read(self, name: str, client: str) -> bytes | None:
        try:
            row = self._database.execute(
                "SELECT digest, tree FROM trees WHERE name = ? AND client = ?", (name, client)
            ).fetchone()
        except sqlite3.Error as error:
            raise self._broken(error) from error
        if row is None:
            return None
        if hashlib.blake2b(row[1], digest_size=16).digest() != row[0]:
            raise self._broken(f"'{name}' does not match its checksum")
        return bytes(row[1])

    def get(self, name: str, client: str = "") -> Tree | None:
        """Return a tree, or None where none was put."""
        blob = self._read(name, client)
        return None if blob is None else wire.unpack(blob)[0]

    def put(self, name: str, tree: Tree, client: str = "") -> None:
        """Store a tree under a name; permanent from the next commit on."""
        self._write(name, client, wire.pack(tree))

    def drop(self, name: str, client: str = "") -> None:
        """Remove a tree; gone for good from the next commit on."""
        self._database.execute("DELETE FROM trees WHERE name = ? AND client = ?", (name, client))

    def clients(self, name: str) -> Iterator[str]:
        """Return the clients that have a tree of this name."""
        rows = self._database.execute("SELECT client FROM trees WHERE name = ? AND client != ''", (name,))
        return (client for (client,) in rows)

    def copy(self, name: str, to: str) -> None:
        """Put every client's tree of one name under another name too, in place of what was there."""
        try:
            self._database.execute("DELETE FROM trees WHERE name = ? AND client != ''", (to,))
            copied = "INSERT INTO trees SELECT ?, client, digest, tree FROM trees WHERE name = ? AND client != ''"
            self._database.execute(copied, (to, name))
        except sqlite3.Error as error:
            raise StoreFault(f"The checkpoint '{self.path}' cannot be written: {error}.") from error

    def commit(self, progress: Progress) -> None:
        """End one transaction and begin the next."""
        self._write("progress", "", json.dumps(progress).encode())
        try:
            self._database.execute("COMMIT")
            self._database.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise StoreFault(f"The checkpoint '{self.path}' cannot be written: {error}.") from error

    def progress(self) -> Progress | None:
        """Return the note of the last commit."""
        blob = self._read("progress", "")
        return None if blob is None else json.loads(blob)

    def close(self) -> None:
        """Forget what was not committed, and leave one file."""
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")
        self._database.close()
