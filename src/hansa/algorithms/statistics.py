"""Ridge statistics as leaves of an upload: what the closed-form algorithms have in common."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Literal

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.metrics.exhibits import Exhibit
from hansa.ridge import RegressionStatistics, RidgeStatistics, clip_features, factor, gcv
from hansa.ridge.wire import blank
from hansa.task import ClientData, Task
from hansa.tree import Tree, is_finite, nest, pick

Precision = Literal["float32", "float64"]
Ridge = float | Literal["gcv"]  # λ, or how it is chosen
Upload = Literal["packed", "factor", "full"]
BLOCK = 2048  # samples whose features are held at once
NEVER = -1e12  # the offset of a class that nobody has; not lower, so that its weight decay is far from overflow
RELEASE = "release"  # the group of what noise was added to, in a server's state or a client's


def to_tree(statistics: RidgeStatistics | RegressionStatistics, group: str = "ridge") -> Tree:
    """Return the sums as leaves of a group."""
    return nest(group, statistics.leaves())


def from_tree(tree: Tree, group: str = "ridge") -> RidgeStatistics:
    """Return the sums over classes that a group of leaves holds."""
    found = pick(group, tree)
    return RidgeStatistics(found["gram"], found["moment"], found["counts"])


def regression_from_tree(tree: Tree, group: str = "ridge") -> RegressionStatistics:
    """Return the sums over real targets that a group of leaves holds."""
    return RegressionStatistics(**pick(group, tree))


def empty(task: Task, width: int) -> Tree:
    """Return the statistics of no samples, for classes or real targets."""
    kind = RegressionStatistics if task.real else RidgeStatistics
    return to_tree(kind.zeros(width, task.outputs))


def regress(task: Task, params: Tree, data: ClientData) -> RegressionStatistics:
    """Collect a client's sums for real targets, in float64: centring takes differences of large sums."""
    parts, where = blocks(task, params, data, "float64"), _where(data)
    return RegressionStatistics.from_clients(parts, head_width(params), task.outputs, **where).to("cpu")


def blocks(task: Task, params: Tree, data: ClientData, products: Precision) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features and labels some rows at a time: a wide feature map never exists for all samples at once."""
    for first in range(0, len(data), BLOCK):
        with torch.no_grad():
            z = task.features(params, data.x[first : first + BLOCK])
        yield z.to(getattr(torch, products)), data.y[first : first + BLOCK]


def collect(
    task: Task, params: Tree, data: ClientData, products: Precision, clip: float | None = None
) -> RidgeStatistics:
    """Return a client's statistics (eqs. 7 and 8), of features clipped to a length where one is given."""
    found = blocks(task, params, data, products)
    parts = found if clip is None else ((clip_features(z, clip), y) for z, y in found)
    return RidgeStatistics.from_clients(parts, head_width(params), task.num_classes, **_where(data)).to("cpu")


def _where(data: ClientData) -> dict[str, Any]:
    """Return where sums are taken, and how many rows at a time: beside the samples, on a device many blocks at once."""
    device = data.y.device
    return {"device": device, "block": BLOCK if device.type == "cpu" else None}


def class_sums(task: Task, data: ClientData, products: Precision) -> tuple[Tensor, Tensor]:
    """Return the sum of a client's features (d × C) and the number of its samples, class by class, in float64."""
    moment = torch.zeros(head_width(task.params()), task.num_classes, dtype=torch.float64)
    counts = torch.zeros(task.num_classes, dtype=torch.float64)
    for z, y in blocks(task, task.params(), data, products):
        moment.index_add_(1, y.cpu(), z.T.double().cpu())  # from whatever device the network is on
        counts += torch.bincount(y.cpu(), minlength=task.num_classes)
    return moment, counts


def collecting_flops(task: Task, width: int, samples: int) -> float:
    """Count φ once a sample, a multiply-add for every entry of A's upper triangle, an addition for every entry of z."""
    return samples * (task.features_flops + width * (width + 1) + width)


def encode(statistics: RidgeStatistics, wire: Precision, upload: Upload) -> Tree:
    """Encode as `packed` (J): upper triangle and the classes present; as `full` (W): all of A, b and the counts.

    As a `factor`: R (r × d) with A = RᵀR and M with b = RᵀM, where r is the number of samples, at most d.
    """
    dtype = getattr(torch, wire)
    if upload != "full":
        return statistics.pack(dtype) if upload == "packed" else statistics.pack_factor(dtype)
    full = {"gram": statistics.gram, "moment": statistics.moment, "counts": statistics.counts}
    return {key: leaf.to(dtype) for key, leaf in full.items()}


def upload_shape(width: int, classes: int, data: ClientData, dtype: torch.dtype, upload: Upload) -> Tree:
    """Return the shapes and types of what `encode` gives, which depend on the classes and the samples of a client."""
    present = len(torch.unique(data.y))
    if upload != "full":
        packed = upload == "packed"
        return blank(width, present, dtype) if packed else factor.blank(width, len(data), present, dtype)
    shapes = {"gram": (width, width), "moment": (width, classes), "counts": (classes,)}
    return {key: torch.empty(shape, dtype=dtype, device="meta") for key, shape in shapes.items()}


def decode(wire: Tree, num_classes: int, upload: Upload) -> RidgeStatistics:
    """Invert `encode`; refuse what is misshapen or not finite."""
    if upload != "full":
        unpack = RidgeStatistics.unpack if upload == "packed" else RidgeStatistics.unpack_factor
        return unpack(wire, num_classes)
    finite = all(is_finite(leaf) for leaf in wire.values())
    require(finite, "Ridge statistics must be finite numbers. Got NaN or infinity.")
    return RidgeStatistics(wire["gram"].double(), wire["moment"].double(), wire["counts"].double())


def check_ridge(ridge: Ridge, name: str, key: str = "ridge") -> None:
    """Refuse a λ that gives no solution."""
    why = "without it the system may have no unique solution"
    good = ridge == "gcv" or (not isinstance(ridge, str) and ridge > 0)
    sign = "λ" if key == "ridge" else "γ"
    require(good, f"The '{key}' ({sign}) of {name} must be a number > 0, {why}, or 'gcv'. Got {ridge!r}.")


def chosen_ridge(ridge: Ridge, statistics: RidgeStatistics | RegressionStatistics, intercept: bool) -> float:
    """Return λ: the number given, or the choice of generalised cross-validation; without samples any λ gives zeros."""
    if not isinstance(ridge, str):
        return ridge
    sums = (statistics.gram, statistics.moment)
    known = _CHOSEN.get(intercept)
    if known is None or not all(_same(ref(), leaf) for ref, leaf in zip(known[0], sums, strict=True)):
        lam = gcv(statistics, intercept=intercept).lam if statistics.n > 1 else 1.0
        _CHOSEN[intercept] = known = tuple(map(weakref.ref, sums)), lam
    return known[1]


# The last choice, with and without an intercept: a model is made of the same sums several times after a round, and an
# eigendecomposition takes longer than all else.  Sums that nobody holds any more are not kept for it.
_CHOSEN: dict[bool, tuple[tuple[weakref.ref[Tensor], ...], float]] = {}


def _same(known: Tensor | None, leaf: Tensor) -> bool:
    return known is not None and known.shape == leaf.shape and known.device == leaf.device and torch.equal(known, leaf)


CHOSEN_BY = {
    "gcv": "Chosen by generalised cross-validation from the sums at the server: no hold-out, no upload.",
    "adassp": "Chosen by AdaSSP, from the size of the noise and the least eigenvalue of the released sums.",
}


def ridge_exhibits(lam: float, rule: str = "gcv") -> tuple[Exhibit, ...]:
    """Show the λ that was chosen."""
    return (Exhibit("ridge λ", "curve", {"λ": [lam]}, CHOSEN_BY[rule]),)


def head_width(params: Tree) -> int:
    """Count the features the head sees; closed forms replace a head that is one linear layer."""
    extra = [key for key in params if key.startswith("head.") and key not in ("head.weight", "head.bias")]
    good = "head.weight" in params and params["head.weight"].ndim == 2 and not extra
    require(good, f"A closed form replaces a head of one linear layer; this model's head has {extra or 'none'}.")
    return int(params["head.weight"].shape[1])


def with_head(params: Tree, weights: Tensor) -> Tree:
    """Return the parameters with a closed-form classifier W (d × C, or d+1 rows with intercepts) as the head."""
    old = params["head.weight"]
    width = old.shape[1]
    intercepts = weights[width] if len(weights) > width else torch.zeros(weights.shape[1])
    require(
        len(weights) == width or "head.bias" in params,
        "An intercept needs a head with a bias; this model's head has none.",
    )
    bias = {"head.bias": intercepts.to(old.dtype)} if "head.bias" in params else {}
    return params | {"head.weight": weights[:width].T.to(old.dtype).contiguous()} | bias
