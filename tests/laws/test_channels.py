"""Laws of channels: what is learnt through one is what is learnt without it, or near it, on every engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from battery import (
    ALGORITHMS,
    CHANNELS,
    ENGINES,
    LOCAL,
    ORCHESTRATIONS,
    Disk,
    ListJournal,
    clients_states,
    experiment,
    federation,
    outcome,
)
from law_examples import AtSites, Huge, Poisoned, TinyNet, Without
from scipy.stats import kstest
from test_laws import close, same

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.private import Private
from hansa.channels.channel import Channel
from hansa.channels.masking import Member
from hansa.channels.secure_sum import SecureSum
from hansa.channels.top_k import TopK
from hansa.contract import Algorithm
from hansa.engines.flower import Flower
from hansa.engines.processes import Processes
from hansa.engines.secure import secured
from hansa.engines.session import Lane, perform
from hansa.engines.upload_check import layout_of
from hansa.errors import HansaError
from hansa.io import wire
from hansa.io.codec import piece_from_table, piece_to_table
from hansa.io.registry import CATALOGUE, find, name_of
from hansa.io.store import MemoryStore
from hansa.orchestrate.star import Star, Sweep
from hansa.payload import Role, Update
from hansa.plan.channel import check_channel
from hansa.running.experiment import Experiment
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.running.privacy import account
from hansa.running.round_book import RoundBook
from hansa.training.local import LocalTraining
from hansa.training.visits import drive
from hansa.tree import Tree, copy, equal

every_channel = pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS.keys())
VARIED = ("fedavg", "scaffold", "fed3r-ft", "fedrep", "mime")  # no state, a state, wrapped, personal, two exchanges


def through(channel: Channel | None, algorithm: Algorithm, **settings: object) -> Experiment:
    made = {"orchestration": Star(4), "rounds": 2, **settings}
    return replace(experiment(algorithm, **made), channel=channel)  # type: ignore[arg-type]


def summable(name: str) -> bool:
    """Whether a plan of this algorithm may have a secure sum."""
    made = experiment(ALGORITHMS[name])
    try:
        check_channel(SecureSum(), made.phases, made.task)
    except HansaError:
        return False
    return bool(ALGORITHMS[name].uplink)


def test_every_channel_of_the_catalogue_is_in_the_battery() -> None:
    assert {name_of("channel", one) for one in CHANNELS.values()} == set(CATALOGUE["channel"]) == set(CHANNELS)
    for name, channel in CHANNELS.items():
        assert piece_from_table("channel", piece_to_table("channel", channel)) == channel
        assert isinstance(find("channel", name)(), Channel)


SUMMABLE = [name for name in ALGORITHMS if summable(name)]


def test_what_averages_or_sums_can_be_summed_securely() -> None:
    """Refused is what says EACH, lacks leaves, has networks of its own, or sends a row a sample; nothing else is."""
    for name, algorithm in ALGORITHMS.items():
        roles, networks = set(algorithm.uplink.values()), experiment(algorithm).task.networks
        uneven = algorithm.partial or networks or getattr(algorithm, "upload", "") == "factor"
        assert (name in SUMMABLE) == bool(roles and Role.EACH not in roles and not uneven), name
    assert len(SUMMABLE) > 30


# One setting of each is enough.  The moments of FLIC-S3 are multiples of the identity here, so that their eigenvectors
# are a matter of rounding.
ONCE = [name for name in SUMMABLE if ("/" not in name or name.startswith("fed3r")) and name != "flic-s3"]


@pytest.mark.parametrize("name", ONCE)
def test_a_secure_sum_is_the_plain_sum(name: str) -> None:
    """Up to what fixed point and float32 sums round; ridge statistics also without the rounding of their wire."""
    (plain, told), (found, noted) = (outcome(through(channel, ALGORITHMS[name])) for channel in (None, SecureSum()))
    states, theirs = clients_states(plain), clients_states(found)
    assert states.keys() == theirs.keys()
    for one, other in ((plain.server, found.server), *((states[client], theirs[client]) for client in states)):
        assert one.keys() == other.keys()
        for key, leaf in one.items():
            assert leaf.dtype == other[key].dtype
            assert torch.allclose(leaf.double(), other[key].double(), rtol=2e-5, atol=5e-6), key
    assert [record["clients"] for record in told.records] == [record["clients"] for record in noted.records]
    assert all(record["flops"] == 0 for record in noted.records)
    assert [record["trips"] for record in noted.records] == [3, 2][: len(noted.records)]


@every_channel
@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("engine", ["vectorised", "stacked"])
def test_engines_equal_serial_through_a_channel(name: str, engine: str, channel: Channel) -> None:
    """A number on the edge between two multiples may be rounded to either, and one on the edge of k be sent or not."""
    channel = TopK(0.9) if isinstance(channel, TopK) else channel
    made = through(channel, ALGORITHMS[name])
    if name_of("channel", channel) == "quantise":
        left, right = outcome(made), outcome(replace(made, engine=ENGINES[engine]))
        assert equal(left[0].ledger.tree(), right[0].ledger.tree())
        for key, leaf in left[0].server.items():
            assert torch.allclose(leaf, right[0].server[key], atol=0.02 * float(leaf.abs().max()) + 1e-6), key
    else:
        close(outcome(made), outcome(replace(made, engine=ENGINES[engine])))


@every_channel
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_processes_equal_serial_through_a_channel(name: str, channel: Channel) -> None:
    made = through(channel, ALGORITHMS[name])
    same(outcome(made), outcome(replace(made, engine=Processes(1))))


@pytest.mark.parametrize("name", ["quantise", "top-k"])
def test_chains_hand_on_what_was_compressed(name: str) -> None:
    made = through(CHANNELS[name], ALGORITHMS["scaffold"], orchestration=ORCHESTRATIONS["chains"])
    same(outcome(made), outcome(replace(made, engine=Processes(1))))


@every_channel
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_resumed_equals_uninterrupted_through_a_channel(name: str, channel: Channel, disk: Disk) -> None:
    made, journal, store = through(channel, ALGORITHMS[name], rounds=4), ListJournal(), disk()
    run_phases(made, store, journal, stop=lambda: len(journal.records) >= 2)
    store.close()
    store = disk()
    assert run_phases(made, store, journal)
    same((PhaseRun(made, 0, store, None), journal), outcome(made))


@every_channel
def test_clients_elsewhere_equal_serial_through_a_channel(channel: Channel) -> None:
    made = through(channel, ALGORITHMS["scaffold"])
    far = replace(made, federation=made.federation.far(), engine=Flower(AtSites.of(made.federation.clients)))
    (one, journal), (other, told) = outcome(made), outcome(far)
    assert equal(one.server, other.server) and journal.told() == told.told()


@every_channel
@pytest.mark.parametrize("name", VARIED)
def test_a_visit_through_a_channel_is_pure_and_its_layout_known(name: str, channel: Channel) -> None:
    run = PhaseRun(through(channel, ALGORITHMS[name]), 0, MemoryStore(), None)
    algorithm, down = run.carried, run.broadcast()
    data = run.federation.clients["c2"].train
    view = run.task.view(data, {})
    state = algorithm.client_init(view, data)
    _, state = algorithm.client_step(view, down, state, data, torch.Generator().manual_seed(4))
    before = copy(down), copy(state)
    first, after = algorithm.client_step(view, down, state, data, torch.Generator().manual_seed(5))
    turns, later = drive(algorithm.visit(view, down, state, data, torch.Generator().manual_seed(5)), data, 5)
    assert equal(first.sums, turns.sums) and equal(after, later)
    assert equal(down, before[0]) and equal(state, before[1])
    sums = algorithm.decode(run.task, algorithm.encode(first.sums))
    assert layout_of(algorithm, run.task, down) == {key: (leaf.shape, leaf.dtype) for key, leaf in sums.items()}


@every_channel
@pytest.mark.parametrize("how", ["one NaN", "infinite", "shape of one", "weight 1e12"])
def test_a_bad_upload_is_a_missing_client_through_a_channel(how: str, channel: Channel) -> None:
    bad = through(channel, Poisoned(FedAvg(LOCAL), how, 14), orchestration=Sweep())
    missing = through(channel, FedAvg(LOCAL), orchestration=Without(Sweep(), "c2"))
    (left, journal), (right, _) = outcome(bad), outcome(missing)
    assert all(list(record["failed"]) == ["c2"] for record in journal.records)
    assert equal(left.server, right.server)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedper", "fedavg/momentum"])
def test_sending_everything_is_no_compression(name: str) -> None:
    (plain, _), (found, _) = (outcome(through(channel, ALGORITHMS[name])) for channel in (None, TopK(1.0)))
    assert equal(plain.server, found.server)


@pytest.mark.parametrize("name", ["quantise", "top-k"])
@pytest.mark.parametrize("algorithm", VARIED)
def test_the_ledger_counts_compressed_bytes(algorithm: str, name: str) -> None:
    run = PhaseRun(through(CHANNELS[name], ALGORITHMS[algorithm]), 0, MemoryStore(), None)
    reply = perform(run.side, run.task, "c2", 5, run.broadcast())
    assert reply.bytes_up == len(wire.pack(reply.upload, reply.numbers))


def test_the_ledger_counts_every_message_of_a_secure_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """What each member received and answered, packed, is what its client is charged beyond the broadcast."""
    up, down = dict[str, int](), dict[str, int]()

    def counting(phase: str) -> None:
        whole = getattr(Member, phase)

        def step(member: Member, *given: object, **named: object) -> Tree:
            answer: Tree = whole(member, *given, **named)
            up[member.name] = up.get(member.name, 0) + len(wire.pack(answer))
            heard = [len(wire.pack(one)) for one in given if isinstance(one, dict)]
            down[member.name] = down.get(member.name, 0) + sum(heard)
            return answer

        monkeypatch.setattr(Member, phase, step)

    for phase in ("share", "mask", "unmask"):  # keys are advertised when clients join, before any round
        counting(phase)
    run, _ = outcome(through(SecureSum(), ALGORITHMS["fedavg"], orchestration=Star(5), rounds=3))
    ledger, message = run.ledger.tree(), len(wire.pack(run.broadcast()))
    for row, client in enumerate(run.names):
        assert int(ledger["bytes_up"][row]) == up.get(client, 0)
        assert int(ledger["bytes_down"][row]) == down.get(client, 0) + int(ledger["visits"][row]) * message
    assert sum(up.values()) > 0


# ------------------------------------------------------------------------------------------------- drop-outs and noise


@dataclass(frozen=True)
class Losing:
    """The serial engine, some of whose clients fail when they have trained: after they shared secrets."""

    lost: tuple[str, ...]

    def choice(self, context: object) -> dict[str, object]:
        return {"name": "losing"}

    @contextmanager
    def open(self, context: object) -> Iterator[object]:
        with ENGINES["serial"].open(context) as session:  # type: ignore[arg-type]
            yield LosingSession(session, self.lost)


class LosingSession:
    def __init__(self, session: object, lost: tuple[str, ...]):
        self.session, self.lost = session, lost

    def __getattr__(self, name: str) -> object:
        return getattr(self.session, name)

    def round(self, task: object, lanes: list[Lane], server: RoundBook) -> Iterator[tuple[int | None, Update]]:
        found = self.session.round(task, lanes, server)  # type: ignore[attr-defined]
        for place, up in found:
            (client,) = lanes[place].chain
            if client in self.lost:
                server.refuse(client, HansaError("gone"))
            else:
                yield place, up


def test_clients_that_drop_out_leave_exactly_the_others_sum() -> None:
    lost = ("c1", "c4")
    made = through(SecureSum(), ALGORITHMS["fed3r"])
    run, journal = outcome(replace(made, engine=Losing(lost)))
    data = federation()
    others = replace(data, clients={name: one for name, one in data.clients.items() if name not in lost})
    fresh, _ = outcome(through(SecureSum(), ALGORITHMS["fed3r"], data=others))
    assert equal(run.server, fresh.server)  # to the last bit, in whatever order they came
    assert journal.records[0]["channel"] == {"asked": 7, "answered": 5, "needed": 5}
    assert set(journal.records[0]["failed"]) == set(lost) and journal.records[0]["clients"] == 5


def test_a_round_of_too_few_ends_the_run_and_opens_nothing() -> None:
    made = through(SecureSum(), ALGORITHMS["fed3r"])
    says = r"Round 1: Only 4 of 7 clients answered, and 5 are needed to open their sum: nothing was opened\. gone"
    with pytest.raises(HansaError, match=says):
        outcome(replace(made, engine=Losing(("c1", "c2", "c4"))))
    with pytest.raises(HansaError, match=r"Round 1 asks 2 clients, and 3 are needed to open a secure sum: visit more"):
        outcome(through(SecureSum(), ALGORITHMS["fedavg"], orchestration=Star(2)))


def test_numbers_that_do_not_fit_are_refused_by_the_clients_and_nothing_is_opened() -> None:
    made = through(SecureSum(), Huge(FedAvg(LOCAL)), orchestration=Sweep())
    with pytest.raises(
        HansaError, match=r"Only 0 of 7 clients answered.*Client 'c\d': The upload holds a number of size"
    ):
        outcome(made)


STILL = LocalTraining(lr=1e-12)  # so that uploads are next to nothing, and what is opened is the noise
SHARED = Private(FedAvg(STILL), epsilon=1.0, trust="distributed")


def opened(algorithm: Private, lost: tuple[str, ...]) -> tuple[Update, PhaseRun]:
    """What a secure sum opens of a round, and the phase."""
    made = through(SecureSum(), algorithm, orchestration=Sweep(), model=TinyNet(2000), rounds=3)
    run = PhaseRun(replace(made, engine=Losing(lost)), 0, MemoryStore(), None)
    lanes = [Lane((client,), (0,), run.broadcast()) for client in run.names]
    with run.experiment.engine.open(run.context) as session:
        ((_, up),) = secured(session, run.context).round(run.round_task, lanes, RoundBook(run))
    return up, run


@pytest.mark.parametrize(("lost", "left"), [((), 7), (("c0", "c6"), 5)])
def test_shares_of_noise_make_the_opened_sum_private(lost: tuple[str, ...], left: int) -> None:
    """N(0, (z·C)²) is in the sum where only the threshold of five answers, and more where more do: 18,009 numbers."""
    up, run = opened(SHARED, lost)
    numbers = torch.cat([leaf.flatten().double() for leaf in up.sums.values()]).numpy()
    z = SHARED.multiplier(run.task)
    assert run.task.opened == 5 and z == Private(FedAvg(STILL), epsilon=1.0).multiplier(run.task) > 3
    assert kstest(numbers / (z * (left / 5) ** 0.5), "norm").pvalue > 1e-6
    assert up.weight == up.count == left


def test_the_server_of_shared_noise_adds_none_and_the_account_says_whom_it_trusts() -> None:
    up, run = opened(SHARED, ())
    server = run.algorithm.server_step(run.task, run.server, up)
    moved = server["model.head.bias"] - run.server["model.head.bias"]
    assert torch.allclose(moved, up.sums["model.head.bias"] / 7, rtol=1e-5)
    told, central = (
        account(run),
        PhaseRun(through(None, replace(SHARED, trust="central"), rounds=3), 0, MemoryStore(), None),
    )
    plain = account(central)
    assert told is not None and plain is not None
    assert (told["trust"], plain["trust"]) == ("distributed", "central") and told["delta"] == plain["delta"]
    assert told["epsilon"] == pytest.approx(1.0, rel=1e-3)


def test_noise_that_fixed_point_would_round_away_is_refused() -> None:
    with pytest.raises(HansaError, match=r"The 'clip' of Private is too small .* fixed point"):
        replace(SHARED, clip=1e-8).server_init(experiment(SHARED).task)
