from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hansa.errors import HansaError
from hansa.io.store import DiskStore
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
