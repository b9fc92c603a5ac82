"""Features of EfficientNet-Lite0 from picture files beside a plain batched loop of torch on all cores.

    python benchmarks/extraction.py                  # the first 2,000 pictures of CIFAR-100, or as many made-up ones
    python benchmarks/extraction.py --pictures 500 --repeats 3

Both start from the same JPEG files and end with the same 1,280 features of each, in turns.  The plain loop is what one
writes: Pillow decodes and resizes a batch, torch standardises it, the network runs on all cores.  A second one lets
torch's DataLoader decode, with a process a core.  Ours begins with an empty cache every time, and fills it.  Its
pictures are resized by the processes that decode them (`size` of the source), or later.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hansa.data.sources.images import Images
from hansa.features.efficientnet import EfficientNetLite
from hansa.features.extract import BATCH, extract_features
from hansa.io.decoding import cores
from hansa.models.efficientnet import weights_file

REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar100.npz"
SIZE = 112
TARGET = 1.0  # of a plain loop's pictures a second, at least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    settings = parser.parse_args()
    torch.set_num_threads(cores())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files, kind = write(folder / "pictures", settings.pictures)
        print(f"{len(files):,} {kind}, EfficientNet-Lite0 at {SIZE} pixels; {cores()} cores, torch {torch.__version__}")
        works = {
            "hansa": lambda: ours(folder, SIZE),
            "hansa, resized later": lambda: ours(folder, None),
            "plain loop": lambda: plain(files),
            "plain loop, DataLoader": lambda: loader(files),
        }
        rates = timed(works, settings.repeats, len(files))
    for name, found in rates.items():
        print(f"{name:24s} {statistics.median(found):7.1f} pictures/s, {spread(found, 1)}")
    for own, other in itertools.product(list(works)[:2], list(works)[2:]):
        ratios = [one / two for one, two in zip(rates[own], rates[other], strict=True)]
        met = "met" if statistics.median(ratios) >= TARGET else "missed"
        says = f"{statistics.median(ratios):.2f}, {spread(ratios, 2)}; target ≥ {TARGET:g}: {met}"
        print(f"{own} / {other}: {says}")


def timed(works: dict[str, Callable[[], np.ndarray]], repeats: int, count: int) -> dict[str, list[float]]:
    """Return pictures a second of each work, in turns so that all see the same machine; the first turn warms up.

    Every second turn goes the other way round, for whatever a work leaves behind for the next one.
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        made = {}
        for name, work in list(works.items())[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            made[name] = work()
            if turn:
                found[name].append(count / (time.perf_counter() - began))
        for name, features in made.items():
            if not np.allclose(features, made["hansa"], rtol=1e-3, atol=1e-4):
                sys.exit(f"The features of '{name}' are not ours.")
    return found


def spread(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def write(folder: Path, count: int) -> tuple[list[Path], str]:
    """Write pictures as JPEG files, a folder a class; return them in the order in which a source reads them."""
    if REAL.exists():
        data = np.load(REAL)
        blob, offsets, labels = data["blob"], data["offsets"], data["y"]
        encoded = [blob[offsets[row] : offsets[row + 1]].tobytes() for row in range(count)]
        kind = "pictures of CIFAR-100"
    else:
        rng, labels, encoded = np.random.default_rng(0), np.arange(count) % 100, []
        for _ in range(count):
            stream = io.BytesIO()
            small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
            small.resize((32, 32), Image.Resampling.BILINEAR).save(stream, "JPEG", quality=90)
            encoded.append(stream.getvalue())
        kind = "made-up pictures of 32 pixels"
    for row, picture in enumerate(encoded):
        path = folder / f"{labels[row]:03d}" / f"{row:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    return sorted(folder.glob("*/*.jpg")), kind


def ours(folder: Path, size: int | None) -> np.ndarray:
    """Extract as a run does, with a cache that is empty."""
    os.environ["HANSA_CACHE"] = str(folder / "cache")
    shutil.rmtree(folder / "cache", ignore_errors=True)
    data = Images(str(folder / "pictures"), size=size).load()
    return np.asarray(extract_features(data, EfficientNetLite(0, SIZE)).data.train.x)


def plain(files: list[Path]) -> np.ndarray:
    """Decode and resize a batch, standardise it, and let the network look at it."""
    network, found = as_it_comes(), []
    for start in range(0, len(files), BATCH):
        batch = np.stack([pixels(one) for one in files[start : start + BATCH]])
        found.append(features(network, torch.from_numpy(batch)))
    return np.concatenate(found)


def loader(files: list[Path]) -> np.ndarray:
    """Let processes of torch's DataLoader decode and resize, one a core."""
    network = as_it_comes()
    batches = torch.utils.data.DataLoader(Decoded(files), batch_size=BATCH, num_workers=cores())
    return np.concatenate([features(network, batch) for batch in batches])


class Decoded(torch.utils.data.Dataset[np.ndarray]):
    """Pictures, decoded one by one."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> np.ndarray:
        return pixels(self.files[row])


def as_it_comes() -> torch.nn.Module:
    """Return the network as its package makes it."""
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(weights_file(0), weights_only=True))
    return network.eval()


def pixels(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.array(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


@torch.no_grad()
def features(network: torch.nn.Module, batch: Tensor) -> np.ndarray:
    maps = network.extract_features((batch.permute(0, 3, 1, 2).float() - 127) / 128)
    return maps.mean((2, 3)).numpy()


if __name__ == "__main__":
    main()
