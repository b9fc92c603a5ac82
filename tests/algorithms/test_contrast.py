"""Contrastive losses against loops over single numbers, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hansa.training.closed_contrast import closed_contrast
from hansa.training.contrast import (
    Denominator,
    Direction,
    class_means,
    prototype_contrast,
    prototype_distance,
    supervised_contrast,
    unit,
)
from hansa.training.prototype_objectives import padded_bank

TAU = 0.3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dot(a: Tensor, b: Tensor) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True)) / TAU


Z, Y = unit(drawn(7, 4)), torch.tensor([0, 1, 2, 0, 1, 0, 3])
SETS = unit(drawn(3, 4, 4, seed=1))
SETS[:, 3] = 0.0  # nobody has the last class
SETS[1, 2] = 0.0  # and one client not the third


def by_samples(i: int, prototypes: Tensor, denominator: Denominator) -> float | None:
    """Eq. 8 for one sample and one set, term by term; None where there is nothing to tell."""
    known = [c for c in range(4) if prototypes[c].any()]
    rivals = [c for c in known if denominator == "all" or c != Y[i]]
    if int(Y[i]) not in known or not rivals:
        return None
    below = sum(math.exp(dot(Z[i], prototypes[c])) for c in rivals)
    return -math.log(math.exp(dot(Z[i], prototypes[Y[i]])) / below)


def by_prototypes(i: int, prototypes: Tensor, denominator: Denominator) -> float | None:
    """The authors' program for one sample and one set."""
    others = [a for a in range(len(Y)) if a != i]
    alike = [a for a in others if Y[a] == Y[i]]
    rivals = [a for a in others if denominator == "all" or Y[a] != Y[i]]
    if not prototypes[Y[i]].any() or not alike or not rivals:
        return None
    below = sum(math.exp(dot(prototypes[Y[i]], Z[a])) for a in rivals)
    return -sum(math.log(math.exp(dot(prototypes[Y[i]], Z[p])) / below) for p in alike) / len(alike)


@pytest.mark.parametrize("denominator", ["all", "negatives"])
@pytest.mark.parametrize(("direction", "one"), [("samples", by_samples), ("prototypes", by_prototypes)])
def test_the_loss_is_that_of_the_loops(
    direction: Direction, one: Callable[[int, Tensor, Denominator], float | None], denominator: Denominator
) -> None:
    found = prototype_contrast(Z, Y, SETS, temperature=TAU, denominator=denominator, direction=direction)
    for i in range(len(Y)):
        told = [loss for loss in (one(i, prototypes, denominator) for prototypes in SETS) if loss is not None]
        assert float(found[i]) == pytest.approx(sum(told) / len(told) if told else 0.0, rel=1e-12)
    alone = prototype_contrast(Z, Y, SETS[0], temperature=TAU, denominator=denominator, direction=direction)
    expected = [one(i, SETS[0], denominator) or 0.0 for i in range(len(Y))]
    assert alone.tolist() == pytest.approx(expected, rel=1e-12)
    assert alone[6] == 0.0 and (alone[:2] != 0).all()


def test_the_positive_in_the_denominator_makes_the_loss_positive() -> None:
    assert (prototype_contrast(Z[:6], Y[:6], SETS[0]) > 0).all()
    assert (prototype_contrast(Z, Y, SETS[0], denominator="negatives") < 0).any()


def test_supervised_contrast_is_that_of_the_loops() -> None:
    found = supervised_contrast(Z, Y, temperature=TAU)
    for i in range(len(Y)):
        others = [a for a in range(len(Y)) if a != i]
        alike = [a for a in others if Y[a] == Y[i]]
        below = sum(math.exp(dot(Z[i], Z[a])) for a in others)
        told = [-math.log(math.exp(dot(Z[i], Z[p])) / below) for p in alike]
        assert float(found[i]) == pytest.approx(sum(told) / len(told) if told else 0.0, rel=1e-12)


@pytest.mark.parametrize("direction", ["samples", "prototypes"])
def test_samples_that_fill_up_a_batch_change_nothing(direction: Direction) -> None:
    there = torch.tensor([True] * 5 + [False] * 2)
    whole = prototype_contrast(Z, Y, SETS, direction=direction, there=there)[:5]
    assert torch.allclose(whole, prototype_contrast(Z[:5], Y[:5], SETS, direction=direction), rtol=1e-12)
    whole = supervised_contrast(Z, Y, there=there)[:5]
    assert torch.allclose(whole, supervised_contrast(Z[:5], Y[:5]), rtol=1e-12)


@pytest.mark.parametrize("denominator", ["all", "negatives"])
@pytest.mark.parametrize("direction", ["samples", "prototypes"])
def test_clients_side_by_side_are_clients_alone(direction: Direction, denominator: Denominator) -> None:
    z, y = unit(drawn(3, 6, 4, seed=2)), torch.randint(4, (3, 6), generator=torch.Generator().manual_seed(3))

    def one(z: Tensor, y: Tensor) -> Tensor:
        return prototype_contrast(z, y, SETS, denominator=denominator, direction=direction)

    assert torch.allclose(torch.vmap(one)(z, y), torch.stack([one(a, b) for a, b in zip(z, y, strict=True)]))


@pytest.mark.parametrize("denominator", ["all", "negatives"])
@pytest.mark.parametrize("direction", ["samples", "prototypes"])
def test_where_there_is_nothing_to_contrast_the_gradient_is_zero(
    direction: Direction, denominator: Denominator
) -> None:
    """A batch of one class that nobody has sent; and embeddings of zeros, which have no direction."""
    z, y = drawn(3, 4, seed=4).requires_grad_(), torch.zeros(3, dtype=torch.long)
    how = {"denominator": denominator, "direction": direction}
    nobody = prototype_contrast(unit(z), y, torch.zeros(2, 4, 4, dtype=torch.float64), **how)  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(nobody.sum(), z)
    assert torch.equal(nobody, torch.zeros(3, dtype=torch.float64)) and torch.equal(slope, torch.zeros_like(z))
    dark = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(prototype_contrast(unit(dark), y, SETS, **how).sum(), dark)  # type: ignore[arg-type]
    assert slope.isfinite().all() and slope.abs().max() < 100


@pytest.mark.parametrize("denominator", ["all", "negatives"])
def test_the_closed_form_is_what_autograd_makes_of_the_loss(denominator: Denominator) -> None:
    """With classes that nobody has or one client lacks, sets of one prototype alone, and an embedding of zeros."""
    alone = torch.zeros_like(SETS[:1])
    alone[0, 0] = SETS[0, 0]
    u = drawn(7, 4, seed=7)
    u[4] = 0.0
    weights, terms = drawn(7, seed=8), [SETS[2:], torch.cat([SETS, alone])]

    def both(u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        how = {"temperature": TAU, "denominator": denominator}
        general = sum(prototype_contrast(unit(u), y, term, **how) for term in terms)  # type: ignore[arg-type]
        return torch.as_tensor(general), closed_contrast(u, y, terms, TAU, denominator)

    def slopes(found: tuple[Tensor, Tensor], u: Tensor, weights: Tensor) -> list[Tensor]:
        return [torch.autograd.grad((losses * weights).sum(), u, retain_graph=True)[0] for losses in found]

    found = both(u.requires_grad_(), Y)
    assert torch.allclose(*found, rtol=1e-12)
    general, closed = slopes(found, u, weights)
    assert torch.allclose(general, closed, rtol=1e-12, atol=1e-12) and closed[:4].any(1).all() and not closed[6].any()
    many, y = torch.stack([u.detach(), drawn(7, 4, seed=9)]).requires_grad_(), torch.stack([Y, Y.flip(0)])
    stacked = torch.vmap(both)(many, y)  # clients side by side
    assert torch.allclose(*stacked, rtol=1e-12)
    assert torch.allclose(*slopes(stacked, many, torch.stack([weights, weights])), rtol=1e-12, atol=1e-12)


def test_class_means_and_distances() -> None:
    means, counts = class_means(Z, Y, 5)
    assert counts.tolist() == [3, 2, 1, 1, 0]
    assert torch.allclose(means[0], (Z[0] + Z[3] + Z[5]) / 3) and not means[4].any()
    apart = prototype_distance(Z, Y, SETS[1])
    assert float(apart[0]) == pytest.approx(sum(float(Z[0, k] - SETS[1, 0, k]) ** 2 for k in range(4)) / 4)
    assert apart[2] == 0.0 and apart[6] == 0.0  # of these classes there is no prototype


def test_a_bank_that_clients_pad_is_the_padded_bank() -> None:
    held = torch.tensor([[True, False, True, False], [False, False, False, True], [True, True, True, False]])
    common, each = drawn(4, 2, seed=5), drawn(3, 4, 2, seed=6)
    whole = torch.where(held[..., None], each, common)
    assert torch.equal(padded_bank({"global": common, "rows": each[held], "held": held}), whole)
    assert padded_bank({"global": common, "bank": whole}) is whole
