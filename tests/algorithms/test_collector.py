"""Statistics that arrive in any order, twice, late, after a restart, or through another server."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from hansa.errors import HansaError
from hansa.ridge import RidgeStatistics
from hansa.ridge.collector import Collector

WIDTH, CLASSES = 5, 3


def upload(seed: int, n: int = 12) -> RidgeStatistics:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, WIDTH, generator=rng, dtype=torch.float64)
    return RidgeStatistics.from_features(x, torch.randint(0, CLASSES, (n,), generator=rng), CLASSES)


UPLOADS = {name: upload(seed) for seed, name in enumerate("abcd")}


def collected(names: str, **options: object) -> Collector:
    collector = Collector(WIDTH, CLASSES, **options)  # type: ignore[arg-type]
    for name in names:
        collector.add(name, UPLOADS[name])
    return collector


def close(left: RidgeStatistics, right: RidgeStatistics) -> bool:
    return torch.allclose(left.solve(), right.solve(), rtol=1e-9)


def test_the_order_does_not_matter() -> None:
    solutions = [collected("".join(order)).statistics for order in itertools.permutations("abcd")]
    assert all(close(solutions[0], other) for other in solutions[1:])


def test_a_repeated_upload_counts_once() -> None:
    collector = collected("abc")
    before = collector.statistics.gram
    assert collector.add("b", UPLOADS["b"]) is False
    assert torch.equal(collector.statistics.gram, before)
    with pytest.raises(HansaError, match="has sent other statistics before"):
        collector.add("b", upload(77))


def test_it_survives_a_restart_and_late_clients(tmp_path: Path) -> None:
    path = tmp_path / "sums.sqlite"
    collected("ab", path=path).close()
    late = collected("abcd", path=path)  # a and b are recognised
    assert late.clients == ["a", "b", "c", "d"] and close(late.statistics, collected("abcd").statistics)
    late.close()
    with pytest.raises(HansaError, match="collects statistics of"):
        Collector(WIDTH + 1, CLASSES, path)


def test_merging_servers_is_exact() -> None:
    left, right = collected("ab", keep=True), collected("cd", keep=True)
    left.merge(right)
    assert close(left.statistics, collected("abcd").statistics)
    left.forget("c")  # what the other server kept came along
    assert close(left.statistics, collected("abd").statistics)
    with pytest.raises(HansaError, match="Both servers have counted a"):
        left.merge(collected("a"))


@pytest.mark.parametrize("keep", [True, False])
def test_forgetting_is_exact(keep: bool, tmp_path: Path) -> None:
    collector = collected("abcd", keep=keep, path=tmp_path / "sums.sqlite")
    if not keep:
        with pytest.raises(HansaError, match="was not kept"):
            collector.forget("b")
        with pytest.raises(HansaError, match="not the statistics that client 'b' sent"):
            collector.forget("b", UPLOADS["a"])
    collector.forget("b", None if keep else UPLOADS["b"])
    assert close(collector.statistics, collected("acd").statistics)
    with pytest.raises(HansaError, match="never added"):
        collector.forget("b")
    assert collector.add("b", UPLOADS["b"]) is True  # and it may come back
    collector.close()


def test_bad_statistics_are_refused_by_name() -> None:
    collector = collected("a")
    before = collector.statistics.gram
    broken = UPLOADS["b"].copy()
    broken.gram[0, 0] = float("nan")
    with pytest.raises(HansaError, match="Client 'b' sent statistics that are not finite"):
        collector.add("b", broken)
    with pytest.raises(HansaError, match="Client 'c' sent"):
        collector.add("c", RidgeStatistics.zeros(WIDTH + 1, CLASSES))
    assert torch.equal(collector.statistics.gram, before) and collector.clients == ["a"]
