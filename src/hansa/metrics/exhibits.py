"""Exhibits: tables that an algorithm shows beside the metrics, with a hint how to draw them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from hansa.errors import HansaError, require
from hansa.lazy import Tensor, torch

Kind = Literal["curve", "scatter", "heat map"]
Cell = float | str | None  # None is a number that is missing
WORDS = ("group", "name")  # columns of text that a scatter may have


@dataclass(frozen=True)
class Exhibit:
    """A table that an algorithm shows of an evaluation, and how the report draws it.

    A `curve` has one row of numbers: every column is a line over the evaluated rounds.  A `scatter` has a row for each
    point: two columns of numbers and perhaps two of text, `group`, which colours it, and `name`.  A `heat map` has a
    column of text, which names its rows, and columns of numbers, which are its cells.
    """

    title: str  # one exhibit of a phase has it
    kind: Kind
    columns: Mapping[str, Sequence[Cell]]
    note: str = ""  # what a reader should know

    def __post_init__(self) -> None:
        says, known = f"The exhibit '{self.title}'", get_args(Kind)
        require(self.kind in known, f"{says} must be one of {', '.join(known)}. Got {self.kind!r}.")
        lengths = {len(column) for column in self.columns.values()}
        require(len(lengths) == 1 and 0 not in lengths, f"{says} must have columns of one length, and at least a row.")
        rows = lengths.pop()
        texts = [name for name, column in self.columns.items() if all(isinstance(cell, str) for cell in column)]
        numbers = [name for name, column in self.columns.items() if all(map(_number, column))]
        require(len(texts) + len(numbers) == len(self.columns), f"{says} mixes text and numbers in a column.")
        fits = {
            "curve": not texts and rows == 1,
            "scatter": len(numbers) == 2 and set(texts) <= set(WORDS),
            "heat map": len(texts) == 1 and len(numbers) > 0,
        }
        wanted = {
            "curve": "one row of numbers",
            "scatter": "two columns of numbers, and of text only 'group' and 'name'",
            "heat map": "one column of text, which names its rows, and others of numbers",
        }
        require(fits[self.kind], f"{says} is a {self.kind}, which has {wanted[self.kind]}.")

    @property
    def numbers(self) -> dict[str, list[float | None]]:
        """The columns of numbers; what is missing or not finite is None."""
        found = {name: column for name, column in self.columns.items() if not isinstance(column[0], str)}
        return {name: [_finite(cell) for cell in column] for name, column in found.items()}

    @property
    def texts(self) -> dict[str, list[str]]:
        """The columns of text."""
        return {
            name: [str(cell) for cell in column] for name, column in self.columns.items() if name not in self.numbers
        }

    def table(self) -> dict[str, Any]:
        """Return it as JSON."""
        columns = {name: self.numbers.get(name) or self.texts[name] for name in self.columns}
        return {**asdict(self), "columns": columns}


def exhibit_from_table(table: Any) -> Exhibit:
    """Return the exhibit that a table describes, or tell what is wrong with it."""
    try:
        return Exhibit(**{key: table[key] for key in ("title", "kind", "columns", "note")})
    except (KeyError, TypeError, AttributeError) as error:
        raise HansaError(f"An exhibit is damaged ({type(error).__name__}: {error}).") from error


def _number(cell: object) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _finite(cell: Cell) -> float | None:
    return float(cell) if isinstance(cell, int | float) and math.isfinite(cell) else None


def packed(exhibits: Sequence[Exhibit]) -> Tensor:
    """Return exhibits as a leaf that a store keeps; two of one title would be drawn as one, and are refused."""
    titles = [one.title for one in exhibits]
    twice = next((title for title in titles if titles.count(title) > 1), None)
    require(twice is None, f"Two exhibits of one phase have the title '{twice}'; give each its own.")
    return torch.frombuffer(bytearray(json.dumps([one.table() for one in exhibits]).encode()), dtype=torch.uint8)


def unpacked(leaf: Tensor) -> list[Exhibit]:
    """Return the exhibits that a leaf holds."""
    return [exhibit_from_table(table) for table in json.loads(bytes(leaf.tolist()))]


def principal_plane(points: Tensor) -> Tensor:
    """Return the two principal components of points (n × d), for a scatter; n × 2, in float64.

    Of each the largest coefficient is positive, so that the same points always give the same picture.
    """
    centred = points.double() - points.double().mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    largest = directions.abs().argmax(1, keepdim=True)
    plane = centred @ (directions * directions.gather(1, largest).sign()).T
    return torch.nn.functional.pad(plane, (0, 2 - plane.shape[1]))


def neighbour_plane(points: Tensor) -> Tensor:
    """Return where t-SNE puts points (n × d), for a scatter; n × 2, in float64.

    Neighbours stay neighbours; distances and directions on the plane mean nothing.  It begins at the principal
    components with a fixed seed, so the same points always give the same picture.
    """
    if len(points) < 4:
        return principal_plane(points)
    from sklearn.manifold import TSNE  # which takes a second to import

    perplexity = min(30.0, (len(points) - 1) / 3)
    made = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1)
    return torch.from_numpy(made.fit_transform(points.double().numpy())).double()
