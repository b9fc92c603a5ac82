"""The papers' scale from files: pictures on disk, frozen features, and Fed3R on them, in little memory.

    python benchmarks/from_files.py                                     # Landmarks' shape, a network that costs little
    python benchmarks/from_files.py --like inaturalist                  # iNaturalist's: many clients of few pictures
    python benchmarks/from_files.py --pictures 8192 --backbone lite0    # a real backbone on a part
    python benchmarks/from_files.py --rates --backbone lite0            # pictures a second alone, on 192: two minutes
    python benchmarks/from_files.py --backbone lite0 --device cuda      # all of it on a GPU

Generated JPEGs are listed in a CSV manifest.  One process extracts features and is killed with SIGKILL on the way; a
second one goes on, and takes Fed3R's round.  Printed are: how many samples were computed twice, pictures a second
beside those of the network alone on pixels in memory, the memory of all processes at its peak, and what statistics
cost from memory-mapped features beside the same features in memory.

`--rates` times nothing but an extraction, in turns with the network alone on the same pictures in memory, and tells
what a core spends on a picture: on decoding it, on handing it over from the process that does, and on the network.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

TRIED = 8  # batches in memory that the network is timed on
REPEATS = 3
FOLDER = 1000  # pictures of a folder
WIDTH = 1280  # features of the network that costs little, as many as EfficientNet-Lite's
MEMORY = 3e9  # bytes of all processes, at most
SHARE = 0.9  # of the network's own pictures a second, at least
SOME = 192  # pictures whose extraction is timed alone


@dataclass(frozen=True)
class Shape:
    """The numbers of a federated data set of the papers, whose clients' sizes are drawn."""

    pictures: int
    clients: int
    classes: int
    skew: float  # the deviation of the logarithm of a client's share


SHAPES = {
    "landmarks": Shape(164_172, 1_262, 2_028, skew=1.0),  # Users-160K
    "inaturalist": Shape(120_300, 9_275, 1_203, skew=1.5),  # Users-120K: 13 a client, most have less than ten
}


class Glance(nn.Module):
    """Means of 8 × 8 pixels, projected to as many features as a real backbone has."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(3 * 28 * 28, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(nn.functional.adaptive_avg_pool2d(x, 28).flatten(1)).relu()


def mobile(size: int) -> nn.Module:
    """Return a network as large as a real backbone, with weights drawn at random: nothing has to be installed."""
    from hansa.models.mobilenet import MobileNetV2

    return MobileNetV2().build((3, size, size), 1).get_submodule("features")


def extractor(settings: argparse.Namespace) -> Any:
    from hansa.features.efficientnet import EfficientNetLite
    from hansa.features.module import FrozenModule

    own = {
        "glance": FrozenModule("from_files:Glance"),
        "mobilenetv2": FrozenModule("from_files:mobile", {"size": settings.size}),
    }
    return own.get(settings.backbone) or EfficientNetLite(0, settings.size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", choices=sorted(SHAPES), default="landmarks", help="whose numbers, unless given")
    parser.add_argument("--pictures", type=int)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--classes", type=int)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--backbone", choices=["glance", "lite0", "mobilenetv2"], default="glance")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--folder", type=Path, help="where pictures and features are kept; else a temporary folder")
    parser.add_argument("--rates", action="store_true", help=f"pictures a second alone, of {SOME:,} where none is said")
    parser.add_argument("--step", choices=sorted(STEPS), help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.rates:
        settings.pictures, settings.clients = settings.pictures or SOME, settings.clients or 1
    for key in ("pictures", "clients", "classes"):
        setattr(settings, key, getattr(settings, key) or getattr(SHAPES[settings.like], key))
    if settings.clients > settings.pictures:
        parser.error(f"{settings.clients} clients need as many pictures at least: set --clients too")
    if settings.step is not None:
        print(json.dumps(STEPS[settings.step](settings)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        settings.folder = settings.folder or Path(temporary)
        os.environ["HANSA_CACHE"] = str(settings.folder / "cache")
        shutil.rmtree(settings.folder / "cache", ignore_errors=True)  # of an earlier time; the pictures are kept
        (show_rates if settings.rates else show)(settings)


def show_rates(settings: argparse.Namespace) -> None:
    generate(settings)
    print(f"{settings.pictures:,} JPEGs of {settings.size} pixels; {os.cpu_count()} cores, torch {torch.__version__}")
    found = step(settings, "rates")
    ratio = found["files"] / found["alone"]
    print(f"network alone, pixels in memory   {found['alone']:9.1f} pictures/s, {settings.backbone}, {settings.device}")
    print(f"extraction from files             {found['files']:9.1f} pictures/s, {ratio:.2f} of the network alone; "
          f"target ≥ {SHARE:g}: {'met' if ratio >= SHARE else 'missed'}")  # fmt: skip
    print("CPU a picture                     " + ", ".join(f"{key} {found[key]:.2f} ms" for key in STAGES))


def show(settings: argparse.Namespace) -> None:
    began = time.perf_counter()
    size = generate(settings)
    print(f"{settings.pictures:,} JPEGs of {settings.size} pixels, {size / 1e9:.2f} GB, {settings.clients:,} clients")
    print(f"made in {time.perf_counter() - began:.0f} s; {os.cpu_count()} cores, torch {torch.__version__}")
    alone = step(settings, "network")
    print(f"network alone, pixels in memory   {alone['rate']:9.0f} pictures/s ({settings.backbone}, {settings.device})")
    finished = killed(settings)
    found = step(settings, "run")
    again = settings.pictures - found["cached"] - found["computed"]
    lost = finished - found["cached"]
    print(f"killed with SIGKILL after         {finished:9,} finished samples, of which {max(0, lost):,} were repeated")
    rate = found["computed"] / found["seconds"]
    print(f"extraction from files             {rate:9.0f} pictures/s, {rate / alone['rate']:.2f} of the network alone")
    print(f"samples in all                    {settings.pictures - again:9,}; Fed3R's phase {found['phase']:.1f} s, "
          f"accuracy {100 * found['accuracy']:.1f} % (the classes are made up)")  # fmt: skip
    met = "met" if found["memory"] <= MEMORY else "missed"
    print(f"memory at its peak                {found['memory'] / 1e9:9.2f} GB, all {found['processes']} processes; "
          f"target ≤ {MEMORY / 1e9:g} GB: {met}")  # fmt: skip
    times = step(settings, "statistics")
    print(f"statistics, memory-mapped         {times['mapped']:9.2f} s, in memory {times['held']:.2f} s, "
          f"ratio {times['mapped'] / times['held']:.2f}")  # fmt: skip


def generate(settings: argparse.Namespace) -> int:
    """Write the pictures and their manifest, unless they are there; return their bytes."""
    listed = settings.folder / "pictures.csv"
    skew = SHAPES[settings.like].skew
    wanted = f"{settings.pictures} {settings.clients} {settings.classes} {settings.size} {skew}"
    mark = settings.folder / "made.txt"
    if not mark.exists() or mark.read_text() != wanted:
        rng = np.random.default_rng(0)
        weights = rng.lognormal(sigma=skew, size=settings.clients)
        client = np.concatenate([np.arange(settings.clients), rng.choice(
            settings.clients, settings.pictures - settings.clients, p=weights / weights.sum())])  # fmt: skip
        label = rng.integers(settings.classes, size=settings.pictures)
        parts = [range(start, min(start + FOLDER, settings.pictures)) for start in range(0, settings.pictures, FOLDER)]
        tasks = [(settings.folder, part, label[part.start : part.stop], settings.size) for part in parts]
        with ProcessPoolExecutor() as pool:
            list((pool.map if len(tasks) > 1 else map)(write, tasks))
        with listed.open("w", newline="") as opened:
            rows = csv.writer(opened)
            rows.writerow(["path", "label", "user_id", "split"])
            split = np.where(np.arange(settings.pictures) % 50 == 49, "test", "train")
            rows.writerows(zip(map(name, range(settings.pictures)), label, client, split, strict=True))
        mark.write_text(wanted)
    return sum(file.stat().st_size for file in settings.folder.glob("pictures/*/*.jpg"))


def name(number: int) -> str:
    return f"pictures/{number // FOLDER:04d}/{number:06d}.jpg"


def write(task: tuple[Path, range, Sequence[int], int]) -> None:
    """Write one folder's pictures: a coarse pattern of the class, and noise of the picture's own."""
    folder, numbers, labels, size = task
    (folder / name(numbers[0])).parent.mkdir(parents=True, exist_ok=True)
    for number, label in zip(numbers, labels, strict=True):
        pattern = np.random.default_rng(int(label)).integers(0, 256, (14, 14, 3))
        noise = np.random.default_rng(2**32 + number).integers(-60, 60, (14, 14, 3))
        small = Image.fromarray(np.clip(pattern + noise, 0, 255).astype(np.uint8))
        stream = io.BytesIO()
        small.resize((size, size), Image.Resampling.BILINEAR).save(stream, "JPEG", quality=90)
        (folder / name(number)).write_bytes(stream.getvalue())


def command(settings: argparse.Namespace, what: str) -> list[str]:
    told = {key: value for key, value in vars(settings).items() if key not in ("step", "rates")}
    words = [word for key, value in told.items() for word in (f"--{key}", str(value))]
    return [sys.executable, __file__, *words, "--step", what]


def step(settings: argparse.Namespace, what: str) -> dict[str, Any]:
    """Carry out a step in a process of its own, whose memory is then its own too."""
    done = subprocess.run(command(settings, what), stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def killed(settings: argparse.Namespace) -> int:
    """Kill an extraction when a quarter is done; return how many samples' features it has finished."""
    cache, quarter = settings.folder / "cache" / "features", max(1, settings.pictures // 4)
    process = subprocess.Popen(command(settings, "run"), stdout=subprocess.DEVNULL)
    while finished(cache) < quarter and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return finished(cache)


def finished(cache: Path) -> int:
    """Count the samples whose features are in the cache, by the headers of its files."""
    total = 0
    for file in cache.glob("*/*.safetensors"):
        with file.open("rb") as opened:
            total += json.loads(opened.read(int.from_bytes(opened.read(8), "little")))["features"]["shape"][0]
    return total


# --------------------------------------------------------------------------------------- steps, in their own processes


def source(settings: argparse.Namespace) -> Any:
    from hansa.data.sources.manifest import Manifest

    return Manifest(str(settings.folder / "pictures.csv"), client="user_id", size=settings.size)


def network(settings: argparse.Namespace) -> dict[str, Any]:
    """Time the network on decoded pictures, as many at a time as an extraction takes."""
    from hansa.features.extract import BATCH, DEVICE_BATCH

    batch = BATCH if settings.device == "cpu" else DEVICE_BATCH
    pictures = source(settings).load().train.x[: TRIED * batch]
    return {"rate": len(pictures) / best([through(settings, pictures)])[0]}


def through(settings: argparse.Namespace, pictures: Any) -> Callable[[], None]:
    """Return what brings pictures in memory through the network, as many at a time as an extraction does."""
    from hansa.features.extract import BATCH, DEVICE_BATCH, all_bits, loaded

    batch = BATCH if settings.device == "cpu" else DEVICE_BATCH
    features = loaded(extractor(settings), settings.device)

    def work() -> None:
        with torch.no_grad(), all_bits(settings.device):
            for start in range(0, len(pictures), batch):
                features(pictures[start : start + batch]).cpu()

    return work


def rates(settings: argparse.Namespace) -> dict[str, float]:
    """Time an extraction from files and the network on the same pictures in memory; count CPU seconds of each stage."""
    from hansa.data import album
    from hansa.data.late_rows import read_ahead
    from hansa.features.extract import BATCH, extract_features

    album.HELD_BYTES = 0
    data = source(settings).load()
    pictures, parts = data.train.x, [data.train.x] if data.test is None else [data.train.x, data.test.x]
    held, count = np.concatenate([part[:] for part in parts]), sum(map(len, parts))
    alone = through(settings, held)

    def from_files() -> None:
        with tempfile.TemporaryDirectory() as cache:
            extract_features(data, extractor(settings), cache=Path(cache), device=settings.device)

    def handed_over() -> None:
        for _ in read_ahead(pictures, (slice(start, start + BATCH) for start in range(0, len(pictures), BATCH))):
            pass

    def decoded() -> None:
        for image in pictures.images:
            pictures.wanted.decode(image, "")

    times = best([from_files, alone], warm=False)  # the first time of each is not the best
    decoding = spent(decoded) / len(pictures.images)
    handing = spent(handed_over) / len(pictures) - decoding
    costs = dict(zip(STAGES, (decoding, handing, spent(alone) / count), strict=True))
    return {"files": count / times[0], "alone": count / times[1], **{key: 1e3 * cost for key, cost in costs.items()}}


STAGES = ("decoding", "handing over", "network")


def spent(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process and its children."""
    began = cpu_seconds()
    work()
    return cpu_seconds() - began


def cpu_seconds() -> float:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in children]
    ticks = sum(int(own[11]) + int(own[12]) for own in fields)  # user and system
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def run(settings: argparse.Namespace) -> dict[str, Any]:
    """Extract and train as `hansa run` does."""
    import hansa
    from hansa.algorithms.fed3r import Fed3R
    from hansa.data.partitions.natural import Natural
    from hansa.engines.vectorised import Vectorised
    from hansa.models.dense import Linear

    plan = hansa.Plan(
        data=hansa.DataPlan(source=source(settings), partition=Natural(), features=(extractor(settings),)),
        model=Linear(),
        phases=(hansa.PhasePlan(Fed3R()),),
        engine=Vectorised(device=settings.device),
    )
    with tempfile.TemporaryDirectory() as folder:
        found = hansa.run(plan, out=Path(folder) / "run", trust=True).summary
    phase, peaks = found["phases"][-1], list(peak_memory())
    return {
        **{key: found["features"][key] for key in ("computed", "cached", "seconds")},
        "phase": phase["seconds"],
        "accuracy": phase["metrics"]["test_accuracy"],
        "memory": sum(peaks),
        "processes": len(peaks),
    }


def peak_memory() -> list[int]:
    """Return the bytes that this process and each of its children held at most."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    status = [Path(f"/proc/{one}/status").read_text().splitlines() for one in ("self", *children)]
    return [int(line.split()[1]) * 1024 for lines in status for line in lines if line.startswith("VmHWM")]


def statistics(settings: argparse.Namespace) -> dict[str, Any]:
    """Time the sums of all clients from features where they lie, and from the same in memory."""
    from hansa.data.dataset import Samples
    from hansa.features import extract
    from hansa.ridge import RidgeStatistics

    extract.HELD_BYTES = 0
    data = extract.extract_features(source(settings).load(), extractor(settings), device=settings.device).data
    mapped, client = data.train, data.client
    held, order = Samples(mapped.x[:], mapped.y), np.argsort(client, kind="stable")
    bounds = [*np.unique(client[order], return_index=True)[1], len(order)]
    rows = [order[start:end] for start, end in pairwise(bounds)]

    def summed(samples: Samples) -> Callable[[], object]:
        def work() -> object:
            taken = (samples.take(index) for index in rows)
            parts = ((one.x.to(settings.device), one.y.to(settings.device)) for one in taken)
            return RidgeStatistics.from_clients(parts, mapped.x.shape[1], data.num_classes, device=settings.device)

        return work

    return dict(zip(("mapped", "held"), best([summed(mapped), summed(held)]), strict=True))


def best(works: Sequence[Callable[[], object]], warm: bool = True) -> list[float]:
    """Return the best time of each, taken in turns so that all see the same machine, after one that does not count."""
    times: list[list[float]] = [[] for _ in works]
    for work in works if warm else ():
        work()
    for _ in range(REPEATS):
        for work, own in zip(works, times, strict=True):
            began = time.perf_counter()
            work()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            own.append(time.perf_counter() - began)
    return list(map(min, times))


STEPS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "network": network,
    "rates": rates,
    "run": run,
    "statistics": statistics,
}

if __name__ == "__main__":
    main()
