"""Partitions end, keep every sample once, honour minimum sizes or say why not, and follow the seed."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.data.arrays import dataset_from_arrays
from hansa.data.dataset import Dataset
from hansa.data.partitions.dealing import dirichlet, proportional, raise_to_minimum
from hansa.data.partitions.label import ClassesPerClient, Dirichlet, Iid, Shards
from hansa.data.partitions.natural import Domain, DomainLabel, Natural
from hansa.data.partitions.size import LogNormal
from hansa.errors import HansaError


def data_of(labels: list[int], clients: int = 3, domains: int = 2) -> Dataset:
    y = np.asarray(labels)
    y[:2] = (0, 1)
    count = np.arange(len(y))
    return dataset_from_arrays(count[:, None].astype(float), y, client=count % clients, domain=count % domains)


labels = st.lists(st.integers(0, 4), min_size=4, max_size=80)
clients = st.integers(1, 20)
alphas = st.sampled_from([0.0, 1e-300, 1e-6, 0.1, 1.0, 100.0, 1e9])
partitions = st.one_of(
    st.builds(Iid, clients),
    st.builds(Dirichlet, clients, alphas, st.integers(1, 4), st.booleans()),
    st.builds(ClassesPerClient, clients, st.integers(1, 5), st.integers(1, 3)),
    st.builds(Shards, clients, st.integers(1, 4)),
    st.builds(LogNormal, clients, st.sampled_from([0.0, 1.0, 5.0, 1000.0]), st.integers(1, 4)),
    st.builds(Natural),
    st.builds(Domain, st.integers(1, 5)),
    st.builds(DomainLabel, st.integers(2, 5), alphas, st.integers(1, 3)),
)


@settings(max_examples=400, deadline=None)
@given(labels, partitions, st.integers(0, 3))
def test_every_sample_goes_to_exactly_one_client(y: list[int], partition, seed: int) -> None:
    data = data_of(y)
    try:
        found = partition.split(data, np.random.default_rng(seed))
    except HansaError as error:
        assert str(error).endswith(".") and "\n" not in str(error)
        return
    assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(len(y)))
    for index in found.values():
        assert len(index) >= getattr(partition, "min_samples", 1)
        assert np.all(np.diff(index) > 0)
    again = partition.split(data, np.random.default_rng(seed))
    assert list(found) == list(again)
    assert all(np.array_equal(found[name], again[name]) for name in found)


@settings(max_examples=200, deadline=None)
@given(labels, clients, st.integers(1, 6), alphas.filter(bool), st.booleans())
def test_dirichlet_and_lognormal_refuse_only_what_is_impossible(y, count, minimum, alpha, balanced) -> None:
    data, room = data_of(y), count * minimum <= len(y)
    for partition in (Dirichlet(count, alpha, minimum, balanced), LogNormal(count, 1.0, minimum)):
        if room:
            assert len(partition.split(data, np.random.default_rng(0))) == count
        else:
            with pytest.raises(HansaError, match=f"there are only {len(y)} training samples"):
                partition.split(data, np.random.default_rng(0))


@settings(max_examples=200, deadline=None)
@given(labels, st.integers(1, 12), st.integers(1, 5), st.integers(0, 5))
def test_classes_per_client_is_exact(y: list[int], count: int, classes: int, seed: int) -> None:
    data = data_of(y)
    try:
        found = ClassesPerClient(count, classes).split(data, np.random.default_rng(seed))
    except HansaError:
        sizes = np.unique(data.train.y, return_counts=True)[1]
        possible = len(sizes) <= count * classes <= np.minimum(sizes, count).sum() and classes <= len(sizes)
        assert not possible
        return
    assert {len(np.unique(data.train.y[index])) for index in found.values()} == {classes}


@settings(max_examples=100, deadline=None)
@given(labels, st.integers(1, 20), st.integers(1, 3))
def test_alpha_zero_gives_one_class_each(y: list[int], count: int, minimum: int) -> None:
    data = data_of(y)
    sizes = np.unique(data.train.y, return_counts=True)[1]
    partition = Dirichlet(count, 0.0, minimum)
    possible = len(sizes) <= count <= (sizes // minimum).sum() and sizes.min() >= minimum
    if not possible:
        with pytest.raises(HansaError):
            partition.split(data, np.random.default_rng(0))
        return
    found = partition.split(data, np.random.default_rng(0))
    assert all(len(np.unique(data.train.y[index])) == 1 for index in found.values())


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1e6), st.integers(1, 50), st.integers(0, 5))
def test_dirichlet_shares_are_finite_and_add_up(alpha: float, count: int, seed: int) -> None:
    shares = dirichlet(np.full(count, alpha), np.random.default_rng(seed))
    assert np.all(shares >= 0)
    assert shares.sum() == pytest.approx(1.0)


def test_dirichlet_shares_have_the_right_moments() -> None:
    alpha = np.asarray([0.5, 1.0, 2.5])
    rng = np.random.default_rng(0)
    draws = np.stack([dirichlet(alpha, rng) for _ in range(20_000)])
    mean = alpha / alpha.sum()
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.01)
    np.testing.assert_allclose(draws.var(axis=0), mean * (1 - mean) / (alpha.sum() + 1), atol=0.005)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(lambda w: sum(w) > 1e-3), st.integers(0, 1000))
def test_proportional_adds_up(weights: list[float], total: int) -> None:
    counts = proportional(np.asarray(weights), total)
    assert counts.sum() == total
    assert counts.min() >= 0
    assert np.all(np.abs(counts - total * np.asarray(weights) / sum(weights)) <= 1.01)


def test_raising_to_a_minimum_moves_no_more_than_needed() -> None:
    owner = np.asarray([0] * 10 + [1] * 5)
    moved = raise_to_minimum(owner, 4, 2, np.random.default_rng(0))
    assert np.bincount(moved).min() >= 2
    assert (moved != owner).sum() == 4


def expected_classes(alpha: float, classes: int, samples: int) -> float:
    """Distinct classes among samples of a Dirichlet-multinomial with concentration α / classes for each class."""
    own = alpha / classes
    absent = (
        math.lgamma(alpha)
        + math.lgamma(alpha - own + samples)
        - math.lgamma(alpha - own)
        - math.lgamma(alpha + samples)
    )
    return classes * (1 - math.exp(absent))


def test_published_setting_500_clients_of_100_images() -> None:
    y = np.repeat(np.arange(100), 500)
    data = dataset_from_arrays(np.zeros((50_000, 1)), y)
    for alpha in (0.0, 0.5, 10.0, 1000.0):
        found = Dirichlet(500, alpha, balanced=True).split(data, np.random.default_rng(0))
        assert {len(index) for index in found.values()} == {100}
        held = np.mean([len(np.unique(y[index])) for index in found.values()])
        # A client that finds a class used up takes others, so the last clients hold a few classes more than drawn.
        assert held == pytest.approx(expected_classes(alpha, 100, 100) if alpha else 1.0, rel=0.25 if alpha else 0)


def test_small_alpha_is_more_skewed() -> None:
    data = data_of([0, 1, 2, 3, 4] * 200)
    held = [
        np.mean(
            [len(np.unique(data.train.y[i])) for i in Dirichlet(20, a).split(data, np.random.default_rng(0)).values()]
        )
        for a in (0.01, 0.3, 100.0)
    ]
    assert held[0] < 2 < held[1] < 4.5 < held[2]


def test_shards_hold_few_classes_and_equal_sizes() -> None:
    data = data_of([0, 1, 2, 3, 4] * 40)
    found = Shards(10, 2).split(data, np.random.default_rng(0))
    assert {len(index) for index in found.values()} == {20}
    assert max(len(np.unique(data.train.y[index])) for index in found.values()) <= 3


def test_lognormal_sizes_spread_with_sigma() -> None:
    data = dataset_from_arrays(np.zeros((20_000, 1)), np.arange(20_000) % 2)
    sizes = np.asarray([len(i) for i in LogNormal(500, 1.0).split(data, np.random.default_rng(0)).values()])
    assert sizes.mean() == 40
    assert np.log(sizes).std() == pytest.approx(1.0, abs=0.15)
    equal = LogNormal(500, 0.0).split(data, np.random.default_rng(0))
    assert {len(index) for index in equal.values()} == {40}


def test_client_names_sort_as_numbers() -> None:
    data = dataset_from_arrays(np.zeros((2000, 1)), np.arange(2000) % 2)
    assert list(Iid(10).split(data, np.random.default_rng(0)))[:2] == ["client-000", "client-001"]
    names = list(Iid(1500).split(data, np.random.default_rng(0)))
    assert names[0] == "client-0000"
    assert names == sorted(names)


def test_natural_leaves_out_small_clients_and_keeps_names() -> None:
    client = np.asarray(["ann"] * 5 + ["bob"] * 1 + ["cat"] * 3)
    data = dataset_from_arrays(np.zeros((9, 1)), np.arange(9) % 2, client=client)
    assert list(Natural().split(data, np.random.default_rng(0))) == ["ann", "bob", "cat"]
    assert list(Natural(min_samples=2).split(data, np.random.default_rng(0))) == ["ann", "cat"]
    chosen = {tuple(Natural(max_clients=2).split(data, np.random.default_rng(seed))) for seed in range(20)}
    assert chosen == {("ann", "bob"), ("ann", "cat"), ("bob", "cat")}


def test_domain_clients_stay_within_their_domain() -> None:
    data = data_of([0, 1, 2] * 40)
    found = Domain(clients_per_domain=3, samples_per_class=4).split(data, np.random.default_rng(0))
    assert list(found) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
    for name, index in found.items():
        assert set(data.domain[index]) == {name[0]}
        assert max(np.unique(data.train.y[index], return_counts=True)[1]) == 4
    assert list(Domain().split(data, np.random.default_rng(0))) == ["0", "1"]


def test_domain_label_with_one_client_a_domain_draws_label_shares() -> None:
    data = data_of([0, 1, 2] * 200)
    found = DomainLabel(1, alpha=0.01, samples_per_class=20).split(data, np.random.default_rng(1))
    for name, index in found.items():
        counts = np.bincount(data.train.y[index], minlength=3)
        assert set(data.domain[index]) == {name}
        assert counts.max() > 0.8 * counts.sum() and counts.sum() <= 60


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Iid(0), "The 'clients' of Iid must be a whole number >= 1. Got 0."),
        (lambda: Iid(True), "The 'clients' of Iid must be a whole number >= 1. Got True."),
        (lambda: Dirichlet(alpha=-1), "The 'alpha' of Dirichlet must be a number >= 0. Got -1."),
        (lambda: Dirichlet(alpha=float("nan")), "The 'alpha' of Dirichlet must be a number >= 0. Got nan."),
        (lambda: LogNormal(sigma=float("inf")), "The 'sigma' of LogNormal must be a number >= 0. Got inf."),
        (lambda: Natural(max_clients=0), "The 'max_clients' of Natural must be a whole number >= 1. Got 0."),
        (lambda: DomainLabel(1), "unless 'samples_per_class' is set"),
    ],
)
def test_bad_settings_get_a_sentence(build, sentence: str) -> None:
    with pytest.raises(HansaError) as caught:
        build()
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        (Iid(100), "Iid cannot give 100 clients at least 1 sample each: there are only 12 training samples"),
        (Shards(6, 3), "there are only 12 training samples"),
        (Dirichlet(2, 0), "3 classes need at least as many clients. Got 2"),
        (ClassesPerClient(1, 2), "too few for all 3 classes"),
        (ClassesPerClient(4, 9), "must be at most the 3 there are. Got 9."),
        (Natural(min_samples=50), "No client has 'min_samples' = 50 samples"),
        (Domain(50), "Domain '0' cannot give 50 clients"),
    ],
)
def test_the_impossible_is_refused(partition, sentence: str) -> None:
    with pytest.raises(HansaError) as caught:
        partition.split(data_of([0, 1, 2] * 4), np.random.default_rng(0))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("partition", [Natural(), Domain(), DomainLabel()])
def test_names_that_the_source_lacks_are_asked_for(partition) -> None:
    data = dataset_from_arrays(np.zeros((4, 1)), [0, 1, 0, 1])
    with pytest.raises(HansaError, match="the source gives none"):
        partition.split(data, np.random.default_rng(0))


def test_ten_thousand_clients_take_seconds() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(100, size=100_000)
    data = dataset_from_arrays(
        np.zeros((len(y), 1)), y, client=rng.integers(10_000, size=len(y)), domain=rng.integers(10, size=len(y))
    )
    many = 10_000
    for partition in (
        Iid(many),
        Dirichlet(many, 0.1, min_samples=5),
        Dirichlet(many, 0.1, balanced=True),
        Dirichlet(many, 0.0),
        ClassesPerClient(many, 3),
        Shards(many, 2),
        LogNormal(many, 2.0),
        Natural(),
        DomainLabel(1000, 0.1),
    ):
        start = time.process_time()
        assert len(partition.split(data, np.random.default_rng(0))) > 9_000
        assert time.process_time() - start < 8, partition


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        (Dirichlet(2), "The dirichlet partition divides by class"),
        (ClassesPerClient(2), "The classes partition divides by class"),
        (Shards(2), "The shards partition divides by class"),
        (DomainLabel(2), "The domain-label partition divides by class"),
        (Domain(samples_per_class=1), "The domain partition with 'samples_per_class' divides by class"),
    ],
)
def test_partitions_by_class_refuse_a_real_target_by_name(partition, sentence: str) -> None:
    count = np.arange(20)
    data = dataset_from_arrays(count[:, None], count / 2, domain=count % 2, target="real")
    with pytest.raises(HansaError) as caught:
        partition.split(data, np.random.default_rng(0))
    advice = "and the target is real-valued; use 'iid', 'lognormal' or 'natural'."
    assert str(caught.value) == f"{sentence}, {advice}"


@pytest.mark.parametrize("partition", [Iid(4), LogNormal(4), Natural(), Domain()])
def test_other_partitions_divide_samples_with_a_real_target(partition) -> None:
    count = np.arange(20)
    data = dataset_from_arrays(count[:, None], count / 2, client=count % 4, domain=count % 2, target="real")
    found = partition.split(data, np.random.default_rng(0))
    assert sorted(np.concatenate(list(found.values())).tolist()) == count.tolist()
