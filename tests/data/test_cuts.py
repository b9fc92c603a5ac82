"""Test samples that are held out together: clients, domains, groups, and what comes later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hansa.data import TestSplit, build_federation, dataset_from_arrays
from hansa.data.dataset import Dataset
from hansa.data.federation import Federation
from hansa.data.partitions.label import Iid
from hansa.data.partitions.natural import Domain, Natural
from hansa.data.sources.table import Csv
from hansa.errors import HansaError

COUNT = 60
CLIENT = np.array([f"c{number % 5}" for number in range(COUNT)])
DOMAIN = np.array([("art", "photo", "sketch")[number % 3] for number in range(COUNT)])
GROUP = np.array([f"p{number // 4}" for number in range(COUNT)])
TIME = np.arange(COUNT)[::-1].astype(float)  # the first sample is the latest


def data() -> Dataset:
    x, y = np.arange(COUNT)[:, None].astype(float), np.arange(COUNT) % 2
    return dataset_from_arrays(x, y, CLIENT, domain=DOMAIN, group=GROUP, time=TIME)


def rows(part) -> list[int]:
    return [] if part is None else part.x[:, 0].int().tolist()


def trained(found: Federation) -> list[int]:
    return sorted(row for client in found.clients.values() for row in rows(client.train))


def test_named_clients_are_only_tested_on() -> None:
    test = TestSplit(by="client", held_out=("c1", "c3"), validation=0.25)
    found = build_federation(data(), Natural(), seed=0, test=test)
    assert list(found.clients) == ["c0", "c2", "c4"]
    assert set(CLIENT[rows(found.test)]) == {"c1", "c3"} and len(rows(found.test)) == 24
    assert set(CLIENT[trained(found) + rows(found.validation)]) == {"c0", "c2", "c4"}
    assert all("read as they are" in note for note in found.notes)  # of the cut there is nothing to tell


def test_a_share_of_clients_is_drawn_from_the_seed_under_any_partition() -> None:
    test = TestSplit(by="client", fraction=0.25, kind="both")
    found = [build_federation(data(), Iid(8), seed=seed, test=test) for seed in (0, 0, 1)]
    assert [len(one.clients) for one in found] == [6, 6, 6]
    assert list(found[0].clients) == list(found[1].clients) != list(found[2].clients)
    own = [row for client in found[0].clients.values() for row in rows(client.test)]
    assert own and sorted(own + trained(found[0]) + rows(found[0].test)) == list(range(COUNT))


def test_a_domain_is_only_tested_on() -> None:
    found = build_federation(data(), Domain(2), seed=0, test=TestSplit(by="domain", held_out=("photo",)))
    assert set(DOMAIN[rows(found.test)]) == {"photo"} and set(DOMAIN[trained(found)]) == {"art", "sketch"}
    assert not any("photo" in name for name in found.clients)


@pytest.mark.parametrize("kind", ["global", "local", "both"])
def test_groups_are_never_torn(kind: str) -> None:
    test = TestSplit(kind=kind, by="group", fraction=0.3, validation=0.3)  # type: ignore[arg-type]
    found = build_federation(data(), Iid(2), seed=0, test=test)
    for client in found.clients.values():
        parts = [set(GROUP[rows(part)]) for part in (client.train, client.test, client.validation)]
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    if kind != "local":
        held = set(GROUP[rows(found.test)])
        assert held and not held & set(GROUP[trained(found)])


def test_the_latest_samples_are_tested_on() -> None:
    found = build_federation(data(), Natural(), seed=0, test=TestSplit(by="time", fraction=0.25, kind="global"))
    assert sorted(rows(found.test)) == list(range(15))
    local = build_federation(data(), Natural(), seed=0, test=TestSplit(by="time", kind="local", validation=0.2))
    for client in local.clients.values():
        latest, middle, earliest = (TIME[rows(part)] for part in (client.test, client.validation, client.train))
        assert latest.min() > middle.max() and middle.min() > earliest.max()


def test_what_is_the_same_time_stays_together() -> None:
    x, day = np.arange(12)[:, None].astype(float), np.repeat(np.array(["2024-01-01", "2024-02-01"], "datetime64[D]"), 6)
    made = dataset_from_arrays(x, np.arange(12) % 2, time=day)
    found = build_federation(made, Iid(2), seed=0, test=TestSplit(by="time", fraction=0.1))
    assert sorted(rows(found.test)) == list(range(6, 12))


def test_a_table_tells_groups_and_times_that_no_model_sees(tmp_path: Path) -> None:
    lines = [f"{row},{'yes' if row % 2 else 'no'},p{row // 2},2024-01-{row + 1:02d}" for row in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["a,label,patient,day", *lines]))
    made = Csv(str(tmp_path / "t.csv"), "label", group="patient", time="day", scale="none").load()
    assert made.train.x.shape == (20, 1) and made.group is not None and made.time is not None
    assert made.group[:3].tolist() == ["p0", "p0", "p1"] and np.diff(made.time).tolist() == [86400.0] * 19
    found = build_federation(made, Iid(2), seed=0, test=TestSplit(by="time", fraction=0.2))
    assert sorted(rows(found.test)) == [16, 17, 18, 19]


def test_cuts_that_cannot_be_are_told_in_a_sentence() -> None:
    bare = dataset_from_arrays(np.zeros((4, 1)), np.arange(4) % 2)
    for test, says in (
        (TestSplit(by="group"), "the source tells none: set the source's 'group'"),
        (TestSplit(by="domain"), "the source tells none: set 'domain'"),
        (TestSplit(by="client", held_out=("c9",)), "There is no client 'c9' to hold out"),
    ):
        with pytest.raises(HansaError, match=says):
            build_federation(bare, Iid(2), seed=0, test=test)
    with pytest.raises(HansaError, match="leaves none to train on"):
        build_federation(data(), Domain(), seed=0, test=TestSplit(by="domain", held_out=("art", "photo", "sketch")))
    with pytest.raises(HansaError, match="kind 'local' has none"):
        TestSplit(by="client", kind="local")
    with pytest.raises(HansaError, match="names clients or domains"):
        TestSplit(held_out=("a",))
