"""The wire form of statistics, and the same as a file: nothing redundant, nothing of classes a client does not have.

gram     upper triangle of A, row by row: d(d+1)/2 numbers of the wire's type
moment   d × (classes present) numbers of the wire's type
classes  the numbers of the classes present, int32
counts   their samples, float64: exact whatever the wire's type
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hansa.errors import HansaError, require
from hansa.io.files import replacing
from hansa.lazy import Tensor, torch
from hansa.ridge.accumulate import mirror
from hansa.tree import Tree, is_finite


class Format(NamedTuple):
    """A file's facts about itself: its format, and the name under which the number of b's columns is."""

    name: str
    columns: str


def check(gram: Tensor, moment: Tensor, counts: Tensor) -> None:
    """Refuse tensors that do not fit together."""
    shapes = [tuple(part.shape) for part in (gram, moment, counts)]
    fits = len(shapes[1]) == 2 and shapes[0] == shapes[1][:1] * 2 and shapes[2] == shapes[1][1:]
    require(fits, f"Ridge statistics need A (d × d), b (d × C) and counts (C). Got shapes {shapes}.")
    types = {part.dtype for part in (gram, moment, counts)}
    require(types == {torch.float64}, f"Ridge statistics must be float64. Got {sorted(map(str, types))}.")


def present(moment: Tensor, counts: Tensor) -> int:
    """Count the classes that have anything to send."""
    return len(present_classes(moment, counts))


def blank(dimension: int, classes: int, dtype: torch.dtype) -> Tree:
    """Return the shapes and types of a wire form, without any memory behind them."""
    check_dtype(dtype)
    return {
        "gram": torch.empty(dimension * (dimension + 1) // 2, dtype=dtype, device="meta"),
        "moment": torch.empty(dimension, classes, dtype=dtype, device="meta"),
        "classes": torch.empty(classes, dtype=torch.int32, device="meta"),
        "counts": torch.empty(classes, dtype=torch.float64, device="meta"),
    }


def pack(gram: Tensor, moment: Tensor, counts: Tensor, dtype: torch.dtype) -> Tree:
    """Turn statistics into wire form."""
    check_dtype(dtype)
    classes = present_classes(moment, counts)
    tree = {
        "gram": triangle(gram, dtype),
        "moment": moment[:, classes].to(dtype),
        "classes": classes.to(torch.int32),
        "counts": counts[classes],
    }
    check_finite(tree)
    return tree


def unpack(tree: Tree, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Turn wire form into statistics, checked."""
    _check_tree(tree, num_classes)
    return square(tree["gram"], len(tree["moment"])), *spread(tree["moment"], tree, num_classes)


def spread(moment: Tensor, tree: Tree, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return b and the counts of all classes, from b's columns of those present and what a wire form says of them."""
    classes = tree["classes"].long()
    full = moment.new_zeros(len(moment), num_classes, dtype=torch.float64)
    counts = moment.new_zeros(num_classes, dtype=torch.float64)
    full[:, classes], counts[classes] = moment.double(), tree["counts"].double()
    return full, counts


def triangle(gram: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the upper triangle of a symmetric matrix, row by row."""
    return torch.cat([row[start:] for start, row in enumerate(gram.to(dtype))])


def square(upper: Tensor, dimension: int) -> Tensor:
    """Return the symmetric matrix, in float64, whose upper triangle is given row by row."""
    gram = upper.new_zeros(dimension, dimension, dtype=torch.float64)
    above = torch.ones(dimension, dimension, dtype=torch.bool, device=upper.device).triu()
    gram.masked_scatter_(above, upper.double())
    mirror(gram)
    return gram


def rounding(gram: Tensor, moment: Tensor, dtype: torch.dtype) -> float:
    """Return the error of a number format, relative to the norm."""
    check_dtype(dtype)
    lost = [float((part - part.to(dtype).double()).norm() / part.norm().clamp_min(1e-300)) for part in (gram, moment)]
    return max(lost)


def save(path: Path, tree: Tree, form: Format, columns: int) -> None:
    """Write to a temporary name first, then rename: a reader sees a whole file or none."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    owned = {key: leaf.cpu().contiguous() for key, leaf in tree.items()}
    try:
        with replacing(path) as temporary:
            save_file(owned, temporary, {"format": form.name, form.columns: str(columns)})
    except SafetensorError as error:
        raise HansaError(f"The statistics cannot be written to '{path}': {error}.") from error


def load(path: Path, form: Format) -> tuple[Tree, int]:
    """Read the wire form and the number of b's columns."""
    from safetensors import SafetensorError, safe_open

    require(path.is_file(), f"There is no file of ridge statistics at '{path}'.")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tree = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError) as error:
        raise HansaError(f"The file '{path}' is damaged or no safetensors file: {error}.") from error
    require(
        about.get("format") == form.name and about.get(form.columns, "").isdecimal(),
        f"The file '{path}' holds no ridge statistics this version reads as '{form.name}': "
        f"its format is {about.get('format')!r}.",
    )
    return tree, int(about[form.columns])


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse number formats that statistics do not travel in."""
    require(
        dtype in (torch.float32, torch.float64),
        f"Ridge statistics travel as float32 or float64. Got {str(dtype).removeprefix('torch.')}.",
    )


def check_finite(tree: Tree) -> None:
    """Refuse leaves that are not finite."""
    for key, leaf in tree.items():
        require(
            is_finite(leaf),
            f"The '{key}' of ridge statistics must be finite. Got NaN or infinity; the sender's features are at fault.",
        )


def present_classes(moment: Tensor, counts: Tensor) -> Tensor:
    """Find the classes present; differences of statistics (moving features) may have sums where they have no counts."""
    return ((counts != 0) | (moment != 0).any(0)).nonzero().flatten()


def _check_tree(tree: Tree, num_classes: int) -> None:
    shapes = {key: tuple(leaf.shape) for key, leaf in sorted(tree.items())}
    require(
        shapes.keys() == {"gram", "moment", "classes", "counts"} and len(shapes["moment"]) == 2,
        f"Packed ridge statistics need gram, moment (a matrix), classes and counts. Got {shapes}.",
    )
    dimension, classes = shapes["moment"]
    upper = dimension * (dimension + 1) // 2
    expected = {"classes": (classes,), "counts": (classes,), "gram": (upper,), "moment": (dimension, classes)}
    require(shapes == expected, f"Packed ridge statistics are misshapen: expected {expected}. Got {shapes}.")
    check_numbers(tree, num_classes)


def check_numbers(tree: Tree, num_classes: int) -> None:
    """Refuse a wire form whose leaves are of other types than they should be, not finite, or of unknown classes."""
    types = {key: leaf.dtype for key, leaf in sorted(tree.items())}
    whole = {"classes", "pivots"}
    real = all(leaf.is_floating_point() or key in whole for key, leaf in tree.items())
    good = real and all(types[key] in (torch.int32, torch.int64) for key in whole & types.keys())
    require(good, f"Packed ridge statistics must be floats, and classes whole numbers. Got {types}.")
    check_finite(tree)
    ids = tree["classes"].long()
    within = bool(((ids >= 0) & (ids < num_classes)).all()) and len(torch.unique(ids)) == len(ids)
    require(within, f"Packed ridge statistics must name each class in 0..{num_classes - 1} at most once.")
