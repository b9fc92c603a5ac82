"""Compression by hand: what is sent, what is kept, what is refused, and how many bytes it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.scaffold import Scaffold
from hansa.channels.channel import Compression
from hansa.channels.quantise import Quantise
from hansa.channels.top_k import TopK
from hansa.engines.session import perform
from hansa.errors import HansaError
from hansa.io import wire
from hansa.models.dense import Linear
from hansa.task import ClientData, Task
from hansa.training.carried import KEPT, carried, uncarried
from hansa.training.local import LocalTraining
from hansa.tree import Tree, equal, pick

RNG = torch.Generator()


def test_quantised_numbers_are_multiples_of_a_127th_of_the_largest() -> None:
    leaf = torch.tensor([[1.27, -0.5], [0.0, 0.013]])
    parts = Quantise().write({"model.w": leaf}, RNG.manual_seed(0))
    assert parts["model.w"].dtype == torch.int8 and torch.allclose(parts["scales::"], torch.tensor([0.01]))
    assert parts["model.w"][0, 0] == 127 and parts["model.w"][0, 1] in (-50, -51) and parts["model.w"][1, 0] == 0
    assert parts["model.w"][1, 1] in (1, 2)
    read = Quantise().read(parts)["model.w"]
    assert float((read - leaf).abs().max()) < 0.01


def test_quantisation_is_right_on_average() -> None:
    """The mean of many roundings of x is x, within five deviations: a rounding error has at most half a step's."""
    leaf = torch.linspace(-1, 1, 200)
    draws = [Quantise().restore(Quantise().compress({"w": leaf}, RNG.manual_seed(seed)))["w"] for seed in range(400)]
    mean = torch.stack(draws).double().mean(0)
    assert float((mean - leaf.double()).abs().max()) < 5 * 0.5 / 127 / 400**0.5
    assert float((draws[0] - leaf).abs().max()) > 0.3 / 127  # one of them is not
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("leaf", [torch.zeros(3, 2), torch.zeros(0), torch.full((2,), 1e-44), torch.tensor(3.0)])
@pytest.mark.parametrize("channel", [Quantise(), TopK(0.5)], ids=["quantise", "top-k"])
def test_leaves_of_any_shape_and_size_come_back(channel: Compression, leaf: torch.Tensor) -> None:
    sent = channel.compress({"model.w": leaf, "model.b": torch.ones(4)}, RNG)
    read = channel.restore(wire.unpack(wire.pack(sent))[0])
    assert read["model.w"].shape == leaf.shape and read["model.w"].dtype == torch.float32
    assert float((read["model.w"] - leaf).abs().sum()) < 3.1


def test_top_k_sends_the_largest_of_all_leaves_together() -> None:
    leaves = {"model.b": torch.tensor([0.1, -5.0]), "model.w": torch.tensor([[3.0, 0.2, -0.3], [0.0, 4.0, 1.0]])}
    parts = TopK(3 / 8).write(leaves, RNG)
    assert parts["values::"].tolist() == [-5.0, 3.0, 4.0] and parts["places::"].tolist() == [1, 2, 6]
    read = TopK(3 / 8).read(parts)
    assert read["model.b"].tolist() == [0.0, -5.0] and read["model.w"].tolist() == [[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]]


def test_a_tenth_of_650_is_65() -> None:
    assert len(TopK(0.1).write({"w": torch.randn(650)}, RNG)["places::"]) == 65


CHANGES: dict[str, tuple[Compression, Tree]] = {
    "steps of 16 bits": (Quantise(), {"::model.w": torch.zeros(2, 3, dtype=torch.int16)}),
    "a scale too many": (Quantise(), {"::scales::": torch.ones(3)}),
    "scales of float64": (Quantise(), {"::scales::": torch.ones(2).double()}),
    "places outside": (TopK(), {"::places::": torch.tensor([8], dtype=torch.int32)}),
    "places below zero": (TopK(), {"::places::": torch.tensor([-1], dtype=torch.int32)}),
    "places of 64 bits": (TopK(), {"::places::": torch.tensor([0])}),
    "more values": (TopK(), {"::values::": torch.ones(2)}),
    "a leaf with numbers": (TopK(), {"::model.w": torch.ones(2, 3)}),
    "a leaf of 2⁴⁰ numbers": (TopK(), {"::model.w": torch.empty(2**20, 2**20, 0)}),
    "a leaf twice": (Quantise(), {"model.w": torch.ones(2, 3)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_parts_that_stand_for_nothing_are_refused(change: str) -> None:
    channel, odd = CHANGES[change]
    sent = channel.compress({"model.b": torch.ones(2), "model.w": torch.ones(2, 3)}, RNG)
    assert equal(channel.restore(sent), {"model.b": torch.ones(2), "model.w": torch.ones(2, 3)}) or channel == TopK()
    with pytest.raises(HansaError, match=r"needs|twice"):
        channel.restore(sent | odd)
    with pytest.raises(HansaError, match=r"A compressed upload needs"):
        channel.restore({key: leaf for key, leaf in sent.items() if not key.endswith("::")})


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, float("nan")])
def test_a_fraction_of_nothing_is_refused(fraction: float) -> None:
    with pytest.raises(HansaError, match=r"The 'fraction' of top-k must lie above 0 and at most at 1"):
        TopK(fraction)


def visited(channel: Compression, algorithm: Any, rounds: int = 3) -> list[tuple[Tree, Tree, float]]:
    """What the server reads, what the client keeps, and what it counts, of some visits with the same message."""
    rng = torch.Generator().manual_seed(1)
    data = ClientData(torch.randn(12, 5, generator=rng), torch.arange(12) % 3)
    task = Task(Linear(), (5,), 3)
    one, state, found = carried(algorithm, channel), {}, []
    down = one.broadcast(task, one.server_init(task), rng)
    for number in range(rounds):
        up, state = one.client_step(task, down, state, data, torch.Generator().manual_seed(number))
        found.append((one.decode(task, one.encode(up.sums)), state, up.weight))
    return found


def test_error_feedback_loses_nothing() -> None:
    """Σ sent + what is kept = Σ of what was trained: with one message all displacements are the same here."""
    algorithm = FedAvg(LocalTraining(lr=0.1, batch_size=100))
    (whole, _, weight), *_ = visited(TopK(1.0), algorithm, 1)
    found = visited(TopK(0.2), algorithm)
    for key, leaf in whole.items():
        total = sum(sums[key].double() for sums, _, _ in found) / weight
        kept = found[-1][1][f"{KEPT}.{key}"].double()
        assert torch.allclose(torch.as_tensor(total) + kept, 3 * leaf.double() / weight, rtol=1e-5, atol=1e-6)
        assert any(bool((sums[key] == 0).any()) for sums, _, _ in found)
    assert weight == 12.0


def test_what_is_summed_up_travels_whole() -> None:
    """SCAFFOLD's change of control is a SUM: the same whatever the channel."""
    algorithm = Scaffold(LocalTraining(lr=0.1))
    (plain, _, _), *_ = visited(TopK(1.0), algorithm, 1)
    (found, state, _), *_ = visited(TopK(0.1), algorithm, 1)
    assert pick("control", plain) and equal(pick("control", found), pick("control", plain))
    assert {key.partition(".")[0] for key in state} == {"control", KEPT}


def test_the_rounding_follows_the_visits_seed() -> None:
    algorithm = FedAvg(LocalTraining(lr=0.1, batch_size=100))
    first, again = visited(Quantise(), algorithm), visited(Quantise(), algorithm)
    assert all(equal(one, other) for (one, _, _), (other, _, _) in zip(first, again, strict=True))
    assert not equal(first[0][0], first[1][0])  # the same displacement, rounded by another seed


def test_a_channel_with_nothing_to_do_leaves_the_algorithm_alone() -> None:
    from hansa.algorithms.fed3r import Fed3R

    assert carried(Fed3R(), Quantise()) == Fed3R() and carried(FedAvg(), None) == FedAvg()
    assert uncarried(carried(FedAvg(), TopK())) == (FedAvg(), TopK())


def test_the_bytes_are_those_of_the_message() -> None:
    """650 numbers of a linear model of digits: 1 byte each in 8 bits; 65 of 8 bytes where a tenth is sent."""
    from hansa.data.federation import federation_from_clients
    from hansa.engines.client_side import ClientSide

    rng = torch.Generator().manual_seed(0)
    arrays = (torch.randn(30, 64, generator=rng).numpy(), torch.arange(30).numpy() % 10)
    task, clients = Task(Linear(), (64,), 10), federation_from_clients({"a": arrays, "b": arrays}).clients
    sizes = {}
    for name, channel in (("plain", None), ("quantise", Quantise()), ("top-k", TopK(0.1))):
        algorithm = carried(FedAvg(), channel)
        side = ClientSide(algorithm, task, clients, lambda client: None, 0, 0)
        down = algorithm.broadcast(task, algorithm.server_init(task), rng)
        reply = perform(side, task, "a", 0, down)
        assert reply.bytes_up == len(wire.pack(reply.upload, reply.numbers))
        sizes[name] = reply.bytes_up, sum(leaf.nbytes for leaf in reply.upload.values())
    assert [numbers for _, numbers in sizes.values()] == [650 * 4, 650 + 2 * 4, 65 * 8]
    assert sizes["quantise"][0] < sizes["plain"][0] / 2.5 and sizes["top-k"][0] < sizes["plain"][0] / 2.5
