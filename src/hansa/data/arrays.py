"""A data set from plain arrays, checked once so that nothing further down meets a surprise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hansa.data.dataset import Array, Dataset, Samples, Scale
from hansa.data.frames import frame_columns, from_series, is_frame
from hansa.data.labels import names, numbered, require_two_classes
from hansa.data.late_rows import Inputs, LateRows
from hansa.data.sources.columns import Features
from hansa.data.sources.encoding import EncodingRule
from hansa.data.targets import Kind
from hansa.errors import HansaError, require

BLOCK = 4096  # rows that are looked at together


def inputs(x: Any, what: str, *, tokens: bool = False) -> Inputs:
    """Return one of four forms: float32 n × features, uint8 images (channels last), int64 n × tokens, n texts.

    What is read row by row is of such a form already, and stays where it is.
    """
    if isinstance(x, LateRows):
        return x
    x = np.asarray(x)
    if x.dtype.kind == "U" and x.ndim == 1 and x.size:
        texts: Array = x
        return texts
    require(
        x.dtype.kind in "biuf", f"{what} must be numbers. Got {'Python objects' if x.dtype == object else x.dtype}."
    )
    require(len(x.shape) > 0 and x.size > 0, f"{what} is empty.")
    if tokens:
        require(x.dtype.kind in "iu" and x.ndim == 2 and x.min() >= 0, f"{what} must be n × length token numbers >= 0.")
        numbers: Array = x.astype(np.int64, copy=False)
        return numbers
    return _images(x, what) if x.dtype == np.uint8 and x.ndim > 2 else _vectors(x, what)


def _images(x: Array, what: str) -> Array:
    if x.ndim == 4 and x.shape[-1] == 1:
        x = x[..., 0]
    require(
        x.ndim == 3 or (x.ndim == 4 and x.shape[-1] == 3),
        f"{what} must be images N×H×W or N×H×W×3 with channels last. Got shape {'×'.join(map(str, x.shape))}.",
    )
    return x


def _vectors(x: Array, what: str) -> Array:
    cure = ": flatten windows or volumes, as x.reshape(len(x), -1) does" if x.ndim > 2 else ""
    require(
        x.ndim == 2,
        f"{what} must be n × features, or uint8 images with values 0 to 255. "
        f"Got {x.dtype} of shape {'×'.join(map(str, x.shape))}{cure}.",
    )
    with np.errstate(over="ignore"):  # an overflow shows as Inf, which is told below
        x = x.astype(np.float32, copy=False)
    for start in range(0, len(x), BLOCK):  # whose pages come and go, where the array is mapped
        good = np.isfinite(x[start : start + BLOCK])
        if not good.all():
            row, column = (int(place) for place in np.argwhere(~good)[0])
            where = f"row {start + row}, column {column}"
            raise HansaError(f"{what} has a NaN or Inf in {where}; fill or drop missing values first.")
    return x


def _same_length(count: int, values: Any, what: str) -> None:
    require(np.ndim(values) > 0, f"{what} is a single value; give one for every sample.")
    require(len(values) == count, f"{what} has {len(values)} entries for {count} samples.")


def dataset_from_arrays(
    x: Any,
    y: Any,
    client: Any = None,
    x_test: Any = None,
    y_test: Any = None,
    client_test: Any = None,
    domain: Any = None,
    class_names: Sequence[str] | None = None,
    *,
    tokens: bool = False,
    target: Kind | None = None,
    scale: Scale = "unit",
    group: Any = None,
    time: Any = None,
) -> Dataset:
    """Build a data set from arrays; whole numbers in `x` are features unless `tokens`.

    `x` may be a pandas or polars frame, whose columns are filled, encoded and scaled as those of a CSV file; labels and
    names may be series.  Labels that are whole numbers or text are classes unless `target` is "real"; for floats it
    must be set.  A real target is one number a sample, or several (n × targets).  Pictures are read in [0, 1] and
    numbers as they are, or with a `scale` of "standard" by channels or columns of mean 0 and deviation 1 over those
    that are trained on.  Cuts of test samples may keep a `group` together, or go by `time` (numbers or dates).
    """
    require((x_test is None) == (y_test is None), "A test set needs both 'x_test' and 'y_test'.")
    require(
        client_test is None or y_test is not None, "'client_test' names the clients of a test set that is not there."
    )
    if is_frame(x):
        columns = frame_columns(x, x_test)
        more = {"client": client, "client_test": client_test, "domain": domain, "group": group, "time": time}
        rest = {"class_names": class_names, "target": target, **more}
        return _of_frames(columns, y, y_test, rest)
    y, y_test, client, client_test, domain, group = map(from_series, (y, y_test, client, client_test, domain, group))
    train_x = inputs(from_series(x), "The input array 'x'", tokens=tokens)
    scaled = scale == "unit" or train_x.ndim > 2 or train_x.dtype == np.float32
    says = "A 'scale' of \"standard\" is for pictures and numbers"
    require(scaled, f"{says}. Got inputs of {train_x.dtype} of shape {train_x.shape}: leave 'scale' out.")
    _same_length(len(train_x), y, "The label array 'y'")
    (train_y, *test_y), found = numbered([y] if y_test is None else [y, y_test], class_names, target)
    if class_names is None:  # a site may well hold one of the classes that are known to exist
        require_two_classes(train_y, found, "The training data")
    train = Samples(train_x, train_y)
    return Dataset(
        train=train,
        target=found,
        test=None if y_test is None else _test(from_series(x_test), test_y[0], train, tokens),
        client=_names(client, len(train), "client"),
        client_test=None if y_test is None else _names(client_test, len(y_test), "client_test"),
        domain=_names(domain, len(train), "domain"),
        standardise=scale == "standard",
        group=_names(group, len(train), "group"),
        time=_times(time, len(train)),
    )


def _of_frames(columns: Sequence[Features], y: Any, y_test: Any, rest: dict[str, Any]) -> Dataset:
    """Return the data set of one or two frames: numbers as they are, with the rule that fills and scales them."""
    train, *test = columns
    stand_in = [np.zeros((len(one.values), 1), np.float32) for one in columns]
    told = {} if not test else {"x_test": stand_in[1], "y_test": y_test}
    found = dataset_from_arrays(stand_in[0], y, **told, **rest)
    rule = EncodingRule(train.source, train.category, "mean", "standard")
    held = None if found.test is None else Samples(test[0].values, found.test.y)
    return replace(found, train=Samples(train.values, found.train.y), test=held, rule=rule)


def _test(x: Any, y: Array, train: Samples, tokens: bool) -> Samples:
    x = inputs(x, "The input array 'x_test'", tokens=tokens)
    _same_length(len(x), y, "The label array 'y_test'")
    require(
        x.shape[1:] == train.x.shape[1:] and x.dtype.kind == train.x.dtype.kind,
        f"Test inputs ({x.dtype} of shape {x.shape[1:]}) differ from training inputs "
        f"({train.x.dtype} of shape {train.x.shape[1:]}).",
    )
    return Samples(x, y)


def _times(values: Any, count: int) -> Array | None:
    """Return times as numbers, dates in seconds."""
    if values is None:
        return None
    _same_length(count, values, "The array 'time'")
    found = np.asarray(values)
    dated = found.dtype.kind == "M"
    require(dated or found.dtype.kind in "iuf", f"The array 'time' must be numbers or dates. Got {found.dtype}.")
    numbers: Array = (found.astype("datetime64[us]").astype(np.int64) / 1e6) if dated else found.astype(np.float64)
    good = bool(np.isfinite(numbers).all()) and not (dated and bool(np.isnat(found).any()))
    require(good, "The array 'time' must have a finite value for every sample.")
    return numbers


def _names(values: Any, count: int, what: str) -> Array | None:
    if values is None:
        return None
    _same_length(count, values, f"The array '{what}'")
    return names(np.asarray(values), f"The array '{what}'")
