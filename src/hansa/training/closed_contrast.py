"""FedPCL's loss with its gradient in closed form: two products, where autograd makes sixty small operations of them.

A client of few samples spends more on the way back through norms, masks and sums than on products.  The gradient of
`L_i = Σ_s a_is·(log Σ_c exp(z_i·C_s^c/τ) − z_i·C_s^{y_i}/τ)` is known: along z it is, with p the softmax over classes,
`g = 1/τ·Σ_s a_is·(Σ_c p_isc·C_s^c − C_s^{y_i})`, and along the embedding u, of which `z = u/|u|`, `(g − z(z·g))/|u|`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hansa.lazy import Tensor, torch
from hansa.training.contrast import NONE, TINY, Denominator


def closed_contrast(
    u: Tensor, y: Tensor, terms: Sequence[Tensor], temperature: float, denominator: Denominator
) -> Tensor:
    """Return the sum over terms of `prototype_contrast(unit(u), y, term)` for every sample, to be derived once, by u.

    Terms are sets of prototypes, m × C × k each, which do not train.
    """
    with torch.no_grad():
        losses, slope = _with_slope(u, y, terms, temperature, denominator)
    return losses + (slope * (u - u.detach())).sum(1)  # its value is the losses, its gradient the slope


def _with_slope(
    u: Tensor, y: Tensor, terms: Sequence[Tensor], temperature: float, denominator: Denominator
) -> tuple[Tensor, Tensor]:
    """Return every sample's loss, and its gradient."""
    sets = torch.cat([term.transpose(0, 1) for term in terms], 1)  # classes first: their sums go along memory
    known = torch.linalg.vector_norm(sets, dim=-1) > 0
    finds = known & (known.sum(0) > 1) if denominator == "negatives" else known  # there is a rival beside it
    parts = finds.to(u.dtype).split([len(term) for term in terms], 1)
    count = torch.cat([part / part.sum(1, keepdim=True).clamp(min=1) for part in parts], 1)[y]  # samples × sets
    length = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    length = torch.where(length > TINY, length, 1.0)
    z, rows = u / length, sets.flatten(0, 1)
    near = (z @ rows.T / temperature).view(len(u), *known.shape)
    place = y[:, None, None].expand(-1, 1, near.shape[2])
    own = near.gather(1, place)
    near = near + torch.where(known, 0.0, NONE)
    if denominator == "negatives":
        near = near.scatter(1, place, NONE)
    below = near.logsumexp(1, keepdim=True)
    losses = ((below - own).squeeze(1) * count).sum(1)
    count = count[:, None]
    pull = (near - below).exp_().mul_(count).scatter_add_(1, place, -count)
    slope = pull.flatten(1) @ rows / temperature
    return losses, (slope - z * (z * slope).sum(1, keepdim=True)) / length
