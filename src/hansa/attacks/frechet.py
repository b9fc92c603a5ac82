"""The Fréchet distance of two sets of features, as in the Fréchet inception distance (Heusel et al. 2017).

The published FID takes its features from an Inception network.  Here they come from whatever extractor is given, so
numbers compare within one extractor only, and never with published ones.
"""

from __future__ import annotations

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import require


def frechet_distance(one: Array, other: Array) -> float:
    """Return ‖μ − ν‖² + tr(Σ + Τ − 2·(Σ^½ Τ Σ^½)^½), of the Gaussians with the features' means and covariances.

    Both are samples × features; the square roots are those of symmetric matrices, so nothing becomes complex.
    """
    for features in (one, other):
        good = features.ndim == 2 and len(features) >= 2 and bool(np.isfinite(features).all())
        says = "Features must be finite numbers, samples × features, of two samples or more"
        require(good, f"{says}. Got the shape {list(features.shape)}.")
    same = one.shape[1] == other.shape[1]
    require(same, f"Both sets must have the same features. Got {one.shape[1]} and {other.shape[1]}.")
    means = [features.mean(axis=0, dtype=np.float64) for features in (one, other)]
    first, second = (np.atleast_2d(np.cov(features.astype(np.float64), rowvar=False)) for features in (one, other))
    half = _root(first)
    spread = np.trace(first) + np.trace(second) - 2 * np.trace(_root(half @ second @ half))
    return float(((means[0] - means[1]) ** 2).sum() + max(0.0, spread))


def _root(matrix: Array) -> Array:
    """Return the square root of a symmetric matrix without negative eigenvalues but for rounding."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    root: Array = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    return root
