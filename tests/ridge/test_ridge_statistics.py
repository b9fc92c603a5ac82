"""The laws of the statistics: sums that add, subtract and stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ridge_problems import Problem, make

from hansa.errors import HansaError
from hansa.ridge import RidgeStatistics


def close(left: RidgeStatistics, right: RidgeStatistics, tolerance: float = 1e-12) -> bool:
    return torch.equal(left.counts, right.counts) and all(
        float((a - b).norm()) <= tolerance * max(float(b.norm()), 1.0)
        for a, b in ((left.gram, right.gram), (left.moment, right.moment))
    )


def of(problem: Problem, index: object = slice(None)) -> RidgeStatistics:
    return RidgeStatistics.from_features(problem.z[index], problem.y[index], problem.classes)


def test_a_hand_computed_example() -> None:
    z = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    got = RidgeStatistics.from_features(z, torch.tensor([0, 2, 0]), 4)
    assert got.gram.tolist() == [[10, 2], [2, 5]]
    assert got.moment.tolist() == [[1, 0, 3, 0], [3, 0, 0, 0]]
    assert got.counts.tolist() == [2, 0, 1, 0]
    assert got.n == 3
    # (A + I) W = b with A + I = [[11, 2], [2, 6]], determinant 62
    expected = torch.tensor([[0, 0, 18, 0], [31, 0, -6, 0]], dtype=torch.float64) / 62
    assert torch.allclose(got.solve(lam=1.0, normalize="none"), expected, rtol=1e-14, atol=1e-16)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_split_order_and_number_of_clients_gives_the_same_classifier(data: st.DataObject) -> None:
    problem = make(samples=data.draw(st.integers(1, 150)), dimension=data.draw(st.integers(1, 20)))
    seed = data.draw(st.integers(0, 2**16))
    owner = np.random.default_rng(seed).integers(0, data.draw(st.integers(1, 30)), len(problem.y))
    parts = [of(problem, torch.from_numpy(np.flatnonzero(owner == client))) for client in np.unique(owner)]
    order = data.draw(st.permutations(range(len(parts))))
    together = of(problem).solve()
    split = RidgeStatistics.sum(parts[index] for index in order).solve()
    assert float((split - together).norm()) <= 1e-9 * float(together.norm())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=3, max_size=3), st.integers(0, 1000))
def test_a_commutative_group(sizes: list[int], seed: int) -> None:
    a, b, c = (of(make(size + 1, 7, 4, seed + index)) for index, size in enumerate(sizes))
    nothing = RidgeStatistics.zeros(7, 4)
    assert close(a + b, b + a)
    assert close((a + b) + c, a + (b + c))
    assert close(a + nothing, a, 0.0)
    assert close((a + b) - b, a)
    assert close(a - a, nothing)
    assert close(sum([a, b, c]), RidgeStatistics.sum([a, b, c]))  # type: ignore[arg-type]


def test_operators_leave_their_arguments_untouched(problem: Problem) -> None:
    a, b = of(problem, slice(0, 90)), of(problem, slice(90, 200))
    before = a.copy(), b.copy()
    _ = a + b, (a + b) - a, RidgeStatistics.sum([a, b]), sum([a, b])  # type: ignore[list-item]
    assert close(a, before[0], 0.0)
    assert close(b, before[1], 0.0)


@pytest.mark.parametrize("dimension", [3, 130, 300])
def test_panels_and_blocks_do_not_show(dimension: int) -> None:
    problem = make(samples=257, dimension=dimension)
    got = RidgeStatistics.from_features(problem.z, problem.y, problem.classes, block=100)
    assert torch.allclose(got.gram, problem.z.T @ problem.z, rtol=1e-12, atol=1e-10)
    assert torch.equal(got.gram, got.gram.T)
    assert torch.allclose(got.moment, problem.z.T @ problem.one_hot(), rtol=1e-12, atol=1e-10)


def test_streaming_equals_batch_and_many_small_clients_share_blocks(problem: Problem) -> None:
    stream = RidgeStatistics.zeros(12, 5)
    for z, y in zip(problem.z.split(7), problem.y.split(7), strict=True):
        assert stream.update(z, y) is stream
    clients = zip(problem.z.split(3), problem.y.split(3), strict=True)
    assert close(stream, of(problem))
    assert close(RidgeStatistics.from_clients(clients, 12, 5, block=16), of(problem))
    assert close(RidgeStatistics.zeros(12, 5).update(problem.z, problem.y, block=32), of(problem))


def test_clients_one_by_one_give_the_bits_of_all_rows_in_one_piece(problem: Problem) -> None:
    z, y = problem.z.float(), problem.y
    whole = RidgeStatistics.from_features(z, y, 5, block=16)
    parts = list(zip(z.split(4), y.split(4), strict=True))
    grown = [(a.clone().requires_grad_(), b) for a, b in parts]
    for clients in (parts, iter(parts), grown, [(a.numpy(), b.numpy()) for a, b in parts]):
        found = RidgeStatistics.from_clients(clients, 12, 5, block=16)
        assert all(torch.equal(leaf, whole.leaves()[key]) for key, leaf in found.leaves().items())
        assert not found.gram.requires_grad
    assert torch.equal(RidgeStatistics.from_clients([(z[:0], y[:0])], 12, 5).gram, torch.zeros(12, 12).double())


def test_slices_that_do_not_follow_each_other_are_copied_as_they_are(problem: Problem) -> None:
    z, y = problem.z.float()[:48], problem.y[:48]
    parts = list(zip(z.split(4), y.split(4), strict=True))
    gaps = torch.cat([z, z], 1)[:, :12]
    for clients in (
        parts[::-1],
        parts[::2],
        [parts[0], parts[0], parts[1]],
        [parts[0], (z[4:4], y[4:4]), parts[1]],
        list(zip(gaps.split(4), y.split(4), strict=True)),
        [(a.reshape(12, 4).T, b) for a, b in parts],  # side by side in memory, and column by column
        list(zip(z.split(4), y.flip(0).split(4)[::-1], strict=True)),
        [(a.clone(), b.clone()) for a, b in parts],
    ):
        found = RidgeStatistics.from_clients(clients, 12, 5)
        known = RidgeStatistics.from_features(torch.cat([a for a, _ in clients]), torch.cat([b for _, b in clients]), 5)
        assert all(torch.equal(leaf, known.leaves()[key]) for key, leaf in found.leaves().items())


def test_slices_of_one_memory_that_have_other_shapes_are_refused() -> None:
    first, second = torch.zeros(96).split(48)
    labels = torch.zeros(8, dtype=torch.long)
    narrow = "must have 12 columns"
    for part, why in (
        (second.view(4, 3, 4), "be a matrix"),
        (second.view(8, 6), narrow),
        (second[:12].view(4, 3), narrow),
    ):
        with pytest.raises(HansaError, match=why):
            RidgeStatistics.from_clients([(first.view(4, 12), labels[:4]), (part, labels[4:])], 12, 5)


def test_a_client_among_many_whose_shapes_do_not_fit_is_refused(problem: Problem) -> None:
    z, y = problem.z, problem.y
    good = (z[:4], y[:4])
    for pair, why in (
        ([(z[:3], y[:2]), (z[:2], y[:3])], "one entry per row \\(3\\). Got shape \\(2,\\)"),  # as many in all
        ([(z[:3, :5], y[:3])], "must have 12 columns"),
        ([(z[0], y[:1])], "must be a matrix"),
        ([(z[:1], y[0])], "one entry per row"),
        ([(z[:2], y[:2, None])], "one entry per row"),
    ):
        for clients in ([good, *pair, good], [(a.numpy(), b.numpy()) for a, b in [good, *pair]]):
            with pytest.raises(HansaError, match=why):
                RidgeStatistics.from_clients(clients, 12, 5)


def test_clients_of_both_precisions_and_libraries_share_a_block(problem: Problem) -> None:
    rounded = problem.z[:100].float()
    clients = [(rounded.numpy(), problem.y[:100].numpy()), (problem.z[100:], problem.y[100:])]
    exact = of(problem, slice(100, 200)) + RidgeStatistics.from_features(rounded.double(), problem.y[:100], 5)
    assert close(RidgeStatistics.from_clients(clients, 12, 5), exact)


def test_float32_features_keep_seven_digits_however_many_samples() -> None:
    problem = make(samples=20_000, dimension=40)
    z = problem.z.float()
    exact = RidgeStatistics.from_features(z.double(), problem.y, problem.classes)
    quick = RidgeStatistics.from_features(z, problem.y, problem.classes, block=1024)
    assert 0 < float((quick.gram - exact.gram).norm() / exact.gram.norm()) < 2e-7
    assert 0 < float((quick.moment - exact.moment).norm() / exact.moment.norm()) < 2e-7


def test_numpy_torch_half_precision_whole_numbers_and_read_only_memory(problem: Problem, tmp_path) -> None:
    np.save(tmp_path / "z.npy", problem.z.numpy())
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    assert close(RidgeStatistics.from_features(mapped, problem.y.numpy().astype(np.int16), 5, block=64), of(problem))
    assert close(RidgeStatistics.from_features(problem.z.numpy()[::-1], problem.y.numpy()[::-1], 5), of(problem))
    assert RidgeStatistics.from_features(problem.z.half(), problem.y, 5).gram.dtype == torch.float64
    assert RidgeStatistics.from_features(np.array([[1, 2]]), np.array([0]), 1).gram.tolist() == [[1, 2], [2, 4]]


def test_no_samples_at_all_is_zero() -> None:
    empty = RidgeStatistics.from_features(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), 2)
    assert close(empty, RidgeStatistics.zeros(3, 2), 0.0)


def test_removing_a_client_gives_the_classifier_trained_without_it(problem: Problem) -> None:
    rare = problem._replace(y=torch.where(torch.arange(200) < 8, 4, problem.y))  # class 4 lives on this client only
    leaving, staying = of(rare, slice(0, 30)), of(rare, slice(30, 200))
    for normalize in ("column", "gamma", "none"):
        forgotten = ((leaving + staying) - leaving).solve(normalize=normalize)
        assert torch.allclose(forgotten, staying.solve(normalize=normalize), rtol=1e-9, atol=1e-12)
        assert not forgotten[:, 4].any()


def test_relabel_moves_classes(problem: Problem) -> None:
    moved = of(problem).relabel([6, 0, 1, 2, 3], 7)
    y = torch.tensor([6, 0, 1, 2, 3])[problem.y]
    assert close(moved, RidgeStatistics.from_features(problem.z, y, 7))


def test_what_was_never_added_cannot_be_removed(problem: Problem) -> None:
    with pytest.raises(HansaError, match="never added: class 3"):
        of(problem, problem.y == 0) - of(problem, problem.y == 3)


def spoiled(problem: Problem, value: float) -> torch.Tensor:
    z = problem.z.clone()
    z[150, 4] = value
    return z


@pytest.mark.parametrize(
    ("z", "y", "sentence"),
    [
        (lambda p: spoiled(p, float("nan")), lambda p: p.y, "finite numbers.*row 150, column 4"),
        (lambda p: spoiled(p, float("inf")), lambda p: p.y, "finite"),
        (lambda p: spoiled(p, 1e30).float(), lambda p: p.y, "after squaring"),
        (lambda p: p.z[0], lambda p: p.y, "must be a matrix"),
        (lambda p: p.z[:, :5], lambda p: p.y, "must have 12 columns"),
        (lambda p: p.z, lambda p: p.y[:9], "one entry per row"),
        (lambda p: p.z, lambda p: p.y - 1, "0..4. Got -1"),
        (lambda p: p.z, lambda p: p.y + 2, "0..4. Got 5"),
        (lambda p: p.z, lambda p: p.y.double(), "whole numbers"),
        (lambda p: p.z.numpy().astype(str), lambda p: p.y, "must be numbers"),
        (lambda p: p.z.to(torch.complex64), lambda p: p.y, "real numbers"),
    ],
)
def test_bad_batches_are_refused_and_leave_the_sums_as_they_were(problem: Problem, z, y, sentence: str) -> None:
    for block in (64, 4096):
        sums = of(problem)
        with pytest.raises(HansaError, match=sentence.replace("row 150", "row (150|22)")):
            sums.update(z(problem), y(problem), block=block)
        assert close(sums, of(problem), 0.0)


def test_misfits_are_refused(problem: Problem) -> None:
    with pytest.raises(HansaError, match="cannot be combined"):
        of(problem) + RidgeStatistics.zeros(12, 6)
    with pytest.raises(HansaError, match="nothing to sum"):
        RidgeStatistics.sum([])
    with pytest.raises(HansaError, match="at least 1"):
        RidgeStatistics.zeros(0, 3)
    with pytest.raises(HansaError, match="need A"):
        RidgeStatistics(torch.zeros(3, 3), torch.zeros(2, 4), torch.zeros(4))
    with pytest.raises(HansaError, match="must be float64"):
        RidgeStatistics(torch.zeros(3, 3), torch.zeros(3, 4), torch.zeros(4))
