"""τ and φ on plain arrays: metrics by hand, groups that keep their bounds and differ inside."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cosine
from scipy.stats import entropy, wasserstein_distance

from hansa.errors import HansaError
from hansa.orchestrate.clusters import balanced, kmeans, squares
from hansa.orchestrate.dissimilarity import METRICS, dissimilarity
from hansa.orchestrate.fedseq2par import growth
from hansa.orchestrate.grouping import EVERY_METRIC, GROUPINGS, METRICS_OF, Limits, group
from hansa.orchestrate.superclients import KINDS_OF

DRAW = np.random.default_rng(0)
P, Q = (DRAW.dirichlet(np.ones(6)) for _ in range(2))


def one_class_each(clients: int = 40, classes: int = 4) -> np.ndarray:
    return np.eye(classes)[np.arange(clients) % classes]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("cosine", cosine(P, Q)),
        ("euclidean", np.linalg.norm(P - Q)),
        ("normalised-cosine", cosine(Q / (Q + P), P / (Q + P))),
        ("wasserstein", wasserstein_distance(P, Q)),
        ("kl", 1 - entropy((P + Q) / 2, np.full(6, 1 / 6))),
        ("gini", 1 - (((P + Q) / 2) ** 2).sum()),
    ],
)
def test_metrics_are_those_of_the_paper(metric: str, expected: float) -> None:
    others = np.stack([Q, P, Q])
    found = dissimilarity(metric, P, others)  # type: ignore[arg-type]
    assert found[0] == found[2] == pytest.approx(expected) and found.shape == (3,)
    assert found[1] <= found[0]  # nobody is farther from oneself than from another


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_know_entries_of_zero(metric: str) -> None:
    hot = np.eye(3)
    found = dissimilarity(metric, hot[0], np.vstack([hot, np.zeros(3)]))  # type: ignore[arg-type]
    assert np.isfinite(found).all()
    if metric != "wasserstein":  # which sees values, not places
        assert found[1] == found[2] > found[0]


def test_a_metric_refuses_what_it_cannot_compare() -> None:
    with pytest.raises(HansaError, match=r"There is no metric 'cosin'\. Did you mean 'cosine'\?"):
        dissimilarity("cosin", P, [Q])  # type: ignore[arg-type]
    with pytest.raises(HansaError, match=r"rows of its length. Got shapes \(6,\) and \(1, 5\)"):
        dissimilarity("cosine", P, [Q[:5]])


def test_every_grouping_and_metric_is_in_the_table_of_what_combines() -> None:
    assert METRICS_OF.keys() == GROUPINGS.keys() and KINDS_OF.keys() == METRICS.keys() == set(EVERY_METRIC)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize(
    "limits", [Limits(7), Limits(40), Limits(1), Limits(min_samples=70), Limits(max_clients=6), Limits(), Limits(3, 50)]
)
def test_every_client_is_in_one_group_and_bounds_are_kept(grouping: str, limits: Limits) -> None:
    sizes = [10 + k % 3 for k in range(40)]
    found = group(grouping, sizes, one_class_each(), limits, np.random.default_rng(1))  # type: ignore[arg-type]
    assert sorted(one for members in found for one in members) == list(range(40))
    assert limits.superclients in (None, len(found))
    assert all(sum(sizes[one] for one in members) >= limits.min_samples for members in found)
    assert all(len(members) <= (limits.max_clients or 40) for members in found)
    assert found == sorted(sorted(members) for members in found)
    if limits.superclients:
        assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_groups_follow_from_the_seed(grouping: str) -> None:
    rows = DRAW.normal(size=(30, 5))
    one, again, other = (
        group(grouping, [1] * 30, rows, Limits(6), np.random.default_rng(seed))  # type: ignore[arg-type]
        for seed in (1, 1, 2)
    )
    assert one == again != other


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric != "wasserstein"])
def test_greedy_groups_hold_every_class(metric: str) -> None:
    found = group("greedy", [1] * 40, one_class_each(), Limits(10), np.random.default_rng(0), metric=metric)  # type: ignore[arg-type]
    assert all(len({one % 4 for one in members}) == 4 for members in found)


@pytest.mark.parametrize("grouping", ["kmeans", "icg"])
def test_clustered_groups_hold_every_class(grouping: str) -> None:
    found = group(grouping, [1] * 40, one_class_each(), Limits(10), np.random.default_rng(0), clusters=4)  # type: ignore[arg-type]
    assert all(len({one % 4 for one in members}) == 4 for members in found)


def test_greedy_takes_the_farthest_from_the_mean_of_the_group() -> None:
    rows = DRAW.normal(size=(12, 3))
    (members,) = group("greedy", [1] * 12, rows, Limits(1), np.random.default_rng(3), metric="euclidean")
    assert members == list(range(12))
    rng = np.random.default_rng(3)
    order = rng.permutation(12)
    left, found = list(order), []
    while left:
        far = [np.linalg.norm(rows[one] - rows[found].mean(0)) if found else 0 for one in left]
        found.append(left.pop(int(np.argmax(far)) if found else 0))
    halves = group("greedy", [1] * 12, rows, Limits(max_clients=5), np.random.default_rng(3), metric="euclidean")
    assert sorted(found[:5]) in halves


def test_icg_balances_samples() -> None:
    """Members of a cluster go where samples are lacking; by chance the spread is several times as large."""
    sizes = DRAW.integers(1, 100, 60).tolist()
    rows = DRAW.normal(size=(60, 4))
    spread = {
        kind: np.std([sum(sizes[one] for one in members) for members in found])
        for kind in ("icg", "random")
        for found in [group(kind, sizes, rows, Limits(10), np.random.default_rng(0))]  # type: ignore[arg-type]
    }
    assert spread["icg"] < spread["random"] / 2


def test_a_balanced_assignment_costs_the_least() -> None:
    """Against SciPy's assignment to copies of every cluster, also where many costs are equal."""
    for trial in range(60):
        sizes = DRAW.integers(0, 6, DRAW.integers(1, 7))
        sizes[0] += 1
        costs = DRAW.random((sizes.sum(), len(sizes)))
        costs = costs if trial % 2 else costs.round(1)
        place = balanced(costs, sizes)
        copies = np.repeat(costs, sizes, axis=1)
        assert np.array_equal(np.bincount(place, minlength=len(sizes)), sizes)
        least = copies[linear_sum_assignment(copies)].sum()
        assert costs[np.arange(len(costs)), place].sum() == pytest.approx(least, abs=1e-9)


def test_a_balanced_assignment_must_fill_its_clusters() -> None:
    with pytest.raises(HansaError, match=r"Clusters of sizes \[2, 2\] cannot be filled exactly by costs of shape"):
        balanced(np.ones((3, 2)), np.array([2, 2]))


def test_kmeans_finds_clusters_that_are_there() -> None:
    rows = np.repeat(10 * np.eye(3), 20, axis=0) + 0.1 * DRAW.normal(size=(60, 3))
    nearest = squares(rows, kmeans(rows, 3, np.random.default_rng(0))).argmin(1)
    assert [len(set(nearest[first : first + 20])) for first in (0, 20, 40)] == [1, 1, 1] and len(set(nearest)) == 3
    assert len(kmeans(rows[:2], 5, np.random.default_rng(0))) == 2  # no more centres than rows


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(50), "50 superclients are asked for and there are 40 clients"),
        (Limits(5, 90), "5 superclients of at least 90 samples each are asked for and all clients have 400 samples"),
        (Limits(5, max_clients=7), "5 superclients of at most 7 clients each cannot hold 40 clients"),
        (Limits(min_samples=401), "a superclient of at least 401 samples is asked for and all clients have 400"),
        (
            Limits(min_samples=50, max_clients=4),
            "the 4 clients with most samples have 40 of them together and a superclient is to have at least 50",
        ),
        (Limits(min_samples=30, max_clients=3), r"has 1 clients with 10 samples, and at least 30 are asked for"),
    ],
)
def test_groups_that_cannot_keep_their_bounds_are_refused(limits: Limits, says: str) -> None:
    names = [f"client-{k}" for k in range(40)]
    with pytest.raises(HansaError, match=says) as refused:
        group("random", [10] * 40, None, limits, np.random.default_rng(0), names=names)
    assert "Clients cannot be grouped" in str(refused.value) or "'client-" in str(refused.value)


def test_one_large_client_does_not_help_a_superclient_without_it() -> None:
    sizes = [100] + [10] * 9
    with pytest.raises(HansaError, match="has 2 clients with 20 samples, and at least 30 are asked for"):
        group("random", sizes, None, Limits(min_samples=30, max_clients=2), np.random.default_rng(0))


def test_a_rest_that_is_too_small_is_dealt_out() -> None:
    found = group("random", [10] * 41, None, Limits(min_samples=40), np.random.default_rng(0))
    assert sorted(map(len, found)) == [4] * 9 + [5]


@pytest.mark.parametrize(
    ("grouping", "metric", "rows", "says"),
    [
        ("icg", None, np.ones((3, 2)), r"The grouping 'icg' needs a row for each of the 4 clients\. Got 3\."),
        ("kmeans", None, None, r"needs a row for each of the 4 clients\. Got 0\."),
        ("greedy", None, np.ones(4), r"needs a row for each of the 4 clients\. Got the shape \(4,\)"),
        ("icg", None, np.full((4, 2), np.nan), "The metric 'euclidean' needs finite numbers, and client 'a' has"),
        ("greedy", "kl", np.eye(4) - 0.1, "needs a distribution over classes, and client 'a' has"),
        (
            "greedy",
            "gini",
            np.diag([1, 1, 2, 1]),
            "The metric 'gini' needs a distribution over classes, and client 'c'",
        ),
        ("greedy", "normalised-cosine", np.diag([1, -1, 1, 1]), "needs no negative entries, and client 'b' has"),
        ("icg", "kl", np.eye(4), "The grouping 'icg' cannot go by the metric 'kl': use euclidean"),
        ("random", "kl", None, "The grouping 'random' cannot go by the metric 'kl': leave 'metric' out"),
        ("greedy", "l1", np.eye(4), "The grouping 'greedy' cannot go by the metric 'l1': use cosine, euclidean"),
    ],
)
def test_descriptions_that_cannot_be_compared_are_refused_by_name(grouping, metric, rows, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        group(grouping, [1] * 4, rows, Limits(2), np.random.default_rng(0), metric=metric, names="abcd")


def test_a_grouping_goes_by_its_usual_metric_where_none_is_named() -> None:
    rows = DRAW.normal(size=(30, 4))

    def found(**named) -> list[list[int]]:
        return group("greedy", [1] * 30, rows, Limits(5), np.random.default_rng(0), **named)

    assert found() == found(metric="cosine") != found(metric="euclidean")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [2, 2, 4, 4, 6]),  # 2⌊t/2 + 1⌋
        ("log", [2, 2, 2, 2, 2]),  # 2⌊ln(t+1)/2 + 1⌋
        ("exp", [2, 2, 4, 6, 10]),  # 2⌊1.5ᵗ⌋: 1, 1, 2, 3, 5
    ],
)
def test_superclients_grow_as_equations_4_to_6_say(kind: str, expected: list[int]) -> None:
    assert [growth(kind, 0.5, 2, t, 100) for t in range(5)] == expected  # type: ignore[arg-type]
    numbers = [growth(kind, 0.5, 2, t, 100) for t in range(20_000)]  # type: ignore[arg-type]
    assert all(one <= other for one, other in pairwise(numbers))
    assert max(numbers) == (100 if kind != "log" else 10)


def test_icg_of_many_clients_takes_seconds() -> None:
    """3,500 clients × 1,000 dimensions, 30 seconds of one core allowed; process time, as others may be at work too."""
    rows = DRAW.random((62, 1000))[DRAW.integers(62, size=3500)] + 0.3 * DRAW.standard_normal((3500, 1000))
    began = time.process_time()
    found = group("icg", [100] * 3500, rows, Limits(175), np.random.default_rng(0))
    assert time.process_time() - began < 30 and [len(members) for members in found] == [20] * 175


def test_greedy_takes_time_that_grows_with_the_square_and_no_matrix_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: rows compared in all, and the most at once."""
    compared: list[int] = []
    whole = METRICS["euclidean"]
    counting = whole._replace(compare=lambda p, rows: compared.append(len(rows)) or whole.compare(p, rows))
    monkeypatch.setitem(METRICS, "euclidean", counting)  # type: ignore[arg-type]
    rows = DRAW.normal(size=(300, 3))
    group("greedy", [1] * 300, rows, Limits(30), np.random.default_rng(0), metric="euclidean")
    assert sum(compared) <= 300**2 / 2 and max(compared) < 300
