"""Distances between distributions, on plain tensors: samples of some classes against the Gaussian anchor of each.

All classes of a batch are measured at once, and nothing depends on a tensor's value, so `torch.vmap` can put clients
side by side.  Where samples have a `share`, those of share 0 are not there.
"""

from __future__ import annotations

from hansa.lazy import Tensor, torch

GAMMAS = tuple(10.0**power for power in range(-4, 3))  # of the seven kernels exp(−γ·‖x − z‖²)


def membership(y: Tensor, classes: int, share: Tensor | None, kind: torch.dtype) -> Tensor:
    """Return for every sample and class (n × C) whether it is one of it: 1 or 0; nowhere 1 for a filling sample."""
    hot = y[:, None] == torch.arange(classes, device=y.device)
    return (hot if share is None else hot & (share > 0)[:, None]).to(kind)


def w2(z: Tensor, mean: Tensor, root: Tensor | None = None) -> Tensor:
    """Return `W2²(N(v, Σ), N(m̂, Σ̂))` of samples z (n × k) against a mean v and a factor L of `Σ = L·Lᵀ`, or Σ = I.

    m̂ and Σ̂ are the mean and the covariance of the samples, which divides by n − 1 and is zero for one sample.
    """
    alone = torch.zeros(len(z), dtype=torch.long, device=z.device)
    return w2_by_class(z, alone, mean[None], None if root is None else root[None])


def w2_by_class(z: Tensor, y: Tensor, mean: Tensor, root: Tensor | None = None, share: Tensor | None = None) -> Tensor:
    """Return `Σ_c W2²(N(v_c, Σ_c), N(m̂_c, Σ̂_c))` over the classes of some samples (eq. 3, second term).

    `W2² = ‖v_c − m̂_c‖² + tr Σ_c + tr Σ̂_c − 2·tr(Σ_c^½·Σ̂_c·Σ_c^½)^½`; the last trace is the sum of the singular
    values of `M_c = B_c·L_c`, where the rows of B_c are the centred samples over √(n_c − 1).  Its gradient with respect
    to M_c is the polar factor P_c, which gives those with respect to z, v and L: `2·B − 2·P·Lᵀ` for the rows of B,
    `2·(v − m̂)`, and `2·L − 2·Bᵀ·P`.  `mean` is C × k, `root` C × k × k.
    """
    with torch.no_grad():
        hot = membership(y, len(mean), share, z.dtype)
        counts = hot.sum(0)
        held, (centres, rows) = (counts > 0).to(z.dtype), _moments(z, hot)
        shift = (centres - mean) * held[:, None]
        seen = rows if root is None else (rows[:, None] @ root[y])[:, 0]
        polar = _polar(seen, hot, y)
        spread = z.shape[1] * held.sum() if root is None else (root.square().sum((1, 2)) * held).sum()
        value = shift.square().sum() + spread + rows.square().sum() - 2 * (polar * seen).sum()
        back = rows - (polar if root is None else (root[y] @ polar[:, :, None])[:, :, 0])
        pulled = (hot / counts.clamp(min=1)).mT @ back  # whatever moves a mean moves all of its class
        scale = hot @ (counts - 1).clamp(min=1).rsqrt()
        slope = 2 * (hot @ (shift / counts.clamp(min=1)[:, None]) + scale[:, None] * (back - hot @ pulled))
    total = _along(_along(value, z, slope), mean, -2 * shift)
    if root is None:
        return total
    with torch.no_grad():
        steeper = 2 * (root * held[:, None, None] - (hot.mT[:, :, None] * rows).mT @ polar)
    return _along(total, root, steeper)


def _along(value: Tensor, leaf: Tensor, slope: Tensor) -> Tensor:
    """Return a value whose gradient with respect to a leaf is known, and need not be found by going back."""
    return value + ((leaf - leaf.detach()) * slope).sum()


def w2_between(x: Tensor, y: Tensor, z: Tensor, labels: Tensor, classes: int, share: Tensor | None = None) -> Tensor:
    """Return `Σ_c W2²` between the Gaussians of two sets, x with y and z with labels, over the classes of x."""
    hot, other = _both(y, labels, classes, share, x.dtype)
    (centres, rows), (others, columns) = _moments(x, hot), _moments(z, other)
    cross = _nuclear((rows @ columns.mT) * (hot @ other.mT), hot, y)
    return (centres - others).square().sum() + rows.square().sum() + columns.square().sum() - 2 * cross


def _both(y: Tensor, labels: Tensor, classes: int, share: Tensor | None, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the membership of samples, and that of others in the classes that the samples have."""
    hot = membership(y, classes, share, kind)
    return hot, membership(labels, classes, None, kind) * (hot.sum(0) > 0)


def _moments(z: Tensor, hot: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of every class (C × k), and rows b_i with `Σ̂_c = Σ_{i of c} b_i·b_iᵀ` (n × k)."""
    counts = hot.sum(0)
    centres = hot.mT @ z / counts.clamp(min=1)[:, None]
    scale = hot @ (counts - 1).clamp(min=1).rsqrt()  # 0 for samples that are of no class
    return centres, (z - hot @ centres) * scale[:, None]


def _nuclear(rows: Tensor, hot: Tensor, y: Tensor) -> Tensor:
    """Return the singular values of every class's rows, all summed up: `Σ_c ‖M_c‖_* = ⟨P, M⟩`, with the gradient P."""
    with torch.no_grad():
        polar = _polar(rows, hot, y)
    return (polar * rows).sum()


def _polar(rows: Tensor, hot: Tensor, y: Tensor) -> Tensor:
    """Return the polar factor `P = (M·Mᵀ)^{−½}·M` of every class's rows.

    It is made from the products of rows of the same class or the Grams of all classes, whichever is smaller.
    Directions without any length up to the rounding of the rows, as of a single sample, have none in P.  Products lose
    half of the digits, so they are taken in float64.
    """
    wide, member, least = rows.double(), hot.double(), torch.finfo(rows.dtype).eps
    (samples, width), classes = rows.shape, hot.shape[1]
    if samples**3 <= classes * width**3:
        found = _inverse_root((wide @ wide.mT) * (member @ member.mT), least) @ wide
    else:
        grams = (member.mT[:, :, None] * wide).mT @ wide
        found = (wide[:, None] @ _inverse_root(grams, least)[y])[:, 0]
    return found.to(rows.dtype)


def _inverse_root(matrix: Tensor, least: float) -> Tensor:
    """Return `A^{−½}` of positive semi-definite matrices, zero where A is, up to the rounding of what it is made of."""
    values, vectors = torch.linalg.eigh(matrix.nan_to_num(0.0, 0.0, 0.0))  # NaN must stay that of the client it is of
    size = matrix.shape[-1]
    floor = values[..., -1:] * max(size * torch.finfo(matrix.dtype).eps, (size * least) ** 2)
    scale = torch.where(values > floor.clamp(min=1e-300), values.clamp(min=1e-300).rsqrt(), 0.0)
    found: Tensor = (vectors * scale[..., None, :]) @ vectors.mT
    return found


def barycentre(means: Tensor, roots: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and factor of the barycentre of Gaussians N(v_i, L_i·L_iᵀ): the weighted means of v_i and of L_i.

    This is one step of its descent from a common start, which is how a server averages anchors (§4); `means` are
    n × k, `roots` n × k × k.
    """
    shares = weights / weights.sum()
    return torch.tensordot(shares, means, 1), torch.tensordot(shares, roots, 1)


def mmd(x: Tensor, z: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of two sets of samples: the biased estimator over seven kernels."""
    return kernel(x, x).mean() + kernel(z, z).mean() - 2 * kernel(x, z).mean()


def mmd_by_class(x: Tensor, y: Tensor, z: Tensor, labels: Tensor, classes: int, share: Tensor | None = None) -> Tensor:
    """Return `Σ_c MMD²` between two sets, x with y and z with labels, over the classes of x."""
    shares = [hot / hot.sum(0).clamp(min=1) for hot in _both(y, labels, classes, share, x.dtype)]
    one, other = shares  # 1/n_c where a sample is of class c

    def mean(left: Tensor, right: Tensor, pairs: Tensor) -> Tensor:
        return (pairs * kernel(left, right)).sum()

    return mean(x, x, one @ one.mT) + mean(z, z, other @ other.mT) - 2 * mean(x, z, one @ other.mT)


def kernel(x: Tensor, z: Tensor) -> Tensor:
    """Return `Σ_γ exp(−γ·‖x_i − z_j‖²)`, γ = 1e-4, 1e-3, …, 100."""
    squares = x.square().sum(1)[:, None] + z.square().sum(1) - 2 * x @ z.mT
    each = torch.stack([torch.exp(-gamma * squares.clamp(min=0)) for gamma in GAMMAS])
    return each.sum(0)


def cka(left: Tensor, right: Tensor) -> Tensor:
    """Return the centred kernel alignment of two Grams of the same samples, 1 where one is a multiple of the other."""
    one, other = _centred(left), _centred(right)
    lengths = (one.square().sum() * other.square().sum()).clamp(min=1e-30).sqrt()
    return (one * other).sum() / lengths


def _centred(gram: Tensor) -> Tensor:
    return gram - gram.mean(0, keepdim=True) - gram.mean(1, keepdim=True) + gram.mean()
