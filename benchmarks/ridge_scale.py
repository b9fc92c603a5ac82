"""How close the federated closed form comes to the centralised matrix product it cannot do without.

    python benchmarks/ridge_scale.py                   # 120,300 samples of 9,275 clients, 1,280 features, 1,203 classes
    python benchmarks/ridge_scale.py --device cuda     # 164,172 samples, 2,028 classes, and 10,000 random features
    python benchmarks/ridge_scale.py --handed-over     # the sums alone, of clients that come one by one; --device cuda

The bound is one float32 product Zᵀ Z and class sums by index_add on data in one place, and a float64 Cholesky solve.
Of clients that come one by one a second bound is a bare loop: each one's product, added in float64.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from hansa.algorithms.fed3r import Fed3R
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.engines.vectorised import Vectorised
from hansa.io.store import MemoryStore
from hansa.models.dense import Linear
from hansa.orchestrate.star import Sweep
from hansa.ridge import RandomFeatures, RidgeStatistics
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import Task

LAM = 0.01
DIMENSION = 1280
RANDOM = 10_000
PER_CLIENT = 13  # samples of iNaturalist's clients, on average
SINGLE = 100  # clients whose uploads are looked at
TARGET = 2.0  # the most that clients one by one may take of the floor
T = TypeVar("T")
Clients = Sequence[tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--handed-over", action="store_true", help="only the sums of clients that come one by one")
    parser.add_argument("--clients", type=int, help="of --handed-over, 13 samples each (9,275; on a CPU 927)")
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    if settings.handed_over:
        clients = settings.clients or (9_275 if settings.device == "cuda" else 927)
        handed_over(clients, 1_203, settings.device, settings.repeats)
    elif settings.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        linear(164_172, 9_275, 2_028, "cuda", settings.repeats)
        random_features(164_172, 2_028, "cuda", settings.repeats)
    else:
        print(f"{settings.threads} threads, torch {torch.__version__}")
        linear(120_300, 9_275, 1_203, "cpu", settings.repeats)
        random_features(20_000, 1_203, "cpu", 1)


def linear(samples: int, clients: int, classes: int, device: str, repeats: int) -> None:
    z, y = data(samples, classes, device)
    sizes = client_sizes(samples, clients).tolist()
    print(f"\nlinear: {samples} × {DIMENSION} float32 ({z.nbytes / 1e6:.0f} MB), {clients} clients, {classes} classes")
    before = reset_memory(device)

    clients_ = list(zip(z.split(sizes), y.split(sizes), strict=True))  # handed over one by one, as by a simulation

    def one_by_one() -> RidgeStatistics:
        return RidgeStatistics.from_clients(clients_, DIMENSION, classes, device=device)

    def together() -> RidgeStatistics:
        return RidgeStatistics.from_features(z, y, classes)

    one_by_one().solve(LAM)
    print(f"  peak memory above the features   {(peak_memory(device) - before) / 1e6:8.0f} MB")
    floor, ours, joined = race(repeats, lambda: sums(z, y, classes), one_by_one, together)
    print(f"  sums: floor                      {floor:8.4f} s   (products and class sums in float32, in one place)")
    print(f"  sums: ours, clients one by one   {ours:8.4f} s   ratio {ours / floor:.2f}")
    print(f"  sums: ours, rows in one piece    {joined:8.4f} s   ratio {joined / floor:.2f}")
    bound, ours = race(repeats, lambda: centralised(z, y, classes), lambda: one_by_one().solve(LAM))
    print(f"  solved: floor                    {bound:8.4f} s")
    print(f"  solved: ours, clients one by one {ours:8.4f} s   ratio {ours / bound:.2f}")
    report_error(z, y, classes)


def handed_over(clients: int, classes: int, device: str, repeats: int) -> None:
    """Compare sums over clients that come one by one with both bounds, and single uploads with the bare loop."""
    z, y = data(PER_CLIENT * clients, classes, device)
    sizes = client_sizes(len(y), clients).tolist()
    slices = list(zip(z.split(sizes), y.split(sizes), strict=True))
    apart = [(rows.clone(), labels.clone()) for rows, labels in slices]
    print(f"\n{clients} clients, {len(y)} samples, {DIMENSION} features, {classes} classes, on {device}")

    def ours(parts: Clients) -> RidgeStatistics:
        return RidgeStatistics.from_clients(parts, DIMENSION, classes, device=device)

    floor, loop, sliced, separate = race(
        repeats,
        lambda: sums(z, y, classes),
        lambda: bare_loop(slices, classes),
        lambda: ours(slices),
        lambda: ours(apart),
    )
    print(f"  floor: all rows at once              {floor:8.4f} s")
    print(f"  floor: a bare loop over clients      {loop:8.4f} s")
    for name, seconds in (("slices of one array", sliced), ("arrays of their own", separate)):
        ratios = f"{seconds / floor:.2f} of all at once (target ≤ {TARGET:g}), {seconds / loop:.2f} of the loop"
        print(f"  ours: {name:30} {seconds:8.4f} s   {ratios}")
    looked_at(z[: SINGLE * PER_CLIENT], y[: SINGLE * PER_CLIENT], classes, device, repeats)


def looked_at(z: Tensor, y: Tensor, classes: int, device: str, repeats: int) -> None:
    """Compare rounds in which the server looks at every upload, and rounds in which it does not, with the bare loop."""
    parts = list(zip(z.split(PER_CLIENT), y.split(PER_CLIENT), strict=True))
    index = {f"{k:06d}": np.arange(k * PER_CLIENT, (k + 1) * PER_CLIENT) for k in range(len(parts))}
    samples = Samples(z.cpu().numpy(), y.cpu().numpy())
    federation = Federation(IndexedClients(samples, index), Classes(tuple(map(str, range(classes)))))
    task = Task(Linear(bias=False), (DIMENSION,), classes, len(index), samples=len(y))
    loop = race(repeats, lambda: bare_loop(parts, classes))[0] / len(parts)
    print(f"  a client in the bare loop            {1000 * loop:8.2f} ms  ({len(parts)} clients)")
    for remember in ("nothing", "fingerprints"):
        phase = Phase("only", Fed3R(ridge=LAM), Sweep(), 1, remember=remember)  # type: ignore[arg-type]
        engine = Vectorised(device)
        times = []
        for _ in range(repeats):
            run = PhaseRun(Experiment(task, federation, (phase,), engine), 0, MemoryStore(), None)
            with engine.open(run.context) as session:
                times.append(timed(partial(run_round, run, session))[1] / len(parts))
        print(
            f"  … in a round, {'remembering ' + remember:26} {1000 * min(times):5.2f} ms  {min(times) / loop:.1f} times"
        )


def bare_loop(clients: Clients, classes: int) -> tuple[Tensor, Tensor]:
    """The bound of clients one by one: nothing but each one's products, added in float64."""
    gram = torch.zeros(DIMENSION, DIMENSION, dtype=torch.float64, device=clients[0][0].device)
    moment = gram.new_zeros(classes, DIMENSION)
    for z, y in clients:
        gram.add_(z.T @ z)
        moment.index_add_(0, y, z.double())
    return gram, moment.T


def random_features(samples: int, classes: int, device: str, repeats: int) -> None:
    z, y = data(samples, classes, device)
    omega = RandomFeatures(DIMENSION, RANDOM, sigma=40.0, seed=1)
    omega(z[:2])
    print(f"\nrandom features: {samples} × {DIMENSION} -> D = {RANDOM}, {classes} classes")
    print(f"  n × D would take {samples * RANDOM * 4 / 1e6:.0f} MB, A in float64 takes {RANDOM**2 * 8 / 1e6:.0f} MB")
    before = reset_memory(device)

    def federated() -> RidgeStatistics:
        return RidgeStatistics.from_features(z, y, classes, feature_map=omega)

    statistics, seconds = timed(federated)
    print(
        f"  statistics {seconds:8.3f} s, peak memory above the features {(peak_memory(device) - before) / 1e6:5.0f} MB"
    )
    seconds = timed(partial(statistics.solve, LAM))[1]
    print(
        f"  solve      {seconds:8.3f} s, peak memory above the features {(peak_memory(device) - before) / 1e6:5.0f} MB"
    )
    if device == "cpu":
        return
    bound, ours = race(repeats, lambda: centralised(omega(z), y, classes), lambda: federated().solve(LAM))
    print(f"  plain float32 floor {bound:8.3f} s\n  ours, solved        {ours:8.3f} s   ratio {ours / bound:.2f}")


def sums(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The bound of the sums: one product, and one pass for the classes."""
    return (z.T @ z).double(), z.new_zeros(classes, z.shape[1]).index_add_(0, y, z).T.double()


def centralised(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """The bound: nothing but the sums and one solve."""
    gram, moment = sums(z, y, classes)
    gram.diagonal().add_(LAM)
    weights = torch.cholesky_solve(moment, torch.linalg.cholesky(gram))
    return weights / torch.linalg.vector_norm(weights, dim=0)


def report_error(z: Tensor, y: Tensor, classes: int) -> None:
    ours = RidgeStatistics.from_features(z, y, classes)
    exact = RidgeStatistics.zeros(DIMENSION, classes, device=z.device)
    for start in range(0, len(y), 4096):
        exact.update(z[start : start + 4096].double(), y[start : start + 4096])
    plain = (z.T @ z).double()
    print(f"  relative error of A against float64 {relative(ours.gram, exact.gram):.1e} "
          f"(plain float32 product {relative(plain, exact.gram):.1e})")  # fmt: skip
    print(f"  relative error of b {relative(ours.moment, exact.moment):.1e}, of W {error_of_weights(ours, exact):.1e}")


def error_of_weights(ours: RidgeStatistics, exact: RidgeStatistics) -> float:
    return relative(ours.solve(LAM), exact.solve(LAM))


def relative(value: Tensor, exact: Tensor) -> float:
    return float((value - exact).norm() / exact.norm())


def data(samples: int, classes: int, device: str) -> tuple[Tensor, Tensor]:
    """Non-negative, correlated features as a pooled network gives them, made block by block."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, classes, (samples,), generator=rng)
    means = torch.randn(classes, DIMENSION, generator=rng)
    mixing = torch.randn(256, DIMENSION, generator=rng) / 16
    z = torch.empty(samples, DIMENSION)
    for start in range(0, samples, 4096):
        label = y[start : start + 4096]
        noise = torch.randn(len(label), DIMENSION, generator=rng)
        common = torch.randn(len(label), 256, generator=rng) @ mixing
        z[start : start + 4096] = (means[label] + common + 0.5 * noise).relu_()
    return z.to(device), y.to(device)


def client_sizes(samples: int, clients: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Log-normal sizes of at least one sample with the given sum."""
    weights = np.random.default_rng(0).lognormal(sigma=1.0, size=clients)
    sizes = 1 + np.floor((samples - clients) * weights / weights.sum()).astype(np.int64)
    sizes[: samples - sizes.sum()] += 1
    return sizes


def race(repeats: int, *works: Callable[[], object]) -> list[float]:
    """The best time of each, taken in turns so that all see the same machine."""
    for work in works:
        work()
    rounds = [[timed(work)[1] for work in works] for _ in range(repeats)]
    return [min(times) for times in zip(*rounds, strict=True)]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    _settle()
    start = time.perf_counter()
    result = work()
    _settle()
    return result, time.perf_counter() - start


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reset_memory(device: str) -> int:
    """Bytes in use now; the peak counts from here."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    status = Path("/proc/self/clear_refs")
    if status.exists():
        status.write_text("5")  # Linux: forget the peak so far
        return next(_status("VmRSS"))
    return peak_memory(device)


def peak_memory(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    high = next(_status("VmHWM"), None)
    return high or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(key: str) -> Iterator[int]:
    status = Path("/proc/self/status")
    if status.exists():
        yield from (int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(key))


if __name__ == "__main__":
    main()
