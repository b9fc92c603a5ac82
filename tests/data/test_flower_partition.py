"""The adapter for flwr-datasets' own partitioners, with the real package."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from hansa.data.arrays import dataset_from_arrays
from hansa.data.federation import build_federation
from hansa.data.partitions.flower import FlowerPartitioner
from hansa.errors import HansaError

pytestmark = pytest.mark.filterwarnings("ignore:The specified min_partition_size", "ignore:Specifying null_placement")
N = 200


def data():
    count = np.arange(N)
    return dataset_from_arrays(count[:, None].astype(float), count % 5, client=[f"site {i % 4}" for i in count])


def split(name: str, seed: int = 0, **options):
    return FlowerPartitioner(name, options).split(data(), np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("name", "options", "clients"),
    [
        ("IidPartitioner", {"num_partitions": 7}, 7),
        ("DirichletPartitioner", {"num_partitions": 5, "alpha": 0.5, "min_partition_size": 1}, 5),
        ("ExponentialPartitioner", {"num_partitions": 4}, 4),
        ("ShardPartitioner", {"num_partitions": 5, "num_shards_per_partition": 2}, 5),
        ("LinearPartitioner", {"num_partitions": 4}, 4),
        ("SizePartitioner", {"partition_sizes": [50, 150]}, 2),
    ],
)
def test_flower_partitions_keep_every_sample_once(name: str, options: dict, clients: int) -> None:
    pytest.importorskip("flwr_datasets")
    found = split(name, **options)
    assert len(found) == clients
    assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(N))


def test_natural_ids_name_the_clients() -> None:
    pytest.importorskip("flwr_datasets")
    found = split("NaturalIdPartitioner", partition_by="client")
    assert set(found) == {"site 0", "site 1", "site 2", "site 3"}
    assert all({f"site {number % 4}" for number in index} == {name} for name, index in found.items())


def test_the_run_seed_decides() -> None:
    pytest.importorskip("flwr_datasets")
    options = {"num_partitions": 5, "alpha": 0.3, "min_partition_size": 1}
    first, again, other = (split("DirichletPartitioner", seed, **options) for seed in (0, 0, 1))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_it_builds_a_federation() -> None:
    pytest.importorskip("flwr_datasets")
    piece = FlowerPartitioner("IidPartitioner", {"num_partitions": 4})
    assert hash(piece) == hash(FlowerPartitioner("IidPartitioner", {"num_partitions": 9}))
    assert sum(build_federation(data(), piece, seed=0).sizes().values()) == 160


@pytest.mark.filterwarnings("ignore:Classes")
def test_samples_that_a_partitioner_leaves_out_are_noted() -> None:
    pytest.importorskip("flwr_datasets")
    piece = FlowerPartitioner("PathologicalPartitioner", {"num_partitions": 2, "num_classes_per_partition": 2})
    federation = build_federation(data(), piece, seed=0)
    left = 160 - sum(federation.sizes().values())
    assert left > 0
    assert f"The partition leaves out {left} of 160 training samples." in federation.notes


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("DirichletPartitoner", {}, "Did you mean 'DirichletPartitioner'?"),
        ("VerticalEvenPartitioner", {}, "There is no partitioner 'VerticalEvenPartitioner' that divides samples."),
        ("DirichletPartitioner", {"num_partition": 3}, "Did you mean 'num_partitions'?"),
        ("DirichletPartitioner", {}, "refuses its options"),
        ("DirichletPartitioner", {"num_partitions": 90, "alpha": 0.1, "min_partition_size": 50}, "failed"),
        ("NaturalIdPartitioner", {"partition_by": "domain"}, "failed"),
    ],
)
def test_what_goes_wrong_is_told(name: str, options: dict, sentence: str) -> None:
    pytest.importorskip("flwr_datasets")
    with pytest.raises(HansaError) as caught:
        split(name, **options)
    assert sentence in str(caught.value)


def test_a_real_target_is_refused_only_by_partitioners_of_labels() -> None:
    pytest.importorskip("flwr_datasets")
    count = np.arange(20)
    real = dataset_from_arrays(count[:, None], count / 2, client=count % 4, target="real")
    by_label = FlowerPartitioner("DirichletPartitioner", {"num_partitions": 2, "alpha": 0.5})
    with pytest.raises(HansaError, match="The DirichletPartitioner of flwr-datasets divides by class"):
        by_label.split(real, np.random.default_rng(0))
    for name, options in (
        ("IidPartitioner", {"num_partitions": 4}),
        ("NaturalIdPartitioner", {"partition_by": "client"}),
    ):
        found = FlowerPartitioner(name, options).split(real, np.random.default_rng(0))
        assert sorted(np.concatenate(list(found.values())).tolist()) == count.tolist()


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(HansaError, match=r"pip install 'hansa\[flower\]'"):
        split("IidPartitioner", num_partitions=2)
