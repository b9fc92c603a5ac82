"""Distances between distributions, against textbook formulas in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hansa.training.distances import barycentre, cka, mmd, mmd_by_class, w2, w2_between, w2_by_class

RNG = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=RNG, dtype=torch.float64)


def square_root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def covariance(z: Tensor) -> Tensor:
    return torch.cov(z.T) if len(z) > 1 else torch.zeros(z.shape[1], z.shape[1], dtype=z.dtype)


def textbook(z: Tensor, mean: Tensor, sigma: Tensor) -> float:
    """`‖v − m̂‖² + tr(Σ + Σ̂ − 2·(Σ^½·Σ̂·Σ^½)^½)`, from matrix square roots."""
    root, own = square_root(sigma), covariance(z)
    cross = square_root(root @ own @ root)
    return float((z.mean(0) - mean).square().sum() + torch.trace(sigma + own - 2 * cross))


# n × k with C classes: by products of rows where n³ ≤ C·k³, by Grams elsewhere; class 2 has one sample, class 3 none.
SHAPES = {"products of rows": (9, 6), "Grams": (40, 3)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("learnt", [True, False])
def test_w2_is_the_textbooks(shape: tuple[int, int], learnt: bool) -> None:
    samples, width = shape
    z, mean, root = draw(samples, width), draw(4, width), draw(4, width, width).tril()
    y = torch.arange(samples) % 2
    y[3] = 2
    sigmas = root @ root.mT if learnt else torch.eye(width, dtype=torch.float64).expand(4, -1, -1)
    expected = sum(textbook(z[y == c], mean[c], sigmas[c]) for c in range(3))
    assert float(w2_by_class(z, y, mean, root if learnt else None)) == pytest.approx(expected, rel=1e-7)
    alone = w2(z[y == 0], mean[0], root[0] if learnt else None)
    assert float(alone) == pytest.approx(textbook(z[y == 0], mean[0], sigmas[0]), rel=1e-7)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_gradient_of_w2_is_the_slope(shape: tuple[int, int]) -> None:
    samples, width = shape
    leaves = [one.requires_grad_() for one in (draw(samples, width), draw(3, width), draw(3, width, width))]
    y = torch.arange(samples) % 2
    y[1] = 2  # one sample, of which nothing but its place is told
    assert torch.autograd.gradcheck(lambda z, mean, root: w2_by_class(z, y, mean, root), leaves, atol=1e-4)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_one_sample_and_equal_samples_have_gradients_that_are_finite(kind: torch.dtype) -> None:
    z = torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0], [4.0, 4.0, 4.0]], dtype=kind).requires_grad_()
    y, mean = torch.tensor([0, 1, 1]), torch.zeros(2, 3, dtype=kind)
    found = w2_by_class(z, y, mean)
    assert found.item() == pytest.approx(14 + 48 + 2 * 3)  # ‖m̂‖² of both, and the whole of tr I
    (slope,) = torch.autograd.grad(found, z)
    assert torch.allclose(slope, torch.tensor([[2.0, 4.0, 6.0], [4.0, 4.0, 4.0], [4.0, 4.0, 4.0]], dtype=kind))


def test_float32_is_accurate_where_samples_span_less_than_the_space() -> None:
    z, mean = draw(30, 16), draw(2, 16)
    y = torch.arange(30) % 2
    exact = w2_by_class(z, y, mean)
    assert float(w2_by_class(z.float(), y, mean.float())) == pytest.approx(float(exact), rel=1e-6)


def test_samples_without_a_share_are_not_there_and_clients_go_side_by_side() -> None:
    z, mean, root, y = draw(2, 8, 3), draw(3, 3), draw(3, 3, 3), torch.tensor([[0, 0, 1, 1, 1, 0, 0, 2]] * 2)
    share = torch.tensor([[0.2] * 5 + [0.0] * 3, [0.125] * 8], dtype=torch.float64)
    both = torch.vmap(lambda z, y, share: w2_by_class(z, y, mean, root, share))(z, y, share)
    assert torch.allclose(both[0], w2_by_class(z[0, :5], y[0, :5], mean, root))
    assert torch.allclose(both[1], w2_by_class(z[1], y[1], mean, root))
    drawn, labels = draw(9, 3), torch.arange(9) % 3
    for between in (w2_between, mmd_by_class):
        there = labels < 2  # the five samples that have a share are of two classes
        some = between(z[0, :5], y[0, :5], drawn[there], labels[there], 2)
        assert torch.allclose(between(z[0], y[0], drawn, labels, 3, share[0]), some)


def test_a_client_that_has_diverged_disturbs_no_other() -> None:
    z, mean, y = draw(2, 5, 3), draw(2, 3), torch.tensor([0, 0, 1, 1, 1])
    z[0, 2] = torch.nan
    both = torch.vmap(lambda z: w2_by_class(z, y, mean))(z)
    assert both[0].isnan() and torch.allclose(both[1], w2_by_class(z[1], y, mean))


def test_w2_between_samples_is_w2_against_the_gaussian_of_the_others() -> None:
    x, z, y, labels = draw(12, 4), draw(15, 4), torch.arange(12) % 2, torch.arange(15) % 3
    expected = sum(textbook(x[y == c], z[labels == c].mean(0), covariance(z[labels == c])) for c in range(2))
    assert float(w2_between(x, y, z, labels, 3)) == pytest.approx(expected, rel=1e-6)


def test_the_barycentre_is_the_mean_of_means_and_factors() -> None:
    means, roots = torch.tensor([[0.0, 4.0], [4.0, 0.0]]), torch.stack([torch.eye(2), 5 * torch.eye(2)])
    mean, root = barycentre(means, roots, torch.tensor([3.0, 1.0]))
    assert mean.tolist() == [1.0, 3.0] and root.tolist() == [[2.0, 0.0], [0.0, 2.0]]


def test_mmd_is_the_biased_estimator_over_seven_kernels() -> None:
    x, z = draw(4, 2), draw(4, 2) + 1

    def mean(left: Tensor, right: Tensor) -> float:
        pairs = [float((a - b).square().sum()) for a in left for b in right]
        return sum(torch.exp(torch.tensor(-(10.0**power) * d)).item() for power in range(-4, 3) for d in pairs) / 16

    expected = mean(x, x) + mean(z, z) - 2 * mean(x, z)
    assert float(mmd(x, z)) == pytest.approx(expected, rel=1e-5) and expected > 0.1
    assert float(mmd(x, x)) == pytest.approx(0.0, abs=1e-12)
    y = torch.tensor([0, 1, 0, 1])
    classes = sum(float(mmd(x[y == c], z[y == c])) for c in range(2))
    assert float(mmd_by_class(x, y, z, y, 2)) == pytest.approx(classes)


def test_cka_knows_no_rotation_and_no_length() -> None:
    z = draw(7, 3)
    turned, other = 5 * z @ torch.linalg.qr(draw(3, 3))[0] + 1, draw(7, 3)
    assert float(cka(z @ z.T, turned @ turned.T)) == pytest.approx(1.0)
    assert 0 < float(cka(z @ z.T, other @ other.T)) < 0.95
    start = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(cka(start @ start.T, torch.zeros(7, 7, dtype=torch.float64)), start)
    assert not slope.any()  # nothing to align with yet
