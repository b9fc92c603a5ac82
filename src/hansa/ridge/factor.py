"""Statistics as a factor: few samples give a Gram matrix of low rank, which travels in few numbers.

A = ZᵀZ of n samples has a rank ≤ r = min(n, d), so A = RᵀR with R (r × d), and b = ZᵀY = RᵀM with M (r × C).  R is the
Cholesky factor of A *itself* with pivots, so it tells nothing that A does not: row i is 0 in the columns of the pivots
before it.  That leaves r·d − r(r−1)/2 numbers of R, the r pivots, and a column of M for every class present.  Factors
do not add up as sums do, so masks that cancel in a sum cannot hide them.
"""

from __future__ import annotations

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.ridge.wire import check_dtype, check_finite, check_numbers, present_classes, spread
from hansa.tree import Tree


def blank(dimension: int, samples: int, classes: int, dtype: torch.dtype) -> Tree:
    """Return the shapes and types of `pack` for so many samples of so many classes, without any memory behind them."""
    check_dtype(dtype)
    rank = min(samples, dimension)
    return {
        "factor": torch.empty(rank * dimension - rank * (rank - 1) // 2, dtype=dtype, device="meta"),
        "moment": torch.empty(rank, classes, dtype=dtype, device="meta"),
        "pivots": torch.empty(rank, dtype=torch.int32, device="meta"),
        "classes": torch.empty(classes, dtype=torch.int32, device="meta"),
        "counts": torch.empty(classes, dtype=torch.float64, device="meta"),
    }


def pack(gram: Tensor, moment: Tensor, counts: Tensor, dtype: torch.dtype) -> Tree:
    """Return R, M, the pivots, and the classes present with their counts."""
    check_dtype(dtype)
    classes = present_classes(moment, counts)
    rows, order, rank = pivoted_cholesky(gram, min(int(counts.sum()), len(gram)))
    turned = moment.new_zeros(len(rows), len(classes))
    corner = rows[:rank, order[:rank]].T
    turned[:rank] = torch.linalg.solve_triangular(corner, moment[order[:rank]][:, classes], upper=False)
    tree = {
        "factor": rows[:, order][_trapezium(*rows.shape)].to(dtype),
        "moment": turned.to(dtype),
        "pivots": order[: len(rows)].to(torch.int32),
        "classes": classes.to(torch.int32),
        "counts": counts[classes],
    }
    check_finite(tree)
    return tree


def unpack(tree: Tree, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return A = RᵀR, b = RᵀM and the counts, checked."""
    rank, dimension = _check(tree, num_classes)
    pivots = tree["pivots"].long()
    rest = torch.ones(dimension, dtype=torch.bool).index_fill(0, pivots, False).nonzero().flatten()
    turned = torch.zeros(rank, dimension, dtype=torch.float64)
    turned[_trapezium(rank, dimension)] = tree["factor"].double()
    rows = torch.empty_like(turned)
    rows[:, torch.cat([pivots, rest])] = turned
    return rows.T @ rows, *spread(rows.T @ tree["moment"].double(), tree, num_classes)


def pivoted_cholesky(gram: Tensor, most: int) -> tuple[Tensor, Tensor, int]:
    """Return R with at most so many rows, all columns in the order of pivots, and A's rank; rows beyond it are 0.

    Every step takes the column of which most is left unexplained, and ends where that is no more than rounding.
    """
    rows, left = gram.new_zeros(most, len(gram)), gram.diagonal().clone()
    floor = len(gram) * torch.finfo(gram.dtype).eps * float(left.max())
    pivots: list[int] = []
    while len(pivots) < most and float(left.max()) > floor:
        done, pivot = len(pivots), int(left.argmax())
        row = (gram[pivot] - rows[:done, pivot] @ rows[:done]) / left[pivot].sqrt()
        row[pivots], row[pivot] = 0.0, left[pivot].sqrt()
        rows[done] = row
        left -= row.square()
        left[pivot] = 0.0
        pivots.append(pivot)
    found = torch.tensor(pivots, dtype=torch.long)
    rest = torch.ones(len(gram), dtype=torch.bool).index_fill(0, found, False).nonzero().flatten()
    return rows, torch.cat([found, rest]), len(pivots)


def _trapezium(rank: int, dimension: int) -> Tensor:
    """Tell which entries of R can be other than 0, once its columns are in the order of pivots."""
    return torch.ones(rank, dimension, dtype=torch.bool).triu()


def _check(tree: Tree, num_classes: int) -> tuple[int, int]:
    """Refuse what is misshapen or not finite; return r and d."""
    shapes = {key: tuple(leaf.shape) for key, leaf in sorted(tree.items())}
    known = shapes.keys() == {"factor", "moment", "pivots", "classes", "counts"}
    require(known, f"Factored ridge statistics need factor, moment, pivots, classes and counts. Got {shapes}.")
    rank, classes = tree["pivots"].numel(), tree["classes"].numel()
    numbers = tree["factor"].numel() + rank * (rank - 1) // 2
    dimension = numbers // max(rank, 1)
    expected = {key: tuple(leaf.shape) for key, leaf in blank(dimension, rank, classes, torch.float64).items()}
    fits = 0 < rank <= dimension and shapes == expected
    require(fits, f"Factored ridge statistics are misshapen: {rank} rows. Got {shapes}.")
    check_numbers(tree, num_classes)
    pivots = tree["pivots"].long()
    within = bool(((pivots >= 0) & (pivots < dimension)).all()) and len(torch.unique(pivots)) == rank
    require(within, f"Factored ridge statistics must name each pivot in 0..{dimension - 1} at most once.")
    return rank, dimension
