from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
import torch

from hansa.errors import DamagedStore, HansaError
from hansa.io import store as store_module
from hansa.io.store import DiskStore, MemoryStore
from hansa.tree import equal


def test_only_what_was_committed_survives(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "c" / "state.sqlite")
    store.put("0/client", {"a": torch.ones(2)}, "anna")
    store.commit({"round": 1})
    store.put("0/client", {"a": torch.zeros(2)}, "anna")
    store.put("0/client", {"a": torch.zeros(2)}, "bert")
    store.close()
    store = DiskStore(store.path)
    found = store.get("0/client", "anna")
    assert found is not None and equal(found, {"a": torch.ones(2)})
    assert store.get("0/client", "bert") is None and list(store.clients("0/client")) == ["anna"]
    assert store.progress() == {"round": 1}


def test_uncommitted_states_can_be_read_back(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "state.sqlite")
    store.put("0/client", {"a": torch.ones(2)}, "anna")
    assert store.get("0/client", "anna") is not None and store.progress() is None


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    first = DiskStore(tmp_path / "state.sqlite")
    with pytest.raises(HansaError, match="another run is writing"):
        DiskStore(tmp_path / "state.sqlite")
    first.close()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_checkpoint_is_refused_with_a_sentence(tmp_path: Path, share: float) -> None:
    store = DiskStore(tmp_path / "state.sqlite")
    for k in range(50):
        store.put("0/client", {"a": torch.randn(500)}, f"c{k}")
    store.commit({"round": 1})
    store.close()
    data = store.path.read_bytes()
    store.path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(HansaError, match="cannot be used"):
        broken = DiskStore(store.path)
        for k in range(50):
            broken.get("0/client", f"c{k}")


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "state.sqlite")
    store.put("0/server", {"a": torch.full((2000,), 7.0)})
    store.commit({})
    store.close()
    data = bytearray(store.path.read_bytes())
    place = bytes(data).rindex(torch.full((8,), 7.0).numpy().tobytes())
    data[place] ^= 1
    store.path.write_bytes(bytes(data))
    with pytest.raises(HansaError, match="checksum"):
        DiskStore(store.path).get("0/server")


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_text("no database, " * 100)
    with pytest.raises(HansaError, match="cannot be used"):
        DiskStore(tmp_path / "state.sqlite")


def three_clients(path: Path) -> DiskStore:
    store = DiskStore(path)
    for number, client in enumerate(("anna", "bert", "cora")):
        store.put("0/client", {"a": torch.full((3,), float(number))}, client)
    store.put("0/server", {"a": torch.ones(3)})
    store.commit({"round": 1})
    store.close()
    return store


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM trees WHERE client = 'anna'",
        "DELETE FROM trees WHERE name = '0/server'",
        "DELETE FROM trees WHERE name = 'progress'",
        "UPDATE trees SET client = iif(client = 'anna', 'bert', 'anna') WHERE client IN ('anna', 'bert')",
        "UPDATE trees SET name = '1/client' WHERE client = 'anna'",
        "INSERT INTO trees SELECT '1/client', client, digest, tree FROM trees WHERE client = 'anna'",
        "INSERT INTO trees SELECT name, client, digest, tree FROM trees WHERE client = 'anna'",
        "UPDATE trees SET digest = NULL WHERE client = 'anna'",
    ],
)
@pytest.mark.parametrize("read_only", [True, False])
def test_rows_that_are_lost_exchanged_or_foreign_are_noticed_when_a_store_is_opened(
    tmp_path: Path, change: str, read_only: bool
) -> None:
    path = three_clients(tmp_path / "state.sqlite").path
    DiskStore(path, read_only=read_only).close()
    with sqlite3.connect(path) as database:
        database.execute(change)
    with pytest.raises(DamagedStore, match="cannot be used"):
        DiskStore(path, read_only=read_only)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("PRAGMA user_version = 3", "has format 3, newer than 2: please update hansa"),
        ("PRAGMA user_version = 1", "has format 1, older than 2"),
        ("PRAGMA application_id = 7", "not one of Hansa's"),
    ],
)
def test_a_store_of_another_format_or_program_is_refused(tmp_path: Path, line: str, says: str) -> None:
    path = three_clients(tmp_path / "state.sqlite").path
    with sqlite3.connect(path) as database:
        database.execute(line)
    with pytest.raises(DamagedStore, match=says):
        DiskStore(path)


def test_a_store_of_the_first_format_is_refused_as_older(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.sqlite") as database:
        database.execute(
            "CREATE TABLE trees (name TEXT, client TEXT, digest BLOB, tree BLOB, PRIMARY KEY (name, client))"
        )
    with pytest.raises(DamagedStore, match="format 1, older than 2"):
        DiskStore(tmp_path / "state.sqlite")


def test_whatever_was_put_copied_and_dropped_the_store_opens_again(tmp_path: Path) -> None:
    store = DiskStore(three_clients(tmp_path / "state.sqlite").path)
    store.put("0/client", {"a": torch.zeros(1)}, "anna")
    store.copy("0/client", "0/best")
    store.drop("0/client", "bert")
    store.drop("0/client", "nobody")
    store.put("0/best", {"a": torch.zeros(2)}, "dora")
    store.copy("0/client", "0/best")
    store.drop("0/server")
    store.commit({"round": 2})
    store.close()
    again = DiskStore(store.path)
    assert sorted(again.clients("0/best")) == ["anna", "cora"] and again.progress() == {"round": 2}
    found = again.get("0/best", "anna")
    assert found is not None and equal(found, {"a": torch.zeros(1)})
    again.close()


def test_a_commit_is_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "state.sqlite")
    assert store._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: the log is synced by every commit
    assert store._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_a_store_that_was_refused_can_be_opened_once_it_is_free(tmp_path: Path) -> None:
    first = DiskStore(tmp_path / "state.sqlite")
    first.commit({})
    first._database.execute("COMMIT")  # even between two transactions nobody else may write
    with pytest.raises(HansaError, match="another run is writing"):
        DiskStore(tmp_path / "state.sqlite")
    first.close()
    DiskStore(tmp_path / "state.sqlite").close()


@pytest.mark.parametrize("held", [0, 2000, 2**30])  # bytes that may wait: nothing, about three trees, everything
def test_a_store_is_the_same_however_much_waits_for_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(store_module, "HELD", held)
    there, here, draw = DiskStore(tmp_path / "state.sqlite"), MemoryStore(), random.Random(0)
    for step in range(300):
        name, client = draw.choice("ab"), draw.choice(["", "anna", "bert", "cora", "dora", "emil"])
        for store in (there, here):
            match step % 10:
                case 3:
                    store.drop(name, client)
                case 7 if step % 3 == 0:
                    store.copy("a", "b")
                case 9 if step % 4 == 0:
                    store.commit({"step": step})
                case _:
                    store.put(name, {"x": torch.full((100,), float(step))}, client)
        assert there._bytes == sum(map(len, there._held.values())) <= held and there._waiting <= there._held.keys()
        mine, known = there.get(name, client), here.get(name, client)
        assert (mine is None) == (known is None) and equal(mine or {}, known or {})
        assert sorted(there.clients(name)) == sorted(here.clients(name))
    there.commit({"step": 300})
    there.close()
    again = DiskStore(there.path)
    assert all(sorted(again.clients(name)) == sorted(here.clients(name)) for name in "ab")
    again.close()


def test_what_was_put_of_late_is_not_read_again_after_a_commit(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "state.sqlite")
    store.put("a", {"x": torch.ones(3)}, "anna")
    store.commit({})
    asked: list[str] = []
    store._database.set_trace_callback(asked.append)
    found = store.get("a", "anna")
    assert found is not None and equal(found, {"x": torch.ones(3)})
    assert not asked
    store.close()


class Away(torch.Tensor):
    """A tensor that says it lies on a device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


def test_what_lies_on_a_device_stays_there_as_it_was_put_and_is_written_as_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plain = DiskStore(tmp_path / "away.sqlite"), DiskStore(tmp_path / "plain.sqlite")
    whole = torch.arange(12.0).reshape(3, 4)
    leaf = whole.T.as_subclass(Away)  # which others may write to, in a layout of its own
    store.put("0/client", {"a": leaf}, "anna")
    plain.put("0/client", {"a": whole.T.contiguous()}, "anna")
    whole.zero_()
    found = store.get("0/client", "anna")
    assert found is not None and isinstance(found["a"], Away) and found["a"].is_contiguous()
    for one in (store, plain):
        one.commit({"round": 1})
    assert contents(store) == contents(plain)
    held = store.get("0/client", "anna")
    assert held is not None and held["a"] is found["a"]  # also after a commit: the next round asks for it
    monkeypatch.setattr(store_module, "HELD", 100)  # 48 bytes of numbers beside a header
    store.put("0/client", {"a": torch.ones(4, 3).as_subclass(Away)}, "bert")
    read = store.get("0/client", "anna")
    assert (
        read is not None
        and not isinstance(read["a"], Away)
        and torch.equal(read["a"], found["a"].as_subclass(torch.Tensor))
    )


def contents(store: DiskStore) -> list[tuple[object, ...]]:
    with sqlite3.connect(store.path) as database:
        return database.execute("SELECT name, client, digest, tree FROM trees ORDER BY name, client").fetchall()
