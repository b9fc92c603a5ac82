"""Clients at sites elsewhere: what travels, what is refused, and what a kill on either side costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from battery import ALGORITHMS, LOCAL, ORCHESTRATIONS, experiment, federation, outcome
from law_examples import AtSites

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.private import Private
from hansa.channels.masking import Counter
from hansa.channels.secure_sum import SecureSum
from hansa.channels.terms import Terms
from hansa.data.federation import Client
from hansa.engines import framing, letters
from hansa.engines.carriers import Answers, Carrier, Loopback, Sites
from hansa.engines.client_side import AT_SITE
from hansa.engines.drafts import Draft, open_answer
from hansa.engines.errands import phase_message, sides_of
from hansa.engines.far_session import FarSession
from hansa.engines.flower import Flower
from hansa.engines.letters import Answer, Evaluation, Letter, Masking, Superseded, Visit, Visited
from hansa.engines.secure import SecureSession
from hansa.engines.session import PhaseContext
from hansa.engines.site import Site
from hansa.engines.site_members import SiteMembers, SumKeys, card_tree, keys_of_sites
from hansa.errors import HansaError, HansaWarning
from hansa.io import wire
from hansa.io.store import DiskStore, MemoryStore, Store
from hansa.io.trust import Trust
from hansa.models.dense import MLP, Linear
from hansa.models.latent import Latent
from hansa.orchestrate.star import Star
from hansa.running import loop
from hansa.running.experiment import Experiment
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.tree import equal
from journals import ListJournal

SCAFFOLD = ALGORITHMS["scaffold"]


class Killed(BaseException):
    """What nobody catches, as nobody catches a kill."""


@dataclass(eq=False)
class Watched:
    """A carrier that counts trips, and may meddle with answers: `meddle(trip, site, answer)`."""

    inner: AtSites
    meddle: Callable[[int, str, bytes], bytes | str] = lambda trip, site, answer: answer
    trips: list[list[str]] = field(default_factory=list)

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[Carrier]:
        yield self

    @property
    def homes(self) -> Mapping[str, str]:
        return Sites(self.inner.sites or {}).homes

    @property
    def cards(self) -> Mapping[str, str]:
        return Sites(self.inner.sites or {}).cards

    def ask(self, letters: Mapping[str, bytes], patience: float) -> Answers:
        self.trips.append(list(letters))
        for site, answer in list(Sites(self.inner.sites or {}).ask(letters, patience)):
            assert isinstance(answer, bytes)
            yield site, self.meddle(len(self.trips), site, answer)


def far(made: Experiment, count: int = 3, **kw: Any) -> tuple[Experiment, Watched]:
    """The same experiment with its clients at some sites."""
    carrier = Watched(AtSites.of(made.federation.clients, count), **kw)
    return replace(made, federation=made.federation.far(), engine=Flower(carrier)), carrier


# ---------------------------------------------------------------------------------------------------------- the engine


@pytest.mark.parametrize("orchestration", ["star", "chains", "lines", "fedseq"])
@pytest.mark.parametrize("name", ["scaffold", "ditto"])
def test_clients_of_several_sites_equal_serial(name: str, orchestration: str) -> None:
    """To the bit in what is learnt; rows are made of other blocks of samples, so of other last digits."""
    made = experiment(ALGORITHMS[name], orchestration=ORCHESTRATIONS[orchestration])
    (one, journal), (other, told) = outcome(made), outcome(far(made)[0])
    assert equal(one.server, other.server) and equal(one.ledger.tree(), other.ledger.tree())
    for left, right in zip(journal.records, told.records, strict=True):
        assert left["metrics"] == pytest.approx(right["metrics"], rel=1e-5)
        assert {**left, "metrics": 0, **LATER} == {**right, "metrics": 0, **LATER}


LATER = dict.fromkeys(("before", "engine", "paths", "seconds", "trips"))


def test_a_round_is_one_letter_to_every_site() -> None:
    """Evaluations ride with the next round: what a phase starts from with the first, the last one by itself."""
    made = experiment(SCAFFOLD, orchestration=Star(fraction=1.0), rounds=4)
    every = ["site-0", "site-1", "site-2"]
    run, carrier = far(made)
    outcome(run)
    assert [sorted(trip) for trip in carrier.trips] == [every] * 5
    run, carrier = far(experiment(ALGORITHMS["fed3r"]))
    outcome(run)
    assert [sorted(trip) for trip in carrier.trips] == [every] * 2  # statistics, and how good their classifier is


def test_statistics_are_one_trip() -> None:
    """Where the test samples are the server's, or there are none, nothing else has to travel."""
    made = experiment(ALGORITHMS["fed3r"])
    bare = {name: Untested(client) for name, client in made.federation.clients.items()}
    made = replace(made, federation=replace(made.federation, clients=bare))  # type: ignore[arg-type]
    run, carrier = far(made)
    (one, _), (other, told) = outcome(made), outcome(run)
    assert equal(one.server, other.server)
    assert len(carrier.trips) == 1 and [record["trips"] for record in told.records] == [1]


@pytest.mark.parametrize(("every", "trips"), [(6, 2), (3, 3), (1, 7)])
def test_a_purely_local_phase_is_one_errand_between_two_evaluations(every: int, trips: int) -> None:
    made = experiment(ALGORITHMS["local"], rounds=6)
    made = replace(made, phases=(replace(made.phases[0], evaluate_every=every),))
    run, carrier = far(made)
    (one, journal), (other, told) = outcome(made), outcome(run)
    assert len(carrier.trips) == trips and equal(one.ledger.tree(), other.ledger.tree())
    for left, right in zip(journal.records, told.records, strict=True):
        assert left["metrics"] == pytest.approx(right["metrics"], rel=1e-5)
        assert {**left, "metrics": 0, **LATER} == {**right, "metrics": 0, **LATER}


@pytest.mark.parametrize("broken", [(1, 0), (1, 3), (1, 9)])
@pytest.mark.filterwarnings("ignore::hansa.errors.HansaWarning")
def test_visits_made_ahead_that_fail_are_made_again(broken: tuple[int, int]) -> None:
    """A visit that fails ahead of its round is asked for again in it, and goes on from the right state."""
    trip, place = broken

    def meddle(now: int, site: str, answer: bytes) -> bytes:
        if (now, site) != (trip, "site-1"):
            return answer
        head, messages = framing.unpacked(answer)
        head["visits"][place] = {"error": "the power was off"}
        return framing.packed(head, [[one] for at, one in enumerate(messages) if at != place])

    made = experiment(ALGORITHMS["local"], orchestration=Star(fraction=1.0), rounds=6)
    made = replace(made, phases=(replace(made.phases[0], evaluate_every=6),))
    run, carrier = far(made, meddle=meddle)
    (_, journal), (_, told) = outcome(made), outcome(run)
    failed = [sorted(record["failed"]) for record in told.records]
    assert sum(map(len, failed)) == (place == 0) and len(carrier.trips) > 2
    if place:
        assert journal.records[-1]["metrics"] == pytest.approx(told.records[-1]["metrics"], rel=1e-5)


def test_a_letter_tells_a_phase_once() -> None:
    made = experiment(SCAFFOLD, orchestration=Star(fraction=1.0), rounds=3)
    run, carrier = far(made, 1)
    seen: list[Letter] = []
    site = carrier.inner.sites["site-0"]
    usual = site.answer

    def noted(letter: wire.Buffer) -> bytes:
        seen.append(letters.read_letter(letter)[0])
        return usual(letter)

    site.answer = noted  # type: ignore[method-assign]
    outcome(run)
    assert [one.described is not None for one in seen] == [True, False, False, False]
    assert [len(one.visits) for one in seen] == [7, 7, 7, 0] and [len(one.evaluations) for one in seen] == [1, 1, 1, 1]
    assert [one.number for one in seen] == [1, 2, 3, 4] and len({one.lease for one in seen}) == 1


def test_the_run_says_where_states_are() -> None:
    run, _ = outcome(far(experiment(ALGORITHMS["ditto"]))[0])
    with pytest.raises(HansaError, match="state of client 'c1' is at its site"):
        run.side.state("c1")


def test_a_rehearsal_of_a_plan_keeps_states_in_folders(tmp_path: Path) -> None:
    made = experiment(SCAFFOLD, model=Linear())
    rehearsed = replace(made, engine=Flower(Loopback(str(tmp_path), 2)))
    (one, _), (other, _) = outcome(made), outcome(rehearsed)
    assert equal(one.server, other.server)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site-0", "site-1"]


@pytest.mark.parametrize("deploy", ["last", "best-validation"])
def test_sites_forget_states_that_the_run_does_not_need(deploy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "COMMIT_SECONDS", 0.0)
    made = experiment(ALGORITHMS["ditto"], orchestration=Star(fraction=1.0), rounds=6)
    if deploy != "last":
        kept = {name: Validated(client) for name, client in made.federation.clients.items()}
        made = replace(made, federation=replace(made.federation, clients=kept))  # type: ignore[arg-type]
    made = replace(made, phases=(replace(made.phases[0], deploy=deploy),))  # type: ignore[arg-type]
    run, carrier = far(made)
    (one, journal), (other, told) = outcome(made), outcome(run)
    assert equal(one.server, other.server) and [r.get("deployed") for r in journal.records] == [
        r.get("deployed") for r in told.records
    ]
    store = carrier.inner.sites["site-0"].store
    assert isinstance(store, MemoryStore)
    versions = [name for name, client in store._trees if client == "c0"]
    assert len(versions) <= (2 if deploy == "last" else 3)  # of six: the last, the one before it, and the best
    now = other.store.get("0/client", "c0")
    assert now is not None and f"state/{'-'.join(map(str, now[AT_SITE].tolist()))}" in versions


@dataclass(frozen=True)
class Validated:
    """A client whose test samples are also its validation samples."""

    inner: Client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, "test" if name == "validation" else name)


@dataclass(frozen=True)
class Untested:
    """A client without test samples."""

    inner: Client

    def __getattr__(self, name: str) -> Any:
        return None if name == "test" else getattr(self.inner, name)


# ----------------------------------------------------------------------------------------------------- kills and faults


@pytest.mark.parametrize("trip", [2, 3, 5])
@pytest.mark.parametrize("name", ["scaffold", "fedavg/momentum"])
def test_a_server_killed_and_resumed_equals_an_uninterrupted_one(
    name: str, trip: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the sites have done a round that the server will never have heard of."""
    monkeypatch.setattr(loop, "COMMIT_SECONDS", 0.0)

    def kill(now: int, site: str, answer: bytes) -> bytes:
        if now == trip and site == "site-1":
            raise Killed
        return answer

    made = replace(experiment(ALGORITHMS[name], rounds=5), engine=Flower())
    made, carrier = far(made, meddle=kill)
    journal = ListJournal()
    with pytest.raises(Killed), closing(DiskStore(tmp_path / "state.sqlite")) as store:
        run_phases(made, store, journal)
    carrier.meddle = lambda now, site, answer: answer
    with closing(DiskStore(tmp_path / "state.sqlite")) as store:
        assert run_phases(made, store, journal)
        resumed = PhaseRun(made, 0, store, None), journal
        whole = outcome(far(replace(made, federation=federation()))[0])
        assert equal(resumed[0].server, whole[0].server) and journal.told() == whole[1].told()
        assert equal(resumed[0].ledger.tree(), whole[0].ledger.tree())


def test_a_site_that_was_killed_goes_on_from_its_folder(tmp_path: Path) -> None:
    """It has forgotten the phase, and is told again; its states are as they were."""
    made = experiment(SCAFFOLD, orchestration=Star(fraction=1.0), rounds=4, model=Linear())
    run, carrier = far(made, 1)
    stores: list[Store] = []

    def restart(trip: int, site: str, answer: bytes) -> bytes:
        if stores:
            stores[-1].close()  # type: ignore[attr-defined]
        stores.append(DiskStore(tmp_path / "site.sqlite"))
        carrier.inner.sites["site-0"] = Site(made.federation.clients, stores[-1])  # type: ignore[index]
        return answer

    restart(0, "", b"")
    carrier.meddle = restart
    same_server, expected = outcome(run)[0], outcome(made)[0]
    assert equal(same_server.server, expected.server)
    assert len(carrier.trips) == 1 + 2 * 4  # the first letter describes the phase by itself


FAULTS: dict[str, tuple[Callable[[bytes], bytes | str], str]] = {
    "silent": (lambda answer: "it did not answer within 600 s", "did not answer"),
    "cut off": (lambda answer: answer[:-3], "cut off"),
    "too long": (lambda answer: answer + b"x", "1 bytes too many"),
    "no frame": (lambda answer: b"<html>" * 9, "the other side is foreign"),
    "other words": (lambda answer: framing.packed({"hello": 1}, []), "There is no setting"),
    "fewer visits": (lambda answer: letters.write(Answer(), []), "answered something else"),
    "no messages": (lambda answer: framing.packed(framing.unpacked(answer)[0], []), "should hold"),
    "NaN": (lambda answer: poisoned(answer, float("nan")), "holds NaN or infinity"),
    "a wrong shape": (lambda answer: poisoned(answer, torch.zeros(3)), "must have the shape"),
}


def poisoned(answer: bytes, value: Any) -> bytes:
    """An answer whose uploads are not what they should be."""
    head, messages = framing.unpacked(answer)
    changed = []
    for place, message in enumerate(messages):
        tree, numbers = wire.unpack(message)
        if place < len(head["visits"]):
            tree = {key: value if isinstance(value, torch.Tensor) else leaf * value for key, leaf in tree.items()}
        changed.append(wire.parts(tree, numbers))
    return framing.packed(head, changed)


@pytest.mark.parametrize(("change", "says"), FAULTS.values(), ids=FAULTS)
@pytest.mark.filterwarnings("ignore::hansa.errors.HansaWarning")
def test_a_round_goes_on_without_a_site_that_cannot_be_used(change: Callable[[bytes], bytes | str], says: str) -> None:
    """Its clients are named, and the result is that of a round without them."""
    made = experiment(SCAFFOLD, orchestration=Star(fraction=1.0), rounds=1)
    run, _ = far(made, meddle=lambda trip, site, answer: change(answer) if (trip, site) == (1, "site-1") else answer)
    stage, journal = outcome(run)
    (record,) = journal.records
    assert record["failed"].keys() == {"c1", "c4"} and all(says in why for why in record["failed"].values())
    left = {name: client for name, client in made.federation.clients.items() if name not in ("c1", "c4")}
    fewer = replace(made, federation=replace(made.federation, clients=left))
    without, everyone = outcome(fewer)[0].server, outcome(made)[0].server
    for key in (key for key in without if key.startswith("model.")):  # a sum of floats knows its order
        assert torch.allclose(stage.server[key], without[key], rtol=1e-5, atol=1e-7)
        assert not torch.allclose(stage.server[key], everyone[key], rtol=1e-5, atol=1e-7)


def test_an_answer_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "LARGEST", 10)
    assert "of 11 bytes is larger than a server reads (10)" in open_answer(b"x" * 11, Draft(), 0.0).why


ROWS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another's place": lambda rows: rows | {"client": rows["client"] + 5},
    "twice": lambda rows: rows | {"client": torch.zeros_like(rows["client"])},
    "no place": lambda rows: {key: leaf for key, leaf in rows.items() if key != "client"},
    "one column less": lambda rows: {key: leaf for key, leaf in rows.items() if key != "loss"},
    "an exhibit": lambda rows: rows | {"observed.more": rows["loss"]},
    "one column more": lambda rows: rows | {"more": rows["loss"]},
    "a wrong shape": lambda rows: rows | {"loss": rows["loss"][:, None]},
    "more samples": lambda rows: rows | {"samples": rows["samples"] * 1000},
    "a wrong sum": lambda rows: rows | {"class_hits": rows["class_hits"][:1]},
}


@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
def test_rows_that_no_client_could_have_made_are_not_counted(
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    def meddle(trip: int, site: str, answer: bytes) -> bytes:
        if (trip, site) != (2, "site-1"):  # the last evaluation
            return answer
        head, (message,) = framing.unpacked(answer)
        return framing.packed(head, [wire.parts(change(wire.unpack(message)[0]))])

    run, _ = far(experiment(FedAvg(LOCAL), rounds=1), meddle=meddle)
    with pytest.warns(HansaWarning, match="Site 'site-1' did not evaluate 'c1', 'c4'"):
        stage, _ = outcome(run)
    scores = stage.store.get("0/scores/1")
    assert scores is not None and scores["client"].tolist() == [0, 2, 3, 5, 6]


@pytest.mark.filterwarnings("error")
def test_what_a_site_tells_at_length_is_cut_short() -> None:
    """It is kept in the run's record, and shown."""

    def verbose(trip: int, site: str, answer: bytes) -> bytes:
        if (trip, site) != (1, "site-1"):
            return answer
        head, messages = framing.unpacked(answer)
        failed = [one | {"error": "no " * 10**6} for one in head["visits"]]
        kept = messages[len(failed) :]  # rows of the evaluation at the start
        return framing.packed(head | {"visits": failed}, [[one] for one in kept])

    _, journal = outcome(far(experiment(FedAvg(LOCAL), orchestration=Star(fraction=1.0), rounds=1), meddle=verbose)[0])
    assert all(100 < len(why) < 1000 for why in journal.records[0]["failed"].values())
    assert sorted(journal.records[0]["failed"]) == ["c1", "c4"]


def test_a_slow_site_misses_the_deadline() -> None:
    def slow(trip: int, site: str, answer: bytes) -> bytes:
        time.sleep(2.5 if (trip, site) == (1, "site-1") else 0.0)
        return answer

    made = experiment(FedAvg(LOCAL), orchestration=Star(fraction=1.0), rounds=1)
    made = replace(made, phases=(replace(made.phases[0], deadline=1.0),))
    _, journal = outcome(far(made, meddle=slow)[0])
    assert "c1" in journal.records[0]["failed"] and "deadline" in journal.records[0]["failed"]["c1"]


# ---------------------------------------------------------------------------------------------- secure sums over sites


def secure(name: str, **kw: Any) -> Experiment:
    return replace(experiment(ALGORITHMS[name], orchestration=Star(fraction=1.0), **kw), channel=SecureSum())


@pytest.mark.parametrize("name", ["scaffold", "mime"])
def test_a_secure_sum_over_sites_equals_one_of_a_simulation(name: str) -> None:
    """To the bit, states and costs as well; two trips a round, three the first, and one for the last evaluation."""
    made = secure(name, rounds=4)
    run, carrier = far(made)
    (one, journal), (other, told) = outcome(made), outcome(run)
    assert equal(one.server, other.server) and equal(one.ledger.tree(), other.ledger.tree())
    assert (
        [record["trips"] for record in told.records] == [record["trips"] for record in journal.records] == [3, 2, 2, 2]
    )
    assert len(carrier.trips) == 3 + 2 + 2 + 2 + 1
    assert [record["channel"] for record in told.records] == [record["channel"] for record in journal.records]


@pytest.mark.parametrize("trip", [1, 2, 3], ids=["before masking", "after masking", "before unmasking"])
@pytest.mark.filterwarnings("ignore::hansa.errors.HansaWarning")
def test_a_site_that_drops_out_leaves_exactly_the_others_sum(trip: int) -> None:
    """Five of seven clients open it; where they have masked already, a sum without shares of some is opened alike."""
    made = secure("fed3r")
    silent = lambda now, site, answer: "it did not answer" if (now, site) == (trip, "site-1") else answer  # noqa: E731
    stage, journal = outcome(far(made, meddle=silent)[0])
    gone = ("c1", "c4") if trip < 3 else ()
    left = {name: client for name, client in made.federation.clients.items() if name not in gone}
    fewer = replace(made, federation=replace(made.federation, clients=left))
    assert equal(stage.server, outcome(fewer)[0].server)
    assert tuple(sorted(journal.records[0]["failed"])) == gone


ODD_MASKS: dict[str, tuple[int, Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "an offer": (1, lambda tree: {key: leaf[:0] for key, leaf in tree.items()}, "rows of 32 bytes under 'key'"),
    "no shares": (1, lambda tree: {key: tree[key] for key in ("key", "signature")}, "under 'shares'"),
    "other words": (2, lambda tree: tree | {"sums": tree["sums"][:, 1:]}, "must have words of the shapes"),
    "real words": (2, lambda tree: tree | {"sums": tree["sums"].double()}, "must have words of the shapes"),
    "no words": (2, lambda tree: {"signature": tree["signature"]}, "must have words of the shapes"),
    "no signature": (2, lambda tree: {key: tree[key] for key in ("steps", "sums")}, "64 bytes under 'signature'"),
}


@pytest.mark.parametrize(("trip", "change", "says"), ODD_MASKS.values(), ids=ODD_MASKS)
def test_odd_messages_of_a_secure_sum_cost_their_own_client(
    trip: int, change: Callable[[dict[str, Any]], dict[str, Any]], says: str
) -> None:
    def meddle(now: int, site: str, answer: bytes) -> bytes:
        if (now, site) != (trip, "site-1"):
            return answer
        head, (first, *others) = framing.unpacked(answer)
        return framing.packed(head, [wire.parts(change(wire.unpack(first)[0])), *([one] for one in others)])

    made = secure("fed3r")
    stage, journal = outcome(far(made, meddle=meddle)[0])
    ((client, why),) = journal.records[0]["failed"].items()
    assert client in ("c1", "c4") and says in why
    left = {name: one for name, one in made.federation.clients.items() if name != client}
    assert equal(stage.server, outcome(replace(made, federation=replace(made.federation, clients=left)))[0].server)


def test_no_upload_leaves_a_site_but_under_masks() -> None:
    seen: list[set[str]] = []

    def look(now: int, site: str, answer: bytes) -> bytes:
        head, messages = framing.unpacked(answer)
        seen.extend(set(wire.unpack(one)[0]) for one in messages[: len(head.get("visits", []))])
        return answer

    outcome(far(secure("scaffold", rounds=2), meddle=look)[0])
    assert len(seen) == 14 and all(one == {"steps", "sums", "signature"} for one in seen)


@pytest.mark.filterwarnings("ignore::hansa.errors.HansaWarning")
def test_a_site_insists_on_what_its_file_says() -> None:
    """On secure sums alone, of enough clients, whose keys it knows; and on a plan that does not change its mind."""
    made = secure("fedavg")

    def why(engine_of: Callable[[SumKeys], SumKeys | None], run: Experiment = made) -> str:
        changed, carrier = far(run, 1)
        site = carrier.inner.sites["site-0"]
        site.members = SiteMembers(engine_of(site.members.keys))
        with pytest.raises(HansaError) as caught:
            outcome(changed)
        return str(caught.value)

    assert "sends uploads through secure sums alone" in why(
        lambda keys: replace(keys, only=True), replace(made, channel=None)
    )
    why_few = why(lambda keys: replace(keys, fewest=6))
    assert "that 5 of 7 clients open can be one of 5, and this site insists on 6: visit more clients" in why_few
    assert "No key is registered for client" in why(lambda keys: replace(keys, registered={}))
    assert "has no key for secure sums: see 'hansa site key'" in why(lambda keys: None)
    free = replace(experiment(ALGORITHMS["local"]), channel=SecureSum())
    run, carrier = far(free, 1)
    carrier.inner.sites["site-0"].members.keys = replace(carrier.inner.sites["site-0"].members.keys, only=True)
    outcome(run)  # what uploads nothing needs no sum


def test_a_site_draws_secrets_for_no_sum_twice_also_after_a_restart() -> None:
    made, store = experiment(FedAvg(LOCAL), model=Linear()), MemoryStore()
    clients = made.federation.clients
    keys, lease = keys_of_sites({"here": clients})["here"], time.time_ns() // 1000
    head, leaves = phase_message(sides_of(PhaseRun(made, 0, MemoryStore(), None).side), made.suite)

    def shared(site: Site, number: int, began: int) -> str:
        terms = Terms("one", tuple(clients), 5, began)
        cards = Counter(terms).cards({name: card_tree(site.members.card(name)) for name in clients})
        asked = (Masking("c1", "share", 0, len(leaves)),)
        letter = Letter(lease, number, "digest", head, sums=(terms,), maskings=asked)
        answer, _ = letters.read_answer(site.answer(letters.write(letter, [*leaves, wire.parts(cards)])))
        assert not answer.refused
        return answer.maskings[0].error

    site = Site(clients, store, keys=keys)
    assert shared(site, 1, 7) == "" and "has drawn secrets for the sum 'one' or a later one" in shared(site, 2, 7)
    again = Site(clients, store, keys=keys)
    assert "has drawn secrets" in shared(again, 3, 7) and "has drawn secrets" in shared(again, 4, 6)
    assert shared(again, 5, 8) == ""


def test_a_site_that_insists_on_secure_sums_shows_no_means_of_classes_either() -> None:
    """Which FLIC's clients tell for exhibits, of samples that they train on: a server may ask for evaluations alone."""
    made = experiment(ALGORITHMS["flic-hl"], model=Latent(MLP((4,)), 4, 3))
    run = PhaseRun(made, 0, MemoryStore(), None)
    head, leaves = phase_message(sides_of(run.side), run.context.suite)
    messages = [*leaves, wire.parts(run.algorithm.serve(run.task, run.server))]
    asked = Evaluation(("c1",), (("",),), "test", False, False, len(leaves))
    masked = head | {"sides": [head["sides"][0] | {"channel": "secure-sum"}]}

    def shown(head: dict[str, Any], only: bool) -> tuple[str, set[str]]:
        keys = replace(keys_of_sites({"here": made.federation.clients})["here"], only=only)
        site = Site(made.federation.clients, MemoryStore(), keys=keys)
        letter = Letter(time.time_ns() // 1000, 1, "digest", head, evaluations=(asked,))
        answer, parts = letters.read_answer(site.answer(letters.write(letter, messages)))
        rows = {key for part in parts for key in wire.unpack(part)[0]}
        return answer.refused + answer.evaluations[0].error, {key for key in rows if key.startswith("observed.")}

    assert shown(head, False) == ("", {"observed.latent.mean", "observed.latent.held"})
    why, told = shown(head, True)
    assert "sends uploads through secure sums alone" in why and not told
    assert shown(masked, True) == ("", set())


def test_a_sum_that_fewer_open_than_shares_of_noise_are_made_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    private = Private(FedAvg(LOCAL), epsilon=1.0, trust="distributed")
    made = replace(experiment(private, orchestration=Star(fraction=1.0), rounds=1), channel=SecureSum())
    outcome(far(made)[0])
    monkeypatch.setattr(SecureSession, "_needed", lambda self, task, clients: 4)  # a server that would see more
    run, carrier = far(made)
    for site in (carrier.inner.sites or {}).values():  # that do not insist on as many by themselves
        assert site.members.keys is not None
        site.members.keys = replace(site.members.keys, fewest=2)
    with pytest.raises(HansaError, match="noise is for sums that 5 open, and 4 could open this one"):
        outcome(run)


# ------------------------------------------------------------------------------------------------- what a site refuses


def session_of(made: Experiment, site: Site) -> FarSession:
    run = PhaseRun(made, 0, MemoryStore(), None)
    return FarSession(context=run.context, carrier=Sites({"here": site}), patience=1.0)


@dataclass
class Talk:
    """A site, and a good letter to it, which a test may spoil."""

    site: Site
    letter: Letter
    messages: list[Any]

    def refused(self, **changes: Any) -> str:
        """Why the letter, so changed, is not listened to."""
        data = letters.write(replace(self.letter, **changes), self.messages)
        return letters.read_answer(self.site.answer(data))[0].refused

    def visited(self, **changes: Any) -> Visited:
        """What comes of the letter's visit, so changed."""
        visit = replace(self.letter.visits[0], **changes)
        data = letters.write(replace(self.letter, visits=(visit,)), self.messages)
        answer, _ = letters.read_answer(self.site.answer(data))
        assert not answer.refused
        return answer.visits[0]


@pytest.fixture
def talk() -> Talk:
    made = experiment(SCAFFOLD, model=Linear())
    run = PhaseRun(made, 0, MemoryStore(), None)
    head, leaves = phase_message(sides_of(run.side), run.context.suite)
    visit = Visit("c1", 0, "5", ("",), "1-1-0", len(leaves))
    letter = Letter(time.time_ns() // 1000, 1, "digest", head, visits=(visit,))
    return Talk(Site(made.federation.clients, MemoryStore()), letter, [*leaves, wire.parts(run.broadcast())])


SHELL = {"name": "module", "path": "subprocess:run", "options": {"args": "touch marker", "shell": True}}
FOREIGN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "algorithm": lambda side: side | {"algorithm": "evil:Thing"},
    "inner": lambda side: side | {"algorithm": {"name": "personal", "inner": "os:system"}},
    "model": lambda side: side | {"task": side["task"] | {"model": SHELL}},
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_a_task_that_names_foreign_code_is_refused_by_name(
    talk: Talk, change: Callable[[dict[str, Any]], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert talk.letter.described is not None
    says = talk.refused(described=talk.letter.described | {"sides": [change(talk.letter.described["sides"][0])]})
    assert "is code outside the catalogue" in says and not (tmp_path / "marker").exists()
    assert talk.visited().error == ""  # and the site goes on


@pytest.mark.filterwarnings("ignore::hansa.errors.HansaWarning")
def test_a_site_runs_what_it_was_started_to_trust() -> None:
    made = experiment(SCAFFOLD, orchestration=Star(fraction=1.0), rounds=1)  # whose model is an example
    wary = Watched(AtSites({"here": Site(made.federation.clients, MemoryStore())}))
    with pytest.raises(HansaError, match=r"refused the letter: .*TinyNet.* is code outside the catalogue"):
        outcome(replace(made, engine=Flower(wary)))
    open_ = Site(made.federation.clients, MemoryStore(), trust=Trust(("law_examples:TinyNet",)))
    outcome(replace(made, engine=Flower(Watched(AtSites({"here": open_})))))


def test_letters_are_listened_to_once_and_from_the_latest_server(talk: Talk) -> None:
    later = talk.letter.lease + 1
    assert talk.visited().error == "" and "came before" in talk.refused()
    assert "came before" in talk.refused(number=0) and not talk.refused(number=2)
    assert not talk.refused(lease=later, number=1) and "Another server has begun" in talk.refused(number=3)
    talk.site.errands = None  # nor after a restart
    again = Site(talk.site.clients, talk.site.store)
    talk.site = again
    assert "Another server has begun" in talk.refused(number=4)
    assert "came before" in talk.refused(lease=later, number=1)
    assert "clock is" in talk.refused(lease=later + 10**13)


def test_an_old_server_stops_and_leaves_the_new_one_alone() -> None:
    made = experiment(SCAFFOLD, rounds=2, model=Linear())
    site = Site(made.federation.clients, MemoryStore())
    old, new = session_of(made, site), session_of(made, site)
    assert old.lease < new.lease
    run = PhaseRun(made, 0, MemoryStore(), None)
    assert loop.run_round(run, new)["failed"] == {}
    with pytest.raises(HansaError, match=r"4 of 4 clients failed.*Another server has begun since with this site"):
        loop.run_round(PhaseRun(made, 0, MemoryStore(), None), old)


def test_odd_letters_are_refused_with_a_sentence(talk: Talk) -> None:
    good = letters.write(talk.letter, talk.messages)

    def why(data: bytes) -> str:
        return letters.read_answer(talk.site.answer(data))[0].refused

    assert "cut off" in why(good[:-1]) and "cut off" in why(b"") and "too many" in why(good + b"\0")
    assert "foreign" in why(b"GET / HTTP/1.1\r\nHost: site\r\n\r\n" * 3)
    assert "no setting 'letter.sudo'" in why(framing.packed({"lease": 1, "number": 1, "sudo": True}, []))
    assert "'letter.lease' should be" in why(framing.packed({"lease": "now", "number": 1}, []))
    assert "JSON" in why(framing.packed({}, [])[:8] + (4).to_bytes(8, "little") + b'{"a"')
    assert "install the same version of hansa" in why(framing.packed({"lease": 1, "number": 1, "format": 9}, []))
    assert "describes no phase" in talk.refused(described={"sides": "all"})
    assert "describes no phase" in talk.refused(described={"sides": []})
    assert "describes no phase" in talk.refused(described={"sides": [{}]})
    messages, talk.messages = talk.messages, [[b"no tree at all"]]
    assert "cut off or foreign" in talk.refused()
    talk.messages, talk.site.largest = messages, 100
    assert "is larger than this site reads (100)" in talk.refused()
    talk.site.largest = letters.LARGEST
    assert talk.visited().error == ""  # after all this it still works


def test_odd_errands_fail_by_themselves(talk: Talk) -> None:
    site, lease = talk.site, iter(range(10**9))
    earlier = talk.letter

    def visited(**changes: Any) -> str:
        talk.letter = replace(earlier, number=next(lease) + 1)
        return talk.visited(**changes).error

    assert "Client 'c9': It is not held here" in visited(client="c9")
    assert "has none at place 7" in visited(down=7) and "has none at place -1" in visited(down=-1)
    assert "must name 1 states of client 'c1'. Got 2" in visited(states=("", ""))
    assert "that the server asks for is not here any more" in visited(states=("1-2-3",))
    assert "seed must be a whole number" in visited(seed="five")
    assert visited() == "" and site.store.get("state/1-1-0", "c1") is not None
    gone = (Superseded("c1", ("1-1-0",)),)
    assert talk.refused(number=next(lease) + 1, visits=(), superseded=gone) == ""
    assert site.store.get("state/1-1-0", "c1") is None


def test_errors_tell_a_server_neither_paths_nor_samples(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they say stays at the site, whose own log has the whole."""
    heard: list[str] = []
    monkeypatch.setattr(talk.site, "tell", heard.append)
    for number, (error, told) in enumerate(
        [
            (ValueError("cannot read 'Ann Smith, born 1970'"), "ValueError, of which the site's own log has the rest."),
            (OSError(2, "No such file", "/ward/ann.png"), "FileNotFoundError, of which the site's own log has"),
            (HansaError("The picture '/ward/ann.png' cannot be read."), "Client 'c1': The picture '…' cannot be read."),
        ]
    ):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("hansa.engines.errands.perform", fail)
        talk.letter = replace(talk.letter, number=number + 1)
        assert talk.visited().error.startswith(told)
        assert heard[-1].startswith("A letter was not carried out: Client 'c1'") and str(error) in heard[-1]
    monkeypatch.setattr(talk.site, "_answer", fail)
    assert talk.refused(number=9) == "The picture '…' cannot be read." and "/ward/ann.png" in heard[-1]


def test_a_site_says_who_is_there_and_shows_no_sample(talk: Talk) -> None:
    """To anybody, and without taking it away from the server that it works for."""
    hello = letters.write(Letter(talk.letter.lease + 1, 1), [])
    data = talk.site.answer(hello)
    answer, messages = letters.read_answer(data)
    assert messages == [] and [one.client for one in answer.clients] == [f"c{k}" for k in range(7)]
    assert (answer.clients[1].size, answer.clients[1].test_size, answer.clients[1].input_shape) == (11, 4, (5,))
    assert len(data) < 2000 and talk.refused() == ""
