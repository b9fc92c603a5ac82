"""The vectorised engine gives what the serial one gives: servers and clients up to rounding, the ledger exactly."""

from __future__ import annotations

import functools
import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import (
    CLASSES,
    SIZES,
    WIDTH,
    Dropping,
    assert_same,
    context,
    distance,
    federation,
    local_tests,
    paths_of,
    ran,
    states,
)

import hansa
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.local import Local
from hansa.algorithms.perfedavg import PerFedAvg
from hansa.algorithms.personal import Personal
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation, federation_from_clients
from hansa.data.targets import Classes
from hansa.engines import client_blocks, devices, vectorised, visits
from hansa.engines.kernels import sample_space, stacked
from hansa.engines.kernels.cohort import Job
from hansa.engines.kernels.lazy_sum import LazySum
from hansa.engines.kernels.one_by_one import OneByOne
from hansa.engines.kernels.sample_space import SampleSpace
from hansa.engines.kernels.stacked import Stacked
from hansa.engines.serial import Serial, SerialSession
from hansa.engines.together import averaged
from hansa.engines.update_sum import UpdateSum
from hansa.engines.vectorised import Vectorised, VectorisedSession
from hansa.errors import HansaError, HansaWarning
from hansa.io.store import DiskStore
from hansa.models.convolutional import LeafCNN
from hansa.models.dense import MLP, Linear
from hansa.models.recurrent import CharLSTM
from hansa.orchestrate.star import Star, Sweep
from hansa.plan.files import plan_from_table
from hansa.server.optimisers import Adam
from hansa.task import ClientData, Model, Task
from hansa.training.local import LocalTraining, Turn, train
from hansa.training.visits import AddsToState
from hansa.tree import equal
from journals import ListJournal

SAMPLE_SPACE, STACKED = 2e-6, 2e-5  # of a leaf's norm: what float32 leaves after three rounds
AUTO = Vectorised()
LOCAL = LocalTraining(lr=0.1, epochs=3, batch_size=8)
FULL = LocalTraining(lr=0.1, epochs=2, batch_size=6, momentum=0.9, weight_decay=0.05)

ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": FedAvg(LOCAL),
    "decay-momentum": FedAvg(FULL),
    "fedadam": FedAvg(LOCAL, Adam()),
    "fedprox": FedProx(mu=0.3, local=LOCAL),
    "scaffold": Scaffold(local=LOCAL),
    "feddyn": FedDyn(alpha=0.1, local=LOCAL),
    "scaffold-full": Scaffold(option="I", local=FULL),
}
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())


class Louder(FedAvg):
    """FedAvg that concludes something else, and so is not merely an average."""

    def conclude(self, turn: Turn, *rest: Any) -> Any:
        up, state = super().conclude(turn, *rest)
        return type(up)({key: 2 * leaf for key, leaf in up.sums.items()}, up.weight, flops=up.flops), state


def path(algorithm: Algorithm, model: Model, engine: Vectorised = AUTO) -> str:
    return engine.usual_path(context(algorithm, Task(model, (WIDTH,), CLASSES)))


@every_algorithm
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_linear_heads_equal_serial(algorithm: Algorithm, temperature: float) -> None:
    assert path(algorithm, Linear()) == "sample-space"
    alone, together = (ran(algorithm, e, temperature=temperature) for e in (Serial(), Vectorised()))
    assert_same(alone, together, SAMPLE_SPACE)


@every_algorithm
def test_clients_one_by_one_on_a_device_equal_serial(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneByOne, "applies", lambda *_, **__: True)  # as if this were one
    engine = Vectorised(path="sample-space")
    assert path(algorithm, MLP((10,)), engine) == "one-by-one"
    assert_same(*(ran(algorithm, one, model=MLP((10,))) for one in (Serial(), engine)), SAMPLE_SPACE)


@every_algorithm
def test_small_networks_equal_serial(algorithm: Algorithm) -> None:
    assert path(algorithm, MLP((10,))) == "stacked"
    assert_same(*(ran(algorithm, engine, model=MLP((10,))) for engine in (Serial(), Vectorised())), STACKED)


@pytest.mark.parametrize(("train", "way"), [("*", "stacked"), ("head", "sample-space")])
def test_sequences_of_tokens_equal_serial(train: str, way: vectorised.KernelPath) -> None:
    rng, parts = np.random.default_rng(0), np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    samples = Samples(rng.integers(0, 9, (sum(SIZES), 7)), rng.integers(0, 9, sum(SIZES)))
    names, index = tuple(map(str, range(9))), {f"c{k}": part for k, part in enumerate(parts)}
    data = Federation(IndexedClients(samples, index), Classes(names), samples.take(parts[-1]))
    algorithm, model = FedAvg(replace(LOCAL, train=train)), CharLSTM(4, 6)
    engine, journal = Vectorised(path=way), ListJournal()
    alone = ran(algorithm, Serial(), data=data, model=model)
    assert_same(alone, ran(algorithm, engine, data=data, model=model, journal=journal), STACKED)
    assert paths_of(journal) == {engine.path: 18}


PARTS = {
    "head": FedAvg(LocalTraining(lr=0.1, epochs=2, batch_size=8, train="head")),
    "features": FedAvg(LocalTraining(lr=0.1, epochs=2, batch_size=8, train="features")),
    "one layer": FedAvg(LocalTraining(lr=0.1, train="features.1.*")),
    "own head": Personal(FedAvg(LOCAL), keep="head"),
    "own features": Personal(FedAvg(LOCAL), keep="features"),
    "own head, prox": Personal(FedProx(mu=0.2, local=LOCAL), keep="head"),
    "own frozen features": Personal(FedAvg(LocalTraining(lr=0.1, train="head")), keep="head.bias"),
}


@pytest.mark.parametrize("algorithm", PARTS.values(), ids=PARTS.keys())
def test_parts_of_networks_equal_serial(algorithm: Algorithm) -> None:
    data = local_tests() if algorithm.personal else federation()
    alone, together = (ran(algorithm, e, model=MLP((10,)), data=data) for e in (Serial(), Vectorised()))
    assert_same(alone, together, STACKED)
    assert bool(states(alone)) == algorithm.personal


def test_clients_may_own_their_arrays() -> None:
    data = federation(shared=False)
    assert_same(*(ran(FedAvg(LOCAL), engine, data=data) for engine in (Serial(), Vectorised())), SAMPLE_SPACE)


def test_blocks_change_nothing_but_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ran(Scaffold(local=LOCAL), Vectorised())
    monkeypatch.setattr(client_blocks, "BLOCK_BYTES", 10 * 4 * WIDTH)
    assert_same(expected, ran(Scaffold(local=LOCAL), Vectorised()), SAMPLE_SPACE)


@pytest.mark.parametrize("model", [Linear(), MLP((6,))])
def test_samples_that_stay_on_the_device_change_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ran(FedAvg(LOCAL), AUTO, model=model)
    asked = []

    def here(clients: IndexedClients, sample_bytes: int, device: torch.device) -> ClientData:
        asked.append(device)
        return clients.samples.take(np.arange(len(clients.samples)))

    monkeypatch.setattr(vectorised, "resident", here)
    assert_same(ran(FedAvg(LOCAL), AUTO, model=model), expected, 0.0)
    assert asked == [torch.device("cpu")]  # once, not once a round


def test_samples_stay_on_a_device_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, elsewhere = federation().clients, torch.device("meta")
    found = client_blocks.resident(clients, 4 * WIDTH, elsewhere)
    assert found is not None and found.x.device == found.y.device == elsewhere and len(found) == sum(SIZES)
    assert client_blocks.resident(clients, 4 * WIDTH, torch.device("cpu")) is None
    assert client_blocks.resident(federation(shared=False).clients, 4 * WIDTH, elsewhere) is None
    monkeypatch.setattr(client_blocks, "RESIDENT_BYTES", 4 * WIDTH * sum(SIZES) - 1)
    assert client_blocks.resident(clients, 4 * WIDTH, elsewhere) is None


@pytest.mark.parametrize("model", [Linear(), MLP((6,))])
def test_bundles_of_all_sizes_change_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (sample_space, stacked):
        monkeypatch.setitem(path.BUNDLE_FLOPS, True, 1e12)  # as on a device that does not mind padding
    assert_same(ran(FedAvg(LOCAL), AUTO, model=model), ran(FedAvg(LOCAL), Serial(), model=model), STACKED)


def test_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = federation([4] * 50)
    names = list(data.clients)

    def blocks(samples: int) -> list[list[str]]:
        monkeypatch.setattr(client_blocks, "BLOCK_BYTES", samples * 4 * WIDTH)
        found = list(client_blocks.ClientBlocks(data.clients, 4 * WIDTH, 5).blocks(names))
        assert [name for block in found for name in block] == names
        return found

    assert max(map(len, blocks(30))) == 5
    assert max(map(len, blocks(12))) == 3
    assert max(map(len, blocks(1))) == 1


def test_a_round_holds_one_block_and_makes_no_clients_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who only sums never makes a client's own leaf, and one sum a block is handed on; FedAvg makes nothing lazy."""
    made: list[object] = []
    monkeypatch.setattr(LazySum, "tensor", lambda self: made.append(self))
    updates: list[int] = []
    first = UpdateSum.update
    monkeypatch.setattr(UpdateSum, "update", lambda self: updates.append(self._count) or first(self))
    ran(Louder(LOCAL), Vectorised(), rounds=1, orchestration=Star(6))
    assert made == [] and updates == [6]
    monkeypatch.setattr(LazySum, "__init__", lambda *_: made.append("lazy"))
    ran(FedAvg(LOCAL), Vectorised(), rounds=1, orchestration=Star(6))
    assert made == [] and updates == [6, 6]


def test_same_seed_same_bits() -> None:
    one, again = (ran(Scaffold(local=LOCAL), Vectorised()) for _ in range(2))
    assert_same(one, again, 0.0)


def test_a_disk_store_takes_states(tmp_path: Path) -> None:
    on_disk = ran(Scaffold(local=LOCAL), Vectorised(), store=DiskStore(tmp_path / "state.sqlite"))
    assert_same(ran(Scaffold(local=LOCAL), Vectorised()), on_disk, 0.0)


def test_a_user_may_insist_on_one_by_one() -> None:
    def session(engine: Vectorised) -> type:
        with engine.open(context(FedAvg(LOCAL), Task(Linear(), (WIDTH,), CLASSES))) as found:
            return type(found)

    assert session(AUTO) is VectorisedSession
    assert session(Vectorised(path="serial")) is SerialSession


def test_closed_forms_equal_serial() -> None:
    assert path(Fed3R(), Linear()) == "pooled"
    assert_same(*(ran(Fed3R(), e, orchestration=Sweep(), rounds=1) for e in (Serial(), Vectorised())), 1e-6)


def test_statistics_that_are_looked_at_are_let_go_of_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    made = Fed3R.statistics

    def watched(self: Fed3R, *rest: Any) -> Any:
        found = made(self, *rest)
        alive.append(sum(one() is not None for one in held))
        held.append(weakref.ref(found["ridge.gram"]))
        return found

    monkeypatch.setattr(Fed3R, "statistics", watched)
    ran(Fed3R(), Vectorised(), orchestration=Sweep(), rounds=1, remember="fingerprints")
    assert len(alive) >= len(SIZES) and max(alive) <= 1


def test_features_that_change_in_training_are_not_computed_once() -> None:
    head = FedAvg(LocalTraining(train="head"))
    assert path(head, Dropping()) == "serial"
    data = federation([4, 5, 6])
    assert_same(*(ran(head, e, model=Dropping(), data=data) for e in (Serial(), Vectorised())), 0.0)


def test_paths_can_be_insisted_on() -> None:
    assert path(FedAvg(LOCAL), Linear(), Vectorised(path="stacked")) == "stacked"
    assert path(FedAvg(LOCAL), MLP(), Vectorised(path="sample-space")) == "serial"
    alone = ran(FedAvg(LOCAL), Serial())
    assert_same(alone, ran(FedAvg(LOCAL), Vectorised(path="stacked")), STACKED)


def test_convolutions_go_one_by_one_on_a_cpu() -> None:
    task = Task(LeafCNN(), (1, 8, 8), CLASSES)
    place = context(FedAvg(LOCAL), task)
    assert Vectorised().usual_path(place) == "serial"
    assert Vectorised(path="stacked").usual_path(place) == "stacked"


def test_large_clients_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_space, "STEP_FLOPS", 0.0)
    sizes = [3, 4, 5, 600]
    data = federation(sizes)
    local = FedAvg(LocalTraining(lr=0.1, epochs=3, batch_size=300))
    calls: list[int] = []
    alone = Job.alone
    monkeypatch.setattr(Job, "alone", lambda job: calls.append(job.size) or alone(job))
    monkeypatch.setattr(Stacked, "pays", lambda *_: False)
    together = ran(local, Vectorised(), data=data, orchestration=Star(4), rounds=1)
    assert calls == [600]
    assert_same(ran(local, Serial(), data=data, orchestration=Star(4), rounds=1), together, SAMPLE_SPACE)


@pytest.mark.parametrize("model", [Linear(), MLP((5,))], ids=["linear", "mlp"])
def test_a_failing_client_is_named(model: Model) -> None:
    data = federation(shared=False)
    arrays = {name: (client.train.x.numpy(), client.train.y.numpy()) for name, client in data.clients.items()}
    arrays["wrong"] = (arrays["c4"][0][:, :7], arrays["c4"][1])
    broken = federation_from_clients(arrays, data.class_names)
    journals = ListJournal(), ListJournal()
    runs = [
        ran(FedAvg(LOCAL), engine, data=broken, model=model, orchestration=Star(fraction=1.0), journal=journal)
        for engine, journal in zip((Serial(), Vectorised()), journals, strict=True)
    ]
    records = [record for journal in journals for record in journal.records]
    assert all("Client 'wrong' failed" in record["failed"]["wrong"] for record in records)
    assert all(record["failed"].keys() == {"wrong"} for record in records)
    assert distance(runs[0].server, runs[1].server) < 1e-5


def test_settings_are_checked() -> None:
    with pytest.raises(HansaError, match=re.escape("The 'threads' of the vectorised engine must be 'auto' or")):
        Vectorised(threads=0)
    with pytest.raises(HansaError, match=r"must be 'cpu' or 'cuda'\. Got 'warp'"):
        Vectorised(device="warp")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_of_another_machine_may_be_named_but_not_used(tmp_path: Path) -> None:
    data = {"source": "digits", "partition": {"name": "iid", "clients": 3}}
    plan = {"data": data, "engine": {"name": "auto", "device": "cuda"}, "phases": [{"algorithm": "fed3r"}]}
    read = plan_from_table({"name": "elsewhere", **plan}, "elsewhere", tmp_path)
    with pytest.raises(HansaError, match=r"The 'device' of the engine is not there\. Got 'cuda'"):
        hansa.run(read, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("model", [Linear(), MLP((10,))], ids=["linear", "mlp"])
def test_a_gpu_equals_serial(model: Model) -> None:
    alone, there = (ran(Scaffold(local=LOCAL), e, model=model) for e in (Serial(), Vectorised(device="cuda")))
    assert_same(alone, there, 1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("train", ["all", "head"])
def test_convolutions_on_a_gpu_give_the_same_bits_twice(train: str) -> None:
    """And those of one by one, up to rounding: torch would let cuDNN drop half of the digits, and vary the others."""
    local = LocalTraining(lr=0.05, epochs=2, batch_size=8, train=train)
    trained = functools.partial(ran, FedAvg(local), data=images(), model=LeafCNN(), orchestration=Sweep())
    once, again, alone = (
        trained(Vectorised(device="cuda")),
        trained(Vectorised(device="cuda")),
        trained(Serial()),
    )
    assert equal(once.server, again.server)
    assert_same(alone, once, 1e-4)


def images() -> Federation:
    rng, parts = np.random.default_rng(0), np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    samples = Samples(rng.random((sum(SIZES), 1, 8, 8), np.float32), rng.integers(0, CLASSES, sum(SIZES)))
    index = {f"c{k}": part for k, part in enumerate(parts)}
    return Federation(IndexedClients(samples, index), Classes(tuple(map(str, range(CLASSES)))), samples.take(parts[-1]))


def test_convolutions_are_exact_only_while_the_engine_works() -> None:
    def flags() -> tuple[bool, bool, bool]:
        backends = torch.backends
        return backends.cudnn.deterministic, backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32

    before = flags()
    with devices.same_bits("cpu"):
        assert flags() == before
    with devices.same_bits("cuda"):
        assert flags() == (True, False, False)
    with devices.same_bits("cuda", "tf32"):
        assert flags() == (True, True, True)
    assert flags() == before


def test_less_precision_is_refused_where_there_is_none() -> None:
    with pytest.raises(HansaError, match="'tf32' of the vectorised engine is one of GPUs"):
        Vectorised(precision="tf32")


@pytest.mark.parametrize("algorithm", [FedAvg(LOCAL), Scaffold(local=LOCAL)], ids=["averages", "looks"])
@pytest.mark.parametrize(
    ("error", "says"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "the device 'cpu' has no room left; free its memory"),
        (ZeroDivisionError("a slip"), "ZeroDivisionError: a slip"),
    ],
    ids=["no room", "a slip"],
)
def test_a_kernel_that_fails_does_not_go_unsaid(
    algorithm: Algorithm, error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise error

    for name in ("train", "total"):
        monkeypatch.setattr(Stacked, name, full)
    model, journal = MLP((6,)), ListJournal()
    told = f"The kernel 'stacked' failed, so 6 clients trained one by one on the CPU, more slowly: {says}."
    with pytest.warns(HansaWarning, match=re.escape(told)):
        found = ran(algorithm, Vectorised(threads=1), model=model, journal=journal)
    put_off = isinstance(algorithm, AddsToState)  # sums, which are then added up in another order
    assert_same(ran(algorithm, Serial(1), model=model), found, STACKED if put_off else 0.0)
    assert paths_of(journal) == {"serial": 18}


def test_a_client_that_breaks_a_kernel_is_no_fault_of_the_kernel(recwarn: pytest.WarningsRecorder) -> None:
    data = federation([3, 4, 5])
    data.clients.samples.y[3] = CLASSES  # type: ignore[attr-defined]
    run = ran(FedAvg(LOCAL), AUTO, data=data, model=MLP((6,)), orchestration=Sweep(), rounds=1, evaluate_every=10)
    assert run.ledger.visited.tolist() == [True, False, True]
    assert not [one for one in recwarn if issubclass(one.category, HansaWarning)]


def test_heads_too_large_for_sample_space_are_stacked_on_a_device() -> None:
    """On a CPU they go one by one, for stacking does not pay there."""
    task = Task(LeafCNN(), (1, 8, 8), CLASSES)
    turn = Turn(LocalTraining(train="head", batch_size=1000), task, task.params())
    for device, large in (("cpu", None), ("meta", Stacked())):
        trainer = AUTO.trainer()
        trainer.device = torch.device(device)
        assert [trainer.kernel(turn, size) for size in (5, 5000)] == [SampleSpace(), large]


def test_the_paths_on_record_are_those_that_were_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in the kernels themselves: large clients one by one, small ones side by side, round by round."""
    taken: list[tuple[str, int]] = []
    first, alone = SampleSpace.total, Job.alone
    monkeypatch.setattr(SampleSpace, "pays", lambda self, turn, size, device: size < 9)
    monkeypatch.setattr(Stacked, "pays", lambda *_: False)
    monkeypatch.setattr(Job, "alone", lambda job: taken.append(("serial", 1)) or alone(job))
    monkeypatch.setattr(
        SampleSpace,
        "total",
        lambda self, cohort, *rest: taken.append(("sample-space", len(cohort))) or first(self, cohort, *rest),
    )
    journal = ListJournal()
    ran(FedAvg(LOCAL), AUTO, orchestration=Sweep(), rounds=2, journal=journal)
    small = sum(size < 9 for size in SIZES)
    expected = {"sample-space": small, "serial": len(SIZES) - small}
    assert [record["paths"] for record in journal.records] == [expected] * 2
    counts = {name: sum(count for path, count in taken if path == name) for name in expected}
    assert counts == {name: 2 * count for name, count in expected.items()}


# ---------------------------------------------------------------------------------------- clients that are only samples

AVERAGING = [
    FedAvg(LocalTraining(lr=0.1, epochs=2, batch_size=4, momentum=0.5, weight_decay=0.01)),
    FedAvg(LocalTraining(lr=0.1), weights="uniform"),
    FedProx(LocalTraining(lr=0.1, epochs=3, batch_size=4), mu=0.5),
    FedAvgFT(LocalTraining(lr=0.1)),
]


def named(algorithm: Algorithm) -> str:
    return f"{type(algorithm).__name__} {getattr(algorithm, 'weights', '')}".strip()


def test_only_algorithms_that_merely_average_are_taken_for_such() -> None:
    """What an engine relies on: the same problem for everyone, `p_k (w_k − w)` up, and no state."""
    task, rng = Task(MLP((5,)), (WIDTH,), CLASSES), torch.Generator()
    for algorithm in (*AVERAGING, PerFedAvg(LOCAL)):
        assert averaged(context(algorithm, task)) is algorithm
        assert averaged(context(algorithm, task, looked_at=True)) is None
        down = algorithm.broadcast(task, algorithm.server_init(task), rng)
        clients = [ClientData(torch.randn(n, WIDTH, generator=rng), torch.arange(n) % CLASSES) for n in (3, 9)]
        one, other = (algorithm.prepare(task, down, {}, data) for data in clients)
        assert equal(one.start, other.start) and one.correction.strength == other.correction.strength
        assert equal(one.correction.anchor, other.correction.anchor)
        assert equal(one.correction.shift, other.correction.shift)
        trained = train(one, clients[1], 0)
        up, state = algorithm.conclude(one, trained, down, {}, clients[1])
        weight = 9 if algorithm.weights == "samples" else 1
        assert state == {} and (up.weight, up.count) == (weight, 1)
        for key, leaf in algorithm.training.moving(trained.params).items():
            torch.testing.assert_close(up.sums[f"model.{key}"], weight * (leaf - one.start[key]))
        assert algorithm.encode(up.sums) is up.sums
    for stateful in (Scaffold(), FedDyn(), Personal(), Local(), FedPer()):
        assert averaged(context(stateful, task)) is None


def test_who_overrides_what_an_average_does_is_asked_client_by_client() -> None:
    assert averaged(context(Louder(LOCAL), Task(Linear(), (WIDTH,), CLASSES))) is None
    alone, together = (ran(Louder(LOCAL), engine) for engine in (Serial(), AUTO))
    assert_same(alone, together, SAMPLE_SPACE)
    assert distance(alone.server, ran(FedAvg(LOCAL), AUTO).server) > 0.01


@pytest.mark.parametrize("model", [Linear(), MLP((6,))], ids=["sample-space", "stacked"])
@pytest.mark.parametrize("algorithm", AVERAGING, ids=named)
@pytest.mark.parametrize("large", [False, True])
def test_clients_without_anything_of_their_own_are_never_looked_at_one_by_one(
    algorithm: Algorithm, model: Model, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as serial, to the byte in the ledger; only clients for which it does not pay go visit by visit."""
    if large:
        for kernel in (SampleSpace, Stacked):
            monkeypatch.setattr(kernel, "pays", lambda self, turn, size, device: size < 20)
    opened, alone = list[str](), list[int]()
    before, by_itself = visits._opened, Job.alone

    def noted(place: Any, task: Task, block: visits.Block, *rest: Any, **named: Any) -> Any:
        opened.extend(block.clients)
        return before(place, task, block, *rest, **named)

    monkeypatch.setattr(visits, "_opened", noted)
    monkeypatch.setattr(Job, "alone", lambda job: alone.append(job.size) or by_itself(job))
    expected = ran(algorithm, Serial(), model=model, orchestration=Sweep())
    found = ran(algorithm, Vectorised(), model=model, orchestration=Sweep())
    assert_same(expected, found, SAMPLE_SPACE if isinstance(model, Linear) else STACKED)
    assert set(opened) == (
        {name for name, size in zip(found.names, SIZES, strict=True) if size >= 20} if large else set()
    )
    assert sorted(set(alone)) == ([22, 31] if large else [])
