"""The federation: who holds what, what is kept for testing, and that nothing is copied or lost."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.data import TestSplit, build_federation, dataset_from_arrays, federation_from_clients
from hansa.data.partitions.label import Dirichlet, Iid
from hansa.data.partitions.natural import Natural
from hansa.data.sources.npz import Npz
from hansa.data.split import stratified_cut
from hansa.data.targets import Real
from hansa.errors import HansaError


def data_of(count: int = 60, classes: int = 3, test: int = 0, clients: int = 5, **more):
    """Every sample is its own number, so one can see where it went."""
    x, y = np.arange(count + test)[:, None].astype(float), np.arange(count + test) % classes
    more = {"client": [f"c{number % clients}" for number in range(count)], **more}
    if test:
        more |= {"x_test": x[count:], "y_test": y[count:]}
    return dataset_from_arrays(x[:count], y[:count], **more)


def real_data(count: int = 60, **more):
    """As `data_of`, with the sample's number and its half as two real targets."""
    x = np.arange(count)[:, None].astype(float)
    more = {"client": [f"c{number % 5}" for number in range(count)], **more}
    return dataset_from_arrays(x, np.concatenate([x, x / 2], axis=1), target="real", **more)


def ids(part) -> list[int]:
    return [] if part is None else part.x[:, 0].int().tolist()


def everything(federation) -> list[int]:
    clients = federation.clients.values()
    own = [number for c in clients for number in ids(c.train) + ids(c.test) + ids(c.validation)]
    common = [] if any(c.validation is not None for c in clients) else ids(federation.validation)
    return sorted(own + ids(federation.test) + common)


def test_the_source_test_set_is_the_global_one() -> None:
    federation = build_federation(data_of(test=12), Iid(4), seed=0)
    assert ids(federation.test) == list(range(60, 72))
    assert all(client.test is None for client in federation.clients.values())
    assert everything(federation) == list(range(72))


def test_a_global_test_set_is_cut_with_equal_class_shares() -> None:
    federation = build_federation(data_of(), Iid(4), seed=0, test=TestSplit("global", fraction=0.25))
    assert torch.bincount(federation.test.y).tolist() == [5, 5, 5]
    assert everything(federation) == list(range(60))
    assert all(client.test is None for client in federation.clients.values())


def test_a_global_cut_leaves_every_client_a_sample() -> None:
    data = data_of(20, 2, clients=20)
    with pytest.raises(HansaError, match="every client has one sample only"):
        build_federation(data, Natural(), seed=0)
    few = data_of(30, 2, client=["lone"] + ["many"] * 29)
    for seed in range(20):
        assert set(build_federation(few, Natural(), seed=seed, test=TestSplit(fraction=0.6)).clients) == {
            "lone",
            "many",
        }


def test_local_test_sets_are_cut_from_every_client() -> None:
    federation = build_federation(data_of(), Dirichlet(6, 0.5, 2), seed=0, test=TestSplit("local", fraction=0.3))
    assert federation.test is None
    assert everything(federation) == list(range(60))
    for client in federation.clients.values():
        total = client.size + client.test_size
        assert client.test_size == min(max(1, round(0.3 * total)), total - 1)


@pytest.mark.parametrize(("small", "names"), [("keep", ["big", "small"]), ("drop", ["big"])])
def test_small_clients_are_kept_without_a_test_set_or_dropped(small: str, names: list[str]) -> None:
    data = data_of(12, 2, client=["small"] * 3 + ["big"] * 9)
    federation = build_federation(data, Natural(), seed=0, test=TestSplit("local", min_samples=4, small=small))
    assert list(federation.clients) == names
    if small == "keep":
        assert federation.clients["small"].test is None and federation.clients["small"].size == 3
        assert federation.notes == ("1 clients have no test samples of their own.",)
    else:
        assert "1 clients with too few samples" in federation.notes[0]


def test_samples_per_class_to_train_on() -> None:
    federation = build_federation(data_of(), Iid(2), seed=0, test=TestSplit("local", train_per_class=3))
    assert federation.label_counts().tolist() == [[3, 3, 3], [3, 3, 3]]
    assert everything(federation) == list(range(60))


def test_test_samples_with_the_clients_names_are_their_own() -> None:
    names = [f"c{number % 5}" for number in range(12)]
    data = data_of(test=12, client_test=names)
    for kind, common in (("auto", 12), ("both", 12), ("local", 0), ("global", 12)):
        federation = build_federation(data, Natural(), seed=0, test=TestSplit(kind))
        assert len(ids(federation.test)) == common
        own = {name: ids(client.test) for name, client in federation.clients.items()}
        expected = {name: [60 + n for n in range(12) if names[n] == name] if kind != "global" else [] for name in own}
        assert own == expected
        assert sum(federation.sizes().values()) == 60


def test_test_samples_of_other_people_stay_global() -> None:
    data = data_of(test=12, client_test=["stranger"] * 12)
    federation = build_federation(data, Natural(), seed=0)
    assert len(ids(federation.test)) == 12
    assert all(client.test is None for client in federation.clients.values())
    local = build_federation(data, Natural(), seed=0, test=TestSplit("local"))
    assert all(client.test_size > 0 for client in local.clients.values())
    assert "The source's own test set is not used." in local.notes


def test_both_kinds_of_test_set() -> None:
    federation = build_federation(data_of(test=12), Iid(4), seed=0, test=TestSplit("both"))
    assert len(ids(federation.test)) == 12
    assert all(client.test_size == 3 for client in federation.clients.values())
    assert everything(federation) == list(range(72))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(4, 60), st.integers(1, 12), st.sampled_from(["auto", "global", "local", "both"]), st.floats(0.05, 0.9),
    st.sampled_from([0.0, 0.1, 0.5, 0.9]), st.booleans(), st.integers(0, 3),
)  # fmt: skip
def test_no_sample_is_lost_or_used_twice(
    count: int, clients: int, kind: str, fraction: float, validation: float, real: bool, seed: int
) -> None:
    data = real_data(count, client=None) if real else data_of(count, 2, client=None)
    try:
        split = TestSplit(kind, fraction, validation=validation)
        federation = build_federation(data, Iid(clients), seed=seed, test=split)
    except HansaError as error:
        if "validation" in str(error):
            without = build_federation(data, Iid(clients), seed=seed, test=TestSplit(kind, fraction))
            assert max(without.sizes().values()) == 1
        else:
            assert clients > count * (1 - fraction) - 1 or (kind != "global" and count < 2 * clients), error
        return
    assert everything(federation) == list(range(count))
    assert min(federation.sizes().values()) >= 1
    assert (federation.validation is not None) == (validation > 0 and kind != "local")


@pytest.mark.parametrize("kind", ["auto", "global", "local", "both"])
@pytest.mark.parametrize("named", [False, True])
def test_test_sets_and_clients_do_not_depend_on_validation(kind: str, named: bool) -> None:
    def held(validation: float) -> tuple:
        split = TestSplit(kind, validation=validation)
        federation = build_federation(data_of(), Natural() if named else Iid(5), seed=3, test=split)
        clients = federation.clients.items()
        tests = {name: ids(client.test) for name, client in clients}
        return ids(federation.test), tests, {n: sorted(ids(c.train) + ids(c.validation)) for n, c in clients}

    without, some = held(0.0), held(0.25)
    assert some[:2] == without[:2]
    if kind in ("local", "both"):
        assert some[2] == without[2]  # what a client validates on, it trained on before


def test_every_tested_client_validates_on_a_share_of_its_training_samples() -> None:
    split = TestSplit("both", validation=0.25)
    federation = build_federation(data_of(test=12), Natural(), seed=0, test=split)
    for client in federation.clients.values():  # of 12 samples 2 are tested on, and a quarter of the other 10 is 2.5
        assert (client.size, client.test_size, client.validation_size) == (8, 2, 2)
        assert len(client.validation) == 2
    together = [number for client in federation.clients.values() for number in ids(client.validation)]
    assert sorted(together) == ids(federation.validation)


def test_a_global_validation_set_takes_its_share_of_many_tiny_clients() -> None:
    names = [f"t{number % 30}" for number in range(60)]  # two samples each, of which a tenth rounds to none
    data = data_of(test=12, client=names)
    federation = build_federation(data, Natural(), seed=0, test=TestSplit("global", validation=0.1))
    assert len(federation.validation) == 6
    assert all(client.validation is None and client.size >= 1 for client in federation.clients.values())
    with pytest.raises(HansaError, match="No validation set can be cut"):
        lone = data_of(6, 2, test=2, client=list("abcdef"))
        build_federation(lone, Natural(), seed=0, test=TestSplit("global", validation=0.1))


def test_every_draw_follows_the_seed() -> None:
    def cut(seed: int, data, partition, **split) -> tuple:
        federation = build_federation(data, partition, seed=seed, test=TestSplit(**split))
        clients = federation.clients.values()
        local = [[ids(getattr(c, part)) for c in clients] for part in ("train", "test", "validation")]
        return *local, ids(federation.test), ids(federation.validation)

    own = [f"c{number}" for number in range(5)]
    # In each case one draw alone can differ: everything else is given.
    cases = {
        "partition": (data_of(test=12), Iid(4), {"kind": "global"}, 0),
        "global test": (data_of(), Natural(), {"kind": "global"}, 3),
        "local test": (data_of(test=12), Natural(), {"kind": "local"}, 1),
        "validation of each": (data_of(test=5, client_test=own), Natural(), {"kind": "local", "validation": 0.3}, 2),
        "validation of all": (data_of(test=12), Natural(), {"kind": "global", "validation": 0.3}, 4),
    }
    for draw, (data, partition, split, part) in cases.items():
        first, again, other = (cut(seed, data, partition, **split)[part] for seed in (1, 1, 2))
        assert first == again, draw
        assert first != other, draw


def test_clients_come_in_order_of_name_and_know_their_labels() -> None:
    federation = build_federation(data_of(test=3), Natural(), seed=0)
    assert list(federation.clients) == ["c0", "c1", "c2", "c3", "c4"]
    counts = federation.label_counts()
    for row, client in zip(counts, federation.clients.values(), strict=True):
        assert row.tolist() == torch.bincount(client.train.y, minlength=3).tolist()
    assert federation.describe() == (
        "5 clients with 60 training samples (12 to 12 each, median 12) of 3 classes; 3 global test samples"
    )


def test_real_targets_are_divided_tested_and_described() -> None:
    federation = build_federation(real_data(), Iid(5), seed=0, test=TestSplit("both", validation=0.1))
    assert (federation.target, federation.outputs) == (Real(("target-0", "target-1")), 2)
    for client in federation.clients.values():
        assert client.train.y.dtype == torch.float32 and client.train.y.shape == (client.size, 2)
        assert torch.equal(client.train.y[:, 1], client.train.x[:, 0] / 2)  # labels stay with their samples
        assert torch.equal(client.test.y[:, 0], client.test.x[:, 0])
    assert everything(federation) == list(range(60))
    means, deviations = federation.target_moments()
    for row, client in enumerate(federation.clients.values()):
        assert means[row].tolist() == pytest.approx(client.train.y.double().mean(dim=0).tolist())
        assert deviations[row].tolist() == pytest.approx(client.train.y.double().std(dim=0, correction=0).tolist())
    # Of 60 samples 12 are the global test set; of 9 or 10 each then 2 are tested on, and 1 is validated on.
    assert federation.describe() == (
        "5 clients with 33 training samples (6 to 7 each, median 7) "
        "of the real targets target-0, target-1; 12 global test samples; 5 global validation samples; "
        "5 clients with test samples of their own"
    )


def test_what_is_about_classes_refuses_a_real_target_by_name() -> None:
    federation = build_federation(real_data(), Natural(), seed=0)
    for ask in (lambda: federation.num_classes, lambda: federation.class_names, federation.label_counts):
        with pytest.raises(
            HansaError, match=r"needs classes, and the target \('target-0', 'target-1'\) is real-valued"
        ):
            ask()
    with pytest.raises(HansaError, match=r"The 'train_per_class' of data\.test needs classes"):
        build_federation(real_data(), Natural(), seed=0, test=TestSplit("local", train_per_class=2))


@dataclass(frozen=True)
class Fixed:
    parts: dict = field(hash=False)

    def split(self, data, rng):
        return {name: np.asarray(index) for name, index in self.parts.items()}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"a": [0], "b": []}, "Client 'b' is left without samples by Fixed"),
        ({}, "made no clients"),
        ({"a": [0, 1], "b": [1]}, "gives sample 1 to more than one client"),
        ({"a": [0, 99]}, "names a sample outside 0 to 59"),
    ],
)
def test_a_partition_that_breaks_its_promise_is_told(parts: dict, sentence: str) -> None:
    with pytest.raises(HansaError, match=sentence):
        build_federation(data_of(test=3), Fixed(parts), seed=0)


def test_ten_thousand_clients_hold_no_copies() -> None:
    data = dataset_from_arrays(np.zeros((50_000, 200)), np.arange(50_000) % 10, x_test=np.zeros((1, 200)), y_test=[0])
    tracemalloc.start()
    federation = build_federation(data, Iid(10_000), seed=0)
    sizes = federation.sizes()
    label_counts = federation.label_counts()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(sizes), label_counts.sum()) == (10_000, 50_000)
    assert peak < 20e6 < data.train.x.nbytes
    federation.clients["client-0000"].train.x.fill_(1)
    assert data.train.x.max() == 0


def test_a_memory_mapped_array_is_cut_and_divided_without_a_copy(tmp_path) -> None:
    written = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (20_000, 250))
    written[:, 0] = np.arange(20_000)
    written.flush()
    data = dataset_from_arrays(np.load(tmp_path / "x.npy", mmap_mode="r"), np.arange(20_000) % 10)
    tracemalloc.start()
    split = TestSplit("both", fraction=0.01, validation=0.01)
    federation = build_federation(data, Dirichlet(100, 0.5), seed=0, test=split)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6 < data.train.x.nbytes
    assert everything(federation) == list(range(20_000))


def test_clients_with_one_class_are_accepted_where_classes_are_named() -> None:
    one = {"a": ([[1.0], [2.0]], ["ill", "ill"])}
    federation = federation_from_clients(one, class_names=("ill", "well"))
    assert (federation.label_counts().tolist(), federation.num_classes) == ([[2, 0]], 2)
    with pytest.raises(HansaError, match="The federation has one class only"):
        federation_from_clients(one)


def test_clients_with_real_targets() -> None:
    clients = {"a": ([[1.0], [2.0]], [0.5, 2.0], [[3.0]], [1.0]), "b": ([[1.0, 2.0]], [3.0])}
    federation = federation_from_clients(clients, target="real")
    assert federation.target == Real()
    assert federation.clients["a"].train.y.tolist() == [[0.5], [2.0]]
    assert federation.clients["a"].test.y.tolist() == [[1.0]]
    with pytest.raises(HansaError, match=r'fractions such as 0\.5.* set target = "real"'):
        federation_from_clients(clients)


def test_clients_of_different_widths() -> None:
    rng = np.random.default_rng(0)
    federation = federation_from_clients(
        {
            "wide": (rng.random((6, 9)), list("ababab"), rng.random((2, 9)), list("ab")),
            "narrow": (rng.random((4, 2)), list("acac")),
        }
    )
    assert federation.class_names == ("a", "b", "c")
    assert list(federation.clients) == ["narrow", "wide"]
    assert federation.clients["narrow"].train.x.shape == (4, 2)
    assert federation.clients["wide"].test.y.tolist() == [0, 1]
    assert federation.label_counts().tolist() == [[2, 0, 2], [3, 3, 0]]


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ({}, "at least one client"),
        ({"a": ([[1.0]],)}, "Client 'a' must be"),
        ({"a": ([[1.0], [2.0], [3.0]], [0, 1])}, "Client 'a' has 3 train inputs and 2 labels"),
        ({"a": ([[1.0], [float("inf")]], [0, 1])}, "The train input of client 'a' has a NaN or Inf in row 1"),
        ({"a": ([[1.0], [2.0]], [0, 0])}, "The federation has one class only"),
        ({"a": ([[1.0], [2.0]], [0, 1], [[1.0, 2.0]], [1])}, "Client 'a' has training inputs of shape"),
    ],
)
def test_bad_clients_get_a_sentence(clients: dict, sentence: str) -> None:
    with pytest.raises(HansaError, match=sentence):
        federation_from_clients(clients)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kind": "lokal"}, "Got 'lokal'. Did you mean 'local'?"),
        ({"fraction": 0}, "The 'fraction' of TestSplit must be a number between 0 and 1. Got 0."),
        ({"min_samples": 1}, "must be a whole number >= 2. Got 1."),
        ({"validation": 1.0}, "The 'validation' of TestSplit must be a number at least 0 and below 1. Got 1.0."),
        ({"train_per_class": 3}, "needs kind 'local' or 'both'. Got kind 'auto'."),
    ],
)
def test_bad_test_splits_get_a_sentence(arguments: dict, sentence: str) -> None:
    with pytest.raises(HansaError) as caught:
        TestSplit(**arguments)
    assert sentence in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=5, max_size=60), st.floats(0.05, 0.95))
def test_a_stratified_cut_keeps_shares(labels: list[int], fraction: float) -> None:
    y = np.asarray(labels)
    train, test = stratified_cut(y, fraction, np.random.default_rng(0))
    assert sorted([*train, *test]) == list(range(len(y)))
    assert set(y[train]) == set(y)
    classes, counts = np.unique(y, return_counts=True)
    kept = np.maximum(fraction * counts - (counts - 1), 0).sum()  # a class keeps a sample, and others give for it
    for label, count in zip(classes, counts, strict=True):
        assert abs((y[test] == label).sum() - fraction * count) <= 1.5 + kept


def test_real_writers_of_both_kinds(shared_data) -> None:
    own = build_federation(Npz(str(shared_data("femnist110.npz"))).load(), Natural(), seed=0)
    assert len(own.clients) == 110 and sum(client.test_size for client in own.clients.values()) == 1_695
    strangers = Npz(str(shared_data("mnist.npz")), clients_from=str(shared_data("mnist_writers.npz"))).load()
    federation = build_federation(strangers, Natural(), seed=0)
    assert len(federation.clients) == 539 and len(federation.test) == 10_000
    assert all(client.test is None for client in federation.clients.values())
