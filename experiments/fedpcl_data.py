"""Frozen features for docs/results/fedpcl.md: a file for every data set, with the columns of all its backbones.

`python experiments/fedpcl_data.py` makes what is not there yet in `runs/fedpcl` (HANSA_FEATURES names another place),
in some minutes on a CPU: the weak backbones (see backbones.py), the images and the features, as float16.  Experiments
need nothing else, neither images nor networks; a plan names one backbone's columns as an extractor of `office.npz` by

    { name = "module", path = "fedpcl_data:columns", options = { data = "office", backbone = "lite0" } }
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import backbones
import numpy as np
import torch
from common import DATA, ROOT
from torch import Tensor, nn

from hansa.data.dataset import Dataset, Samples
from hansa.data.sources.npz import Npz
from hansa.features.efficientnet import EfficientNetLite
from hansa.features.extract import Extractor, extract_features
from hansa.features.module import FrozenModule
from hansa.io.files import write_whole

FEATURES = Path(os.environ.get("HANSA_FEATURES", ROOT / "runs" / "fedpcl"))
PIXELS = 32  # of the images that weak backbones see
EACH = 1500  # images of a digits' domain
STRONG, WEAK = 1280, backbones.WIDTHS[-1]  # features of one backbone
COLUMNS: dict[str, dict[str, int]] = {
    "office": {**dict.fromkeys(("lite0", "lite1", "lite2"), STRONG), **dict.fromkeys(backbones.BACKBONES, WEAK)},
    "digits": {"lite0": STRONG, **dict.fromkeys(("cifar10", "femnist", "random"), WEAK)},
    "mnist-m": dict.fromkeys(("cifar10", "femnist", "random"), WEAK),
}
TRUSTED = ("fedpcl_data:columns", "backbones:backbone")


class Columns(nn.Module):
    """Some columns of a sample."""

    def __init__(self, first: int, width: int) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(first, first + width))

    def forward(self, x: Tensor) -> Tensor:
        """Return them."""
        return x[:, self.places]


def columns(data: str, backbone: str) -> Columns:
    """The columns of a backbone in the file of a data set."""
    names = list(COLUMNS[data])
    widths = list(COLUMNS[data].values())
    place = names.index(backbone)
    return Columns(sum(widths[:place]), widths[place])


def source(data: str) -> dict[str, Any]:
    """A file of features, or of images, as a plan's source."""
    return {"name": "npz", "path": str(FEATURES / f"{data}.npz")}


def features(data: str, *names: str) -> list[dict[str, Any]]:
    """Backbones of a data set as a plan's extractors."""
    return [
        {"name": "module", "path": TRUSTED[0], "options": {"data": data, "backbone": backbone}} for backbone in names
    ]


def weak(*names: str) -> list[dict[str, Any]]:
    """Weak backbones themselves as a plan's extractors, for images that a plan changes first."""
    return [{"name": "module", "path": TRUSTED[1], "options": {"file": str(backbone_file(name))}} for name in names]


def backbone_file(name: str) -> Path:
    """Where a weak backbone lies."""
    return FEATURES / f"{name}.safetensors"


def extractor(backbone: str) -> Extractor:
    """The network of a name."""
    if backbone.startswith("lite"):
        return EfficientNetLite(int(backbone[-1]))
    options = {} if backbone == "random" else {"file": str(backbone_file(backbone))}
    return FrozenModule("backbones:backbone", options)


def images(data: str) -> Dataset:
    """The images of a data set at full size, or three domains of digits as 32 × 32 × 3 bytes."""
    if data != "digits":
        whole = Npz(str(DATA / {"office": "office_caltech10.npz", "mnist-m": "mnist_m.npz"}[data])).load()
        return replace(whole, test=None)
    parts = [_digits(name) for name in ("mnist", "usps", "mnist_m")]
    domains = np.repeat(["MNIST", "USPS", "MNIST-M"], EACH)
    x, y = (np.concatenate([getattr(part, key) for part in parts]) for key in ("x", "y"))
    return replace(images("mnist-m"), train=Samples(x, y), domain=domains)


def _digits(name: str) -> Samples:
    """So many training images of a data set of digits, drawn once."""
    whole = Npz(str(DATA / f"{name}.npz")).load().train
    chosen = np.random.default_rng(0).permutation(len(whole))[:EACH]
    return Samples(np.stack([small(image) for image in whole.x[chosen]]), whole.y[chosen])


def small(image: np.ndarray) -> np.ndarray:
    """An image of bytes, or of numbers, as 32 × 32 × 3 bytes."""
    from PIL import Image

    low, high = (0, 255) if image.dtype == np.uint8 else (image.min(), image.max())
    pixels = np.rint(255 * (image.astype(np.float64) - low) / max(high - low, 1e-9)).astype(np.uint8).squeeze()
    return np.asarray(Image.fromarray(pixels).convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.BILINEAR))


def write(name: str, data: Dataset, x: np.ndarray) -> None:
    """Store inputs with the labels and domains of a data set, all or nothing."""
    told = {} if data.domain is None else {"domain": data.domain}
    part = FEATURES / f"{name}.part.npz"
    np.savez_compressed(part, x=x, y=data.train.y, classes=np.array(data.class_names), **told)
    write_whole(FEATURES / f"{name}.npz", part.read_bytes())
    part.unlink()


def make() -> None:
    """Make all files that are not there yet."""
    FEATURES.mkdir(parents=True, exist_ok=True)
    for name, how in backbones.BACKBONES.items():
        backbones.make(name, how, folder=FEATURES)
    for name, widths in COLUMNS.items():
        if (FEATURES / f"{name}.npz").exists():
            continue
        whole = images(name)
        little = replace(whole, train=Samples(np.stack([small(image) for image in whole.train.x]), whole.train.y))
        if name == "office":
            write("office-images", little, little.train.x)
        found = [
            extract_features(whole if width == STRONG else little, extractor(one)) for one, width in widths.items()
        ]
        write(name, whole, np.concatenate([one.data.train.x for one in found], axis=1).astype(np.float16))
        print(f"  {name}: {len(whole.train)} samples, {', '.join(widths)}", flush=True)


if __name__ == "__main__":
    make()
