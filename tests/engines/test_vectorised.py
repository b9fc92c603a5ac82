"""The vectorised engine gives what the serial one gives: servers and clients up to rounding, the ledger exactly."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_cases import CLASSES, SIZES, WIDTH, Dropping, assert_same, distance, federation, played, states

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.local import Local
from hansa.algorithms.personal import Personal
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines import client_blocks as shelf
from hansa.engines import vectorised
from hansa.engines.kernels import sample_space, stacked
from hansa.engines.kernels.cohort import Job
from hansa.engines.kernels.lazy_sum import LazySum
from hansa.engines.serial import Serial, SerialSession
from hansa.engines.session import PhaseContext
from hansa.engines.update_sum import UpdateSum
from hansa.engines.vectorised import Vectorised, VectorisedSession, usual_path
from hansa.errors import HansaError, HansaWarning
from hansa.io.store import DiskStore
from hansa.models.convolutional import LeafCNN
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.star import Star, Sweep
from hansa.server.optimisers import Adam
from hansa.task import ClientData, Model, Task
from hansa.training.local import LocalTraining
from hansa.training.visits import Problem
from hansa.tree import equal

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


def path(algorithm: Algorithm, model: Model, engine: Vectorised = AUTO) -> str:
    return usual_path(engine, PhaseContext(algorithm, Task(model, (WIDTH,), CLASSES), federation()))


@every_algorithm
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_linear_heads_equal_serial(algorithm: Algorithm, temperature: float) -> None:
    assert path(algorithm, Linear()) == "sample-space"
    alone, together = (played(algorithm, e, temperature=temperature) for e in (Serial(), Vectorised()))
    assert_same(alone, together, SAMPLE_SPACE)


@every_algorithm
def test_small_networks_equal_serial(algorithm: Algorithm) -> None:
    assert path(algorithm, MLP((10,))) == "stacked"
    assert_same(*(played(algorithm, engine, model=MLP((10,))) for engine in (Serial(), Vectorised())), STACKED)


PARTS = {
    "head": FedAvg(LocalTraining(lr=0.1, epochs=2, batch_size=8, train="head")),
    "features": FedAvg(LocalTraining(lr=0.1, epochs=2, batch_size=8, train="features")),
    "one layer": FedAvg(LocalTraining(lr=0.1, train="features.1.*")),
    "own head": Personal(FedAvg(LOCAL), keep="head"),
    "own features": Personal(FedAvg(LOCAL), keep="features"),
    "own head, prox": Personal(FedProx(mu=0.2, local=LOCAL), keep="head"),
    "own frozen features": Personal(FedAvg(LocalTraining(lr=0.1, train="head")), keep="head.bias"),
}


def local_tests(shared: bool = False) -> object:
    """Clients with test samples, as personal algorithms need."""
    data = federation(shared=False)
    arrays = {name: (client.train.x.numpy(), client.train.y.numpy()) for name, client in data.clients.items()}
    return federation_from_clients({name: (*own, *own) for name, own in arrays.items()}, data.class_names)


@pytest.mark.parametrize("algorithm", PARTS.values(), ids=PARTS.keys())
def test_parts_of_networks_equal_serial(algorithm: Algorithm) -> None:
    data = local_tests() if algorithm.personal else federation()
    alone, together = (played(algorithm, e, model=MLP((10,)), data=data) for e in (Serial(), Vectorised()))
    assert_same(alone, together, STACKED)
    assert bool(states(alone)) == algorithm.personal


def test_clients_may_own_their_arrays() -> None:
    data = federation(shared=False)
    assert_same(*(played(FedAvg(LOCAL), engine, data=data) for engine in (Serial(), Vectorised())), SAMPLE_SPACE)


def test_blocks_change_nothing_but_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = played(Scaffold(local=LOCAL), Vectorised())
    monkeypatch.setattr(shelf, "BLOCK_BYTES", 10 * 4 * WIDTH)
    assert_same(expected, played(Scaffold(local=LOCAL), Vectorised()), SAMPLE_SPACE)


@pytest.mark.parametrize("model", [Linear(), MLP((6,))])
def test_samples_that_stay_on_the_device_change_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = played(FedAvg(LOCAL), AUTO, model=model)
    asked = []

    def here(clients: IndexedClients, sample_bytes: int, device: torch.device) -> ClientData:
        asked.append(device)
        return clients.samples.take(np.arange(len(clients.samples)))

    monkeypatch.setattr(vectorised, "resident", here)
    assert_same(played(FedAvg(LOCAL), AUTO, model=model), expected, 0.0)
    assert asked == [torch.device("cpu")]  # once, not once a round


def test_samples_stay_on_a_device_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, elsewhere = federation().clients, torch.device("meta")
    found = shelf.resident(clients, 4 * WIDTH, elsewhere)
    assert found is not None and found.x.device == found.y.device == elsewhere and len(found) == sum(SIZES)
    assert shelf.resident(clients, 4 * WIDTH, torch.device("cpu")) is None
    assert shelf.resident(federation(shared=False).clients, 4 * WIDTH, elsewhere) is None
    monkeypatch.setattr(shelf, "RESIDENT_BYTES", 4 * WIDTH * sum(SIZES) - 1)
    assert shelf.resident(clients, 4 * WIDTH, elsewhere) is None


@pytest.mark.parametrize("model", [Linear(), MLP((6,))])
def test_bundles_of_all_sizes_change_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (sample_space, stacked):
        monkeypatch.setitem(path.BUNDLE_FLOPS, True, 1e12)  # as on a device that does not mind padding
    assert_same(played(FedAvg(LOCAL), AUTO, model=model), played(FedAvg(LOCAL), Serial(), model=model), STACKED)


def test_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "BLOCK_BYTES", 30 * 4 * WIDTH)
    data = federation([4] * 50)
    chains = [(name,) for name in data.clients]
    blocks = list(shelf.ClientBlocks(data.clients, 4 * WIDTH, 5).blocks([*chains[:20], ("c1", "c2"), *chains[20:]]))
    assert [chain for block in blocks for chain in block] == [*chains[:20], ("c1", "c2"), *chains[20:]]
    assert max(map(len, blocks)) == 5 and [("c1", "c2")] in blocks
    monkeypatch.setattr(shelf, "BLOCK_BYTES", 12 * 4 * WIDTH)
    assert max(map(len, shelf.ClientBlocks(data.clients, 4 * WIDTH, 5).blocks(chains))) == 3


def test_a_round_holds_one_block_and_makes_no_clients_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg only sums: no client's own leaf is ever made, and one sum a block is handed on."""
    made: list[object] = []
    monkeypatch.setattr(LazySum, "tensor", lambda self: made.append(self))
    updates: list[int] = []
    first = UpdateSum.update
    monkeypatch.setattr(UpdateSum, "update", lambda self: updates.append(self._count) or first(self))
    played(FedAvg(LOCAL), Vectorised(), rounds=1, orchestration=Star(6))
    assert made == [] and updates == [6]


def test_long_chains_go_one_by_one_beside_short_ones() -> None:
    alone, together = (played(FedAvg(LOCAL), e, orchestration=Chains(2)) for e in (Serial(), Vectorised()))
    assert_same(alone, together, SAMPLE_SPACE)


def test_same_seed_same_bits() -> None:
    one, again = (played(Scaffold(local=LOCAL), Vectorised()) for _ in range(2))
    assert_same(one, again, 0.0)


def test_a_disk_store_takes_states(tmp_path: Path) -> None:
    on_disk = played(Scaffold(local=LOCAL), Vectorised(), store=DiskStore(tmp_path / "state.sqlite"))
    assert_same(played(Scaffold(local=LOCAL), Vectorised()), on_disk, 0.0)


def test_what_cannot_be_divided_is_left_to_the_serial_crew() -> None:
    def crew(algorithm: Algorithm, model: Model, engine: Vectorised = AUTO) -> type:
        with engine.open(PhaseContext(algorithm, Task(model, (WIDTH,), CLASSES), federation())) as found:
            return type(found)

    assert crew(FedAvg(LOCAL), Linear()) is VectorisedSession
    assert crew(L2GD(LocalTraining()), Linear()) is SerialSession
    assert crew(FedAvg(LOCAL), Linear(), Vectorised(path="serial")) is SerialSession


def test_closed_forms_equal_serial() -> None:
    assert path(Fed3R(), Linear()) == "pooled"
    assert_same(*(played(Fed3R(), e, orchestration=Sweep(), rounds=1) for e in (Serial(), Vectorised())), 1e-6)


def test_features_that_change_in_training_are_not_computed_once() -> None:
    head = FedAvg(LocalTraining(train="head"))
    assert path(head, Dropping()) == "serial"
    data = federation([4, 5, 6])
    assert_same(*(played(head, e, model=Dropping(), data=data) for e in (Serial(), Vectorised())), 0.0)


def test_paths_can_be_insisted_on() -> None:
    assert path(FedAvg(LOCAL), Linear(), Vectorised(path="stacked")) == "stacked"
    assert path(FedAvg(LOCAL), MLP(), Vectorised(path="sample-space")) == "serial"
    alone = played(FedAvg(LOCAL), Serial())
    assert_same(alone, played(FedAvg(LOCAL), Vectorised(path="stacked")), STACKED)


def test_convolutions_go_one_by_one_on_a_cpu() -> None:
    task = Task(LeafCNN(), (1, 8, 8), CLASSES)
    context = PhaseContext(FedAvg(LOCAL), task, federation())
    assert usual_path(Vectorised(), context) == "serial"
    assert usual_path(Vectorised(path="stacked"), context) == "stacked"


def test_large_clients_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorised.sample_space, "STEP_FLOPS", 0.0)
    sizes = [3, 4, 5, 600]
    data = federation(sizes)
    local = FedAvg(LocalTraining(lr=0.1, epochs=3, batch_size=300))
    calls: list[int] = []
    alone = vectorised.Job.alone
    monkeypatch.setattr(vectorised.Job, "alone", lambda job, training: calls.append(job.size) or alone(job, training))
    together = played(local, Vectorised(), data=data, orchestration=Star(4), rounds=1)
    assert calls == [600]
    assert_same(played(local, Serial(), data=data, orchestration=Star(4), rounds=1), together, SAMPLE_SPACE)


@pytest.mark.parametrize("model", [Linear(), MLP((5,))], ids=["linear", "mlp"])
def test_a_failing_client_is_named(model: Model) -> None:
    data = federation(shared=False)
    arrays = {name: (client.train.x.numpy(), client.train.y.numpy()) for name, client in data.clients.items()}
    arrays["wrong"] = (arrays["c4"][0][:, :7], arrays["c4"][1])
    broken = federation_from_clients(arrays, data.class_names)
    stages = [
        played(FedAvg(LOCAL), engine, data=broken, model=model, orchestration=Star(fraction=1.0))
        for engine in (Serial(), Vectorised())
    ]
    assert all("Client 'wrong' failed" in stage.failed["wrong"] for stage in stages)
    assert distance(stages[0].server, stages[1].server) < 1e-5


def test_settings_are_checked() -> None:
    with pytest.raises(HansaError, match=re.escape("The 'threads' of the vectorised engine must be 'auto' or")):
        Vectorised(threads=0)
    with pytest.raises(HansaError, match=r"not there\. Got 'warp'"):
        Vectorised(device="warp")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("model", [Linear(), MLP((10,))], ids=["linear", "mlp"])
def test_a_gpu_equals_serial(model: Model) -> None:
    alone, there = (played(Scaffold(local=LOCAL), e, model=model) for e in (Serial(), Vectorised(device="cuda")))
    assert_same(alone, there, 1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("train", ["all", "head"])
def test_convolutions_on_a_gpu_give_the_same_bits_twice(train: str) -> None:
    """And those of one by one, up to rounding: torch would let cuDNN drop half of the digits, and vary the others."""
    local = LocalTraining(lr=0.05, epochs=2, batch_size=8, train=train)
    trained = functools.partial(played, FedAvg(local), data=images(), model=LeafCNN(), orchestration=Sweep())
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
    return Federation(IndexedClients(samples, index), tuple(map(str, range(CLASSES))), samples.take(parts[-1]))


def test_convolutions_are_exact_only_while_the_engine_works() -> None:
    flags = torch.backends.cudnn
    before = flags.deterministic, flags.allow_tf32
    with vectorised.same_bits("cpu"):
        assert (flags.deterministic, flags.allow_tf32) == before
    with vectorised.same_bits("cuda"):
        assert (flags.deterministic, flags.allow_tf32) == (True, False)
    assert (flags.deterministic, flags.allow_tf32) == before


@pytest.mark.parametrize("algorithm", [FedAvg(LOCAL), Scaffold(local=LOCAL)], ids=["averages", "looks"])
def test_a_device_without_room_does_not_go_unsaid(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    for name in ("train", "total"):
        monkeypatch.setattr(stacked, name, full)
    model = MLP((6,))
    with pytest.warns(HansaWarning, match=r"The device 'cpu' has no room left, so some clients train one by one"):
        found = played(algorithm, Vectorised(threads=1), model=model)
    assert_same(played(algorithm, Serial(1), model=model), found, 0.0)


def test_heads_too_large_for_sample_space_are_stacked_on_a_device() -> None:
    """On a CPU they go one by one, for stacking does not pay there."""
    task = Task(LeafCNN(), (1, 8, 8), CLASSES)
    place = PhaseContext(FedAvg(LocalTraining(train="head", batch_size=1000)), task, images())
    few, many = (
        Job(Problem(task, task.params()), ClientData(torch.zeros(n, 1, 8, 8), torch.zeros(n, dtype=torch.long)), 0)
        for n in (5, 5000)
    )
    for device, large in (("cpu", "serial"), ("meta", "stacked")):
        crew = VectorisedSession(AUTO, place)
        crew.device = torch.device(device)
        assert [crew._path(job) for job in (few, many)] == ["sample-space", large]


# ---------------------------------------------------------------------------------------- clients that are only samples

AVERAGING = [
    FedAvg(LocalTraining(lr=0.1, epochs=2, batch_size=4, momentum=0.5, weight_decay=0.01)),
    FedProx(LocalTraining(lr=0.1, epochs=3, batch_size=4), mu=0.5),
    FedAvgFT(LocalTraining(lr=0.1)),
]


def test_only_algorithms_that_merely_average_say_so() -> None:
    """What an engine relies on: the same problem for everyone, `n_k (w_k − w)` up, and no state."""
    task, rng = Task(MLP((5,)), (WIDTH,), CLASSES), torch.Generator()
    for algorithm in AVERAGING:
        assert algorithm.averages
        down = algorithm.broadcast(algorithm.server_init(task, {}))
        clients = [ClientData(torch.randn(n, WIDTH, generator=rng), torch.arange(n) % CLASSES) for n in (3, 9)]
        one, other = (algorithm.prepare(task, down, {}, data) for data in clients)
        assert equal(one.start, other.start) and one.correction.strength == other.correction.strength
        assert equal(one.correction.anchor, other.correction.anchor)
        assert equal(one.correction.shift, other.correction.shift)
        trained = algorithm.training.run(one.task, one.start, clients[1], rng, one.correction)
        up, state = algorithm.conclude(one, trained, down, {}, clients[1])
        assert state == {} and (up.weight, up.count) == (9, 1)
        for key, leaf in algorithm.training.moving(trained.params).items():
            torch.testing.assert_close(up.sums[f"model.{key}"], 9 * (leaf - one.start[key]))
        assert algorithm.encode(up.sums) is up.sums
    for algorithm in (Scaffold(), FedDyn(), Personal(), Local(), FedPer()):
        assert not algorithm.averages


@pytest.mark.parametrize("model", [Linear(), MLP((6,))], ids=["sample-space", "stacked"])
@pytest.mark.parametrize("algorithm", AVERAGING, ids=lambda algorithm: type(algorithm).__name__)
@pytest.mark.parametrize("large", [False, True])
def test_clients_without_anything_of_their_own_are_never_looked_at_one_by_one(
    algorithm: Algorithm, model: Model, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as serial, to the byte in the ledger; clients for which it does not pay still go their own way."""
    if large:
        kernel = sample_space if isinstance(model, Linear) else stacked
        monkeypatch.setattr(kernel, "pays", lambda _, job, *__: job.size < 20)
    looked: list[str] = []
    before = VectorisedSession._prepare
    monkeypatch.setattr(
        VectorisedSession,
        "_prepare",
        lambda self, desk, client, *rest: looked.append(client) or before(self, desk, client, *rest),
    )
    expected = played(algorithm, Serial(), model=model, orchestration=Sweep())
    found = played(algorithm, Vectorised(), model=model, orchestration=Sweep())
    assert_same(expected, found, SAMPLE_SPACE if isinstance(model, Linear) else STACKED)
    assert set(looked) == ({"c7", "c8"} if large else set())
