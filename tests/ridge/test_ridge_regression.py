"""Regression on real targets: the laws of its statistics, and solutions against direct computation on the samples."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ridge_problems import Targets, make_targets
from safetensors.torch import load_file
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from hansa.errors import HansaError
from hansa.ridge import RandomFeatures, RegressionStatistics, RidgeStatistics, scores, select
from hansa.ridge.collector import Collector
from hansa.tree import nbytes

LEAVES = ("gram", "moment", "total", "count", "sums", "squares")
both_ways = pytest.mark.parametrize("intercept", [False, True])


def of(problem: Targets, index: object = slice(None)) -> RegressionStatistics:
    return RegressionStatistics.from_features(problem.z[index], problem.y[index])


def close(left: RegressionStatistics, right: RegressionStatistics, tolerance: float = 1e-12) -> bool:
    pairs = [(getattr(left, name), getattr(right, name)) for name in LEAVES]
    return all(float((a - b).norm()) <= tolerance * max(float(b.norm()), 1.0) for a, b in pairs)


def test_sums_of_a_hand_computed_example() -> None:
    z = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    got = RegressionStatistics.from_features(z, torch.tensor([1.0, 2.0, 4.0]))
    assert got.gram.tolist() == [[10, 2], [2, 5]]
    assert got.moment.tolist() == [[7], [6]]  # 1·(1, 2) + 2·(3, 0) + 4·(0, 1)
    assert got.total.tolist() == [4, 3]
    assert (got.n, got.sums.tolist(), got.squares.tolist()) == (3, [7], [21])
    # (A + I) W = b with A + I = [[11, 2], [2, 6]], determinant 62
    assert torch.allclose(got.solve(1.0), torch.tensor([[30.0], [52.0]], dtype=torch.float64) / 62, rtol=1e-14)


def test_intercept_and_errors_of_a_hand_computed_example() -> None:
    got = RegressionStatistics.from_features(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([1.0, 2.0, 6.0]))
    weights = got.solve(0.5, intercept=True)
    assert torch.allclose(weights, torch.tensor([[2.0], [1.0]], dtype=torch.float64))  # 5 / (2 + 0.5), and 3 − 2·1
    # predictions 1, 3, 5 leave the residuals 0, −1, 1; the targets less their mean are −2, −1, 3
    assert got.squared_error(weights) == pytest.approx(2)
    assert got.rmse(weights).tolist() == pytest.approx([(2 / 3) ** 0.5])
    assert got.r2(weights).tolist() == pytest.approx([1 - 2 / 14])


@both_ways
@pytest.mark.parametrize("lam", [1e-3, 0.5, 100.0])
@pytest.mark.parametrize("targets", [1, 3])
def test_it_is_scikit_learns_ridge(intercept: bool, lam: float, targets: int) -> None:
    problem = make_targets(targets=targets)
    expected = Ridge(alpha=lam, fit_intercept=intercept).fit(problem.z, problem.y)
    got = of(problem).solve(lam, intercept=intercept)
    assert np.allclose(got[:12], np.reshape(expected.coef_, (targets, 12)).T, rtol=1e-8, atol=1e-8)
    assert np.allclose(got[12:], np.reshape(expected.intercept_, (1, -1)) if intercept else 0, rtol=1e-8, atol=1e-8)
    assert np.allclose(scores(problem.z, got), expected.predict(problem.z).reshape(-1, targets), rtol=1e-8, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_split_order_and_number_of_clients_gives_the_centralised_solution(data: st.DataObject) -> None:
    problem = make_targets(data.draw(st.integers(2, 150)), data.draw(st.integers(1, 20)), data.draw(st.integers(1, 4)))
    seed = data.draw(st.integers(0, 2**16))
    owner = np.random.default_rng(seed).integers(0, data.draw(st.integers(1, 30)), len(problem.y))
    parts = [of(problem, torch.from_numpy(np.flatnonzero(owner == client))) for client in np.unique(owner)]
    order = data.draw(st.permutations(range(len(parts))))
    intercept = data.draw(st.booleans())
    together = of(problem).solve(1.0, intercept=intercept)
    split = RegressionStatistics.sum(parts[index] for index in order).solve(1.0, intercept=intercept)
    assert float((split - together).norm()) <= 1e-10 * float(together.norm())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=3, max_size=3), st.integers(0, 1000))
def test_a_commutative_group(sizes: list[int], seed: int) -> None:
    a, b, c = (of(make_targets(size, 7, 2, seed + index)) for index, size in enumerate(sizes))
    nothing = RegressionStatistics.zeros(7, 2)
    assert close(a + b, b + a)
    assert close((a + b) + c, a + (b + c))
    assert close(a + nothing, a, 0.0)
    assert close((a + b) - b, a)
    assert close(a - a, nothing, 0.0)
    assert close(sum([a, b, c]), RegressionStatistics.sum([a, b, c]))  # type: ignore[arg-type]


@both_ways
def test_removing_a_client_gives_the_weights_trained_without_it(intercept: bool) -> None:
    problem = make_targets()
    leaving, staying = of(problem, slice(0, 30)), of(problem, slice(30, 200))
    forgotten = ((leaving + staying) - leaving).solve(0.1, intercept=intercept)
    assert torch.allclose(forgotten, staying.solve(0.1, intercept=intercept), rtol=1e-9, atol=1e-10)
    with pytest.raises(HansaError, match="never added: of 30 samples 170"):
        leaving - staying


def test_streams_blocks_small_clients_and_feature_maps_do_not_show() -> None:
    problem = make_targets(samples=201)
    stream = RegressionStatistics.zeros(12, 3)
    for z, y in zip(problem.z.split(7), problem.y.split(7), strict=True):
        assert stream.update(z, y) is stream
    clients = zip(problem.z.split(3), problem.y.split(3), strict=True)
    assert close(stream, of(problem))
    assert close(RegressionStatistics.from_clients(clients, 12, 3, block=16), of(problem))
    assert close(RegressionStatistics.zeros(12, 3).update(problem.z, problem.y, block=32), of(problem))
    omega = RandomFeatures(12, 40, sigma=5.0)
    mapped = RegressionStatistics.from_features(problem.z, problem.y, feature_map=omega, block=50)
    assert close(mapped, RegressionStatistics.from_features(omega(problem.z), problem.y))


def test_float32_features_are_multiplied_in_float64_because_centring_would_magnify_their_rounding() -> None:
    problem = make_targets(samples=5000)
    z = (problem.z + 1000).float()  # means far larger than deviations
    expected = Ridge(alpha=1.0).fit(z.double(), problem.y)
    got = RegressionStatistics.from_features(z, problem.y.float().double()).solve(1.0, intercept=True)
    assert np.allclose(got[:12].T, expected.coef_, rtol=1e-4, atol=1e-4)


def test_numpy_whole_numbers_lists_and_one_column_are_targets_too() -> None:
    problem = make_targets(targets=1)
    whole = problem.y.round().long()
    expected = RegressionStatistics.from_features(problem.z, whole.double())
    for targets in (whole, whole[:, 0], whole.numpy(), whole[:, 0].tolist()):
        assert close(RegressionStatistics.from_features(problem.z, targets), expected, 0.0)


@both_ways
def test_errors_from_statistics_equal_those_on_samples_never_seen(intercept: bool) -> None:
    held = make_targets(samples=77, seed=5)
    weights = of(make_targets()).solve(2.0, intercept=intercept)
    residuals = held.y - scores(held.z, weights)
    assert of(held).squared_error(weights) == pytest.approx(float(residuals.square().sum()), rel=1e-10)
    assert torch.allclose(of(held).rmse(weights), residuals.square().mean(0).sqrt(), rtol=1e-10)
    expected = r2_score(held.y, scores(held.z, weights), multioutput="raw_values")
    assert np.allclose(of(held).r2(weights), expected, rtol=1e-9)
    assert np.allclose(of(held).r2(weights.float()), expected, rtol=1e-4)


def test_targets_predicted_exactly_leave_rounding_and_no_root_of_a_negative_number() -> None:
    for seed in range(20):
        z = make_targets(samples=40, dimension=3, seed=seed).z
        exact = RegressionStatistics.from_features(z, z @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 9)
        weights = exact.solve(1e-9, intercept=True)
        assert 0 <= float(exact.rmse(weights)) < 1e-5
        assert float(exact.r2(weights)) == pytest.approx(1)


def test_r2_of_a_constant_target_is_one_or_zero_as_in_scikit_learn() -> None:
    z = make_targets(samples=9).z
    constant = RegressionStatistics.from_features(z, torch.full((9, 1), 0.1, dtype=torch.float64))
    assert constant.r2(constant.solve(1.0, intercept=True)).tolist() == [1.0]
    assert constant.r2(constant.solve(1.0)).tolist() == [0.0]
    with pytest.raises(HansaError, match="0 samples"):
        RegressionStatistics.zeros(12).r2(torch.zeros(12, 1))


@both_ways
def test_path_equals_one_solve_each_and_held_out_clients_choose_lambda(intercept: bool) -> None:
    train, held = make_targets(samples=15, dimension=12, seed=3), make_targets(samples=90, seed=3)
    lams = (1e-2, 1.0, 50.0)
    for lam, weights in zip(lams, of(train).path(lams, intercept=intercept), strict=True):
        assert torch.allclose(weights, of(train).solve(lam, intercept=intercept), rtol=1e-7, atol=1e-8)
    choice = of(train).select_lambda(of(held), lams, intercept=intercept)
    for lam in lams:
        residuals = held.y - scores(held.z, of(train).solve(lam, intercept=intercept))
        assert choice.errors[lam] == pytest.approx(float(residuals.square().sum()) / 90, rel=1e-6)
    assert select({"only": (of(train), of(held))}, lams, intercept=intercept).choices["only"] == choice


def test_no_samples_at_all_predict_zero() -> None:
    empty = RegressionStatistics.from_features(torch.zeros(0, 3), torch.zeros(0, 2))
    assert close(empty, RegressionStatistics.zeros(3, 2), 0.0)
    assert not empty.solve(1.0, intercept=True).any()


# ---------------------------------------------------------------------------------------------------- wire and files


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float64, 8)])
def test_wire_form_is_exact_in_float64_and_has_the_bytes_it_says(dtype: torch.dtype, size: int) -> None:
    statistics = of(make_targets())
    packed = statistics.pack(dtype)
    assert statistics.nbytes(dtype) == nbytes(packed) == size * (12 * 13 // 2 + 12 * 3) + 8 * (12 + 1 + 3 + 3)
    back = RegressionStatistics.unpack(packed, 3)
    lost = float((back.gram - statistics.gram).norm() / statistics.gram.norm())
    assert lost <= statistics.wire_error(dtype) < 6e-8
    assert close(back, statistics, 0.0) == (dtype == torch.float64)
    assert torch.equal(back.gram, back.gram.T)


def test_unpacked_statistics_do_not_share_the_memory_of_their_message() -> None:
    packed = of(make_targets()).pack()
    RegressionStatistics.unpack(packed, 3).update(make_targets().z, make_targets().y)
    assert close(RegressionStatistics.unpack(packed, 3), of(make_targets()), 0.0)


def test_file_round_trip_and_a_file_of_the_other_kind(tmp_path: Path) -> None:
    path = tmp_path / "client.safetensors"
    of(make_targets()).save(path)
    assert close(RegressionStatistics.load(path), of(make_targets()), 0.0)
    rows, columns = torch.triu_indices(12, 12)
    assert torch.equal(load_file(path)["gram"], of(make_targets()).gram[rows, columns])
    with pytest.raises(HansaError, match=r"hansa.ridge/1.*its format is 'hansa.regression/1'"):
        RidgeStatistics.load(path)
    RidgeStatistics.zeros(3, 2).save(path)
    with pytest.raises(HansaError, match=r"hansa.regression/1.*its format is 'hansa.ridge/1'"):
        RegressionStatistics.load(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gram": torch.zeros(3, dtype=torch.float64)}, "misshapen"),
        ({"moment": torch.zeros(12, 2, dtype=torch.float64)}, "misshapen"),
        ({"moment": torch.zeros(12, 3, dtype=torch.float32)}, "misshapen"),
        ({"count": torch.zeros(1, dtype=torch.float64)}, "misshapen"),
        ({"squares": torch.zeros(3, dtype=torch.int64)}, "misshapen"),
        ({"gram": torch.zeros(78, dtype=torch.int32)}, "float32 or float64"),
        ({"gram": torch.full((78,), float("nan"), dtype=torch.float64)}, "'gram'.*finite"),
        ({"sums": torch.full((3,), float("inf"), dtype=torch.float64)}, "'sums'.*finite"),
        ({"total": torch.tensor(1.0)}, "need count"),
        ({"extra": torch.zeros(1)}, "need count"),
    ],
)
def test_bad_messages_are_refused(change: dict[str, torch.Tensor], sentence: str) -> None:
    with pytest.raises(HansaError, match=sentence):
        RegressionStatistics.unpack({**of(make_targets()).pack(), **change}, 3)


def test_a_type_that_cannot_carry_it_is_refused() -> None:
    with pytest.raises(HansaError, match="float32 or float64"):
        of(make_targets()).pack(torch.float16)
    with pytest.raises(HansaError, match="finite"):
        of(Targets(make_targets().z * 1e20, make_targets().y)).pack(torch.float32)


# ----------------------------------------------------------------------------------------------------------- refusals


def spoiled(matrix: torch.Tensor, value: float) -> torch.Tensor:
    matrix = matrix.clone()
    matrix[150, 2] = value
    return matrix


@pytest.mark.parametrize(
    ("z", "y", "sentence"),
    [
        (lambda p: spoiled(p.z, float("nan")), lambda p: p.y, "Features.*finite.*column 2"),
        (lambda p: p.z, lambda p: spoiled(p.y, float("inf")), "Targets.*finite.*column 2"),
        (lambda p: p.z, lambda p: spoiled(p.y, 1e200), "Targets.*after squaring"),
        (lambda p: p.z, lambda p: p.y.to(torch.complex64), "Targets must be real"),
        (lambda p: p.z, lambda p: p.y[:, :2], "200 × 3.*shape \\(200, 2\\)"),
        (lambda p: p.z, lambda p: p.y[:, 0], "200 × 3.*shape \\(200,\\)"),
        (lambda p: p.z, lambda p: p.y[:9], "200 × 3"),
        (lambda p: p.z, lambda p: p.y.numpy().astype(str), "must be numbers"),
        (lambda p: p.z[0], lambda p: p.y, "must be a matrix"),
        (lambda p: p.z[:, :5], lambda p: p.y, "must have 12 columns"),
    ],
)
def test_bad_batches_are_refused_and_leave_the_sums_as_they_were(z, y, sentence: str) -> None:
    problem = make_targets()
    for block in (64, 4096):
        sums = of(problem)
        with pytest.raises(HansaError, match=sentence):
            sums.update(z(problem), y(problem), block=block)
        assert close(sums, of(problem), 0.0)


def test_misfits_are_refused() -> None:
    statistics = of(make_targets())
    with pytest.raises(HansaError, match="12 features × 3 targets and of 12 features × 2 targets cannot be combined"):
        statistics + RegressionStatistics.zeros(12, 2)
    with pytest.raises(HansaError, match="3 targets and of 12 features × 3 classes cannot be combined"):
        statistics + RidgeStatistics.zeros(12, 3)  # type: ignore[operator]
    with pytest.raises(HansaError, match="at least one RegressionStatistics"):
        RegressionStatistics.sum([])
    with pytest.raises(HansaError, match=r"dimension.*at least 1"):
        RegressionStatistics.zeros(0, 3)
    with pytest.raises(HansaError, match="targets must be at least 1"):
        RegressionStatistics.zeros(3, 0)
    with pytest.raises(HansaError, match="need A"):
        RegressionStatistics(*(torch.zeros(3, dtype=torch.float64) for _ in LEAVES))
    with pytest.raises(HansaError, match="must be float64"):
        RegressionStatistics(*(leaf.float() for leaf in statistics.leaves().values()))
    with pytest.raises(HansaError, match="> 0"):
        statistics.solve(0.0)
    with pytest.raises(HansaError, match="12 × 3"):
        statistics.rmse(torch.zeros(12))


# ------------------------------------------------------------------------------------------- a server, and real clients


def test_a_collector_of_targets_takes_repeated_and_late_uploads_and_forgets(tmp_path: Path) -> None:
    uploads = {name: of(make_targets(samples=20, seed=seed)) for seed, name in enumerate("abc")}
    server = Collector(12, num_targets=3, path=tmp_path / "sums.sqlite", keep=True)
    assert [server.add(name, uploads[name]) for name in "abab"] == [True, True, False, False]
    server.close()
    server = Collector(12, num_targets=3, path=tmp_path / "sums.sqlite", keep=True)
    assert server.add("c", uploads["c"])
    assert close(server.statistics, RegressionStatistics.sum(uploads.values()))
    server.forget("b")
    assert close(server.statistics, uploads["a"] + uploads["c"])
    with pytest.raises(HansaError, match="Client 'd' sent statistics of"):
        server.add("d", RidgeStatistics.zeros(12, 3))  # type: ignore[arg-type]
    server.close()
    with pytest.raises(HansaError, match="collects statistics of"):
        Collector(12, 3, tmp_path / "sums.sqlite")
    with pytest.raises(HansaError, match="classes or of targets"):
        Collector(12)  # type: ignore[call-overload]


def telemonitoring(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patients, features and both scores of the disease."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scores = ("motor_UPDRS", "total_UPDRS")
    names = [name for name in rows[0] if name not in ("subject#", *scores)]
    columns = [np.array([[float(row[name]) for name in wanted] for row in rows]) for wanted in (names, scores)]
    return np.array([row["subject#"] for row in rows]), columns[0], columns[1]


def test_the_statistics_of_42_patients_give_the_centralised_regression(shared_data: Callable[[str], Path]) -> None:
    patient, z, y = telemonitoring(shared_data("parkinsons/telemonitoring.csv"))
    parts = [RegressionStatistics.from_features(z[patient == one], y[patient == one]) for one in np.unique(patient)]
    assert (len(parts), z.shape, y.shape) == (42, (5875, 19), (5875, 2))
    server = RegressionStatistics.sum(parts)
    weights = server.solve(1.0, intercept=True)
    central = Ridge(alpha=1.0).fit(z, y)
    assert np.allclose(weights[:19].T, central.coef_, rtol=1e-8, atol=1e-8)
    assert np.allclose(weights[19], central.intercept_, rtol=1e-8)
    assert np.allclose(server.r2(weights), r2_score(y, central.predict(z), multioutput="raw_values"), rtol=1e-8)
    whole = RegressionStatistics.from_features(z, y).solve(1.0, intercept=True)
    assert float((weights - whole).norm()) <= 1e-10 * float(whole.norm())
    without = Ridge(alpha=1.0).fit(z[patient != "7"], y[patient != "7"])
    seven = RegressionStatistics.from_features(z[patient == "7"], y[patient == "7"])
    assert np.allclose((server - seven).solve(1.0, intercept=True)[:19].T, without.coef_, rtol=1e-8, atol=1e-8)
