"""Evaluation of models: on one test set, client by client, and on classes a client lacks.

Metrics are pieces.  A `Suite` holds those of a run; `evaluate_outputs` applies it to one test set,
`rows_of` to the test sets of many clients at once, and `fold` makes the numbers of a run from the clients' rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.metrics.facts import BEST, TABLE, WORST
from hansa.metrics.pieces import (
    MAE,
    R2,
    RMSE,
    Accuracy,
    BalancedAccuracy,
    Loss,
    Metric,
    MetricPiece,
    Table,
    balanced,
    class_counts,
    defined,
)
from hansa.tree import Tree

BLOCK = 2048  # samples evaluated at once …
BLOCK_BYTES = 2**28  # … unless their inputs take more
CLASS_ACCURACIES = ("local_class_accuracy", "outside_class_accuracy")
RESERVED = (
    "client",
    "samples",
    "undefined",
    "correct",
    "visited",
    *CLASS_ACCURACIES,
)  # names of columns beside the metrics
SUMMED = ("class_hits", "class_totals")  # leaves of rows that are sums over clients, beside every additive table
OBSERVED = "observed."  # what the names of columns begin with that clients tell for exhibits
Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Suite:
    """The metrics and tables of a run, and the metric whose spread over clients is told in full."""

    metrics: tuple[Metric, ...]
    tables: tuple[Table, ...] = ()
    headline: Metric = Accuracy()

    def __post_init__(self) -> None:
        pieces: tuple[MetricPiece, ...] = (*self.metrics, *self.tables)
        names = [*RESERVED, *(piece.name for piece in pieces)]
        for name in names:
            good = re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None
            require(good, f"A metric's name must be small letters, digits and underscores. Got {name!r}.")
            require(names.count(name) == 1, f"The name '{name}' of a metric is taken. Give the metric another one.")
        require(self.headline in self.metrics, f"The headline '{self.headline.name}' is not among the metrics.")

    @property
    def real(self) -> bool:
        """Whether the targets are real numbers, not classes."""
        return not self.headline.for_classes


def default_suite(real: bool, asked: Sequence[MetricPiece] = ()) -> Suite:
    """Return the metrics every run has, for real targets or classes, and those that were asked for beside them."""
    usual: tuple[Metric, ...] = (RMSE(), MAE(), R2()) if real else (Accuracy(), Loss(), BalancedAccuracy())
    for piece in asked:
        good = isinstance(piece, MetricPiece)
        require(good, f"A metric must be a subclass of Metric or Table of hansa.metrics.pieces. Got {piece!r}.")
        kind, fits = ("real targets", piece.for_real) if real else ("classes", piece.for_classes)
        require(fits, f"The metric '{piece.name}' is not for {kind}, which this run has. Leave it out of the plan.")
    metrics = (piece for piece in asked if isinstance(piece, Metric) and piece not in usual)
    tables = (piece for piece in asked if isinstance(piece, Table))
    return Suite((*usual, *dict.fromkeys(metrics)), tuple(dict.fromkeys(tables)), usual[0])


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Drop what is no number: a loss that overflowed, a mean over nothing.  No file may hold NaN or infinity."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def outputs(forward: Forward, x: Tensor) -> Tensor:
    """Return the model's outputs for all inputs, computed in blocks; the inputs may be read when they are asked for."""
    rows = max(1, min(BLOCK, BLOCK_BYTES // max(1, 4 * math.prod(x.shape[1:]))))
    with torch.no_grad():
        return torch.cat([forward(x[first : first + rows]) for first in range(0, max(len(x), 1), rows)])


# -------------------------------------------------------------------------------------------------- of one test set


def evaluate_outputs(suite: Suite, out: Tensor, y: Tensor) -> dict[str, float]:
    """Return the metrics of one model on one test set, by name and without a prefix.

    A model that answers with anything but numbers has no metrics: only `undefined`, the number of such samples.
    """
    undefined = int((~defined(out, real=suite.real)).sum())
    if undefined:
        return {"undefined": float(undefined)}
    return finite({metric.name: metric.one(out, y) for metric in suite.metrics})


def tables_of(suite: Suite, out: Tensor, y: Tensor) -> Tree:
    """Return the tables of one model on one test set, by name."""
    return {table.name: table.table(out, y) for table in suite.tables}


# -------------------------------------------------------------------------------------------------- client by client


def rows_of(suite: Suite, out: Tensor, y: Tensor, there: Tensor) -> Tree:
    """Return a row per client of k, padded to n samples each: outputs (k × n × C), labels and who is there (k × n).

    Columns are the metrics (NaN where undefined), `samples`, and `undefined`, the samples without a number for an
    answer.  Beside them are sums over the clients: recognised and all samples of every class, and additive tables.
    """
    undefined = (there & ~defined(out, real=suite.real)).sum(1)
    whole = undefined == 0
    columns = {metric.name: metric.many(out, y, there).double().where(whole, torch.nan) for metric in suite.metrics}
    sums = _sums(suite, out, y, there & whole[:, None])
    rows = {**columns, "samples": there.sum(1), "undefined": undefined, **sums}
    return {key: leaf.cpu() for key, leaf in rows.items()}  # few numbers, which are folded and stored there


def _sums(suite: Suite, out: Tensor, y: Tensor, there: Tensor) -> Tree:
    """Sum over clients: additive tables, and the classes' counts where balanced accuracy is among the metrics."""
    tables = {f"{TABLE}{one.name}": one.table(out[there], y[there]) for one in suite.tables if one.additive}
    if BalancedAccuracy() not in suite.metrics:
        return tables
    counts = (column.sum(0) for column in class_counts(out, y, there))
    return {**dict(zip(SUMMED, counts, strict=True)), **tables}


def stack_rows(parts: Sequence[Tree]) -> Tree:
    """Stack the rows of several calls below one another; add up what is a sum over clients."""
    require_alike([{key: leaf[0] for key, leaf in part.items() if key.startswith(OBSERVED)} for part in parts])
    return {key: _joined(key, [part[key] for part in parts]) for key in (parts[0] if parts else ())}


def require_alike(observed: Sequence[Tree]) -> None:
    """Refuse what clients tell for exhibits where it does not fit into one table."""
    shapes = [{key: leaf.shape for key, leaf in one.items()} for one in observed]
    says = "What clients observe for exhibits must have the same leaves and shapes for all of them, and does not"
    require(all(one == shapes[0] for one in shapes), f"{says}: fill up what one lacks.")


def _joined(key: str, leaves: Sequence[Tensor]) -> Tensor:
    return torch.stack([*leaves]).sum(0) if is_sum(key) else torch.cat([*leaves])


def is_sum(key: str) -> bool:
    """Tell whether a leaf of rows is a sum over clients, not a column with a value for each."""
    return key in SUMMED or key.startswith(TABLE)


def fold(suite: Suite, rows: Tree, visited: Tensor | None = None, prefix: str = "client_") -> dict[str, float]:
    """Return a run's numbers from its clients' rows: every metric weighted by samples, its mean and its spread.

    `visited` says of every client of the federation whether a round ever reached it; the rows' `client` column finds
    it there.  Accuracies inside and outside the clients' classes become means under their own names.  Where some
    client's model has diverged, a mean over the others would hide it: only `undefined`, the number of such clients, is
    told.
    """
    diverged = int((rows["undefined"] > 0).sum())
    if diverged:
        return {f"{prefix}undefined": float(diverged)}
    found: dict[str, float] = {}
    for metric in suite.metrics:
        found |= _over_clients(metric.name, rows)
        found |= _spread(metric, rows) if metric == suite.headline else {}
    found |= _apart(suite.headline.name, rows, visited)
    if SUMMED[0] in rows:
        found["balanced_accuracy_pooled"] = float(balanced(rows[SUMMED[0]], rows[SUMMED[1]]))
    return {**{f"{prefix}{name}": value for name, value in finite(found).items()}, **class_means(rows)}


def _over_clients(name: str, rows: Tree) -> dict[str, float]:
    """Return the mean by samples, and mean and (population) deviation of clients counted once; skip the undefined."""
    there = ~rows[name].isnan()
    values, samples = rows[name][there], rows["samples"][there].double()
    return {
        f"{name}_weighted": float((values * samples).sum() / samples.sum()),
        f"{name}_mean": float(values.mean()),
        f"{name}_std": float(values.std(unbiased=False)) if len(values) else math.nan,
    }


def _spread(metric: Metric, rows: Tree) -> dict[str, float]:
    """Return the distribution of a metric over clients.

    `worst20` is the mean of the worst fifth, `best10` of the best tenth (at least one client): for an error, the worst
    are the largest.  Decile i is the value that lies i tenths of the way through the clients in ascending order,
    interpolated linearly between the two beside it (quantile definition 7 of Hyndman and Fan, NumPy's).
    """
    ascending = rows[metric.name][~rows[metric.name].isnan()].sort().values
    if not len(ascending):
        return {}
    tenths = torch.arange(1, 10, dtype=torch.float64, device=ascending.device) / 10
    worst_first = ascending if metric.higher else ascending.flip(0)
    return {
        **{f"{metric.name}_worst{share}": _share_mean(worst_first, share) for share in WORST},
        **{f"{metric.name}_best{share}": _share_mean(worst_first.flip(0), share) for share in BEST},
        **{f"{metric.name}_decile{i}": float(value) for i, value in enumerate(_quantiles(ascending, tenths), 1)},
    }


def _quantiles(ascending: Tensor, shares: Tensor) -> Tensor:
    """Return `torch.quantile` of sorted values, which itself refuses more than 16 million of them."""
    place = shares * (len(ascending) - 1)
    below = ascending[place.floor().long()]
    return below + (ascending[place.ceil().long()] - below) * place.frac()


def _share_mean(ordered: Tensor, percent: int) -> float:
    """Return the mean of the first so many per cent, at least one."""
    return float(ordered[: max(1, len(ordered) * percent // 100)].mean())


def _apart(name: str, rows: Tree, visited: Tensor | None) -> dict[str, float]:
    """Return the means of clients that were visited and of those that never were, where there are both."""
    if visited is None:
        return {}
    seen, there = visited[rows["client"]] if "client" in rows else visited, ~rows[name].isnan()
    groups = {f"{name}_mean_visited": rows[name][seen & there], f"{name}_mean_unvisited": rows[name][~seen & there]}
    both = all(len(group) for group in groups.values())
    return {title: float(group.mean()) for title, group in groups.items()} if both else {}


# --------------------------------------------------------------------------------------------- classes a client lacks


def accuracy_inside(out: Tensor, y: Tensor, held: Tensor) -> tuple[float, float]:
    """Return the mean accuracy over the classes that a client trains on (`held`, a mask), and over all others.

    This is what Figure 12 of Fanì et al. (2025) shows of personalisation epoch by epoch; an OLL model is at 0 on the
    others.  NaN where the test set has no such class; both are NaN where the model has diverged.
    """
    if not bool(defined(out, real=False).all()):
        return math.nan, math.nan
    there = torch.ones(1, len(y), dtype=torch.bool, device=out.device)
    hits, totals = (count[0] for count in class_counts(out[None], y[None], there))
    return float(balanced(hits[held], totals[held])), float(balanced(hits[~held], totals[~held]))


def class_means(rows: Tree) -> dict[str, float]:
    """Average the clients' accuracies inside and outside their classes, where rows have these columns.

    A client without such a class in the test set does not count.  It has a class of the one kind or the other, so one
    without either has diverged, and leaves no mean.
    """
    columns = [rows[name] for name in CLASS_ACCURACIES if name in rows]
    if not columns or bool(torch.stack(columns).isnan().all(0).any()):
        return {}
    return finite({name: float(rows[name].nanmean()) for name in CLASS_ACCURACIES})
