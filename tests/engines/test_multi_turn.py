"""Algorithms of several turns, or of turns out of the ordinary: stacked on a small network, and equal to serial."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_cases import SIZES, assert_same, federation, local_tests, paths_of, ran, task_of
from own_objectives import Focal

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedalt import FedAlt
from hansa.algorithms.fedrep import FedRep
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.local import Local
from hansa.algorithms.mime import Mime
from hansa.algorithms.mimelite import MimeLite
from hansa.algorithms.oll import OLL
from hansa.algorithms.perfedavg import PerFedAvg
from hansa.algorithms.pfedme import PFedMe
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.engines import evaluation
from hansa.engines.kernels import stacked
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.star import Star, Sweep
from hansa.running.experiment import Phase
from hansa.training.local import LocalTraining
from hansa.training.objectives import CrossEntropy
from journals import ListJournal

ROUNDING = 3e-5  # of a leaf's norm: what float32 leaves after four rounds
LOCAL = LocalTraining(lr=0.05, epochs=2, batch_size=8)
ONCE = LocalTraining(lr=0.05, batch_size=8)
CLIENTS, ROUNDS = 6, 4

TURNS: dict[str, tuple[Algorithm, int]] = {  # and the turns of a visit
    "fedrep": (FedRep(LOCAL, head_epochs=2), 2),
    "fedalt": (FedAlt(LOCAL), 2),
    "ditto": (Ditto(LOCAL, strength=0.3), 2),
    "l2gd": (L2GD(ONCE, strength=0.5, probability=0.3), 1),
    "pfedme": (PFedMe(LOCAL, strength=5.0, inner_steps=3), 1),
    "perfedavg": (PerFedAvg(LOCAL, alpha=0.05), 1),
    "perfedavg-hf": (PerFedAvg(LOCAL, alpha=0.05, order="hf"), 1),
    "mime": (Mime(ONCE, beta=0.5), 1),
    "mimelite": (MimeLite(ONCE, beta=0.5), 2),
    "scaffold-I": (Scaffold(ONCE, option="I"), 2),
    "local-adam": (Local(replace(LOCAL, optimiser="adam", lr=0.01)), 1),
    "focal": (Ditto(replace(LOCAL, objective=Focal()), strength=0.3), 2),
    "balanced": (FedRep(replace(LOCAL, objective=CrossEntropy(0.1, "balanced")), head_epochs=2), 2),
}


@pytest.mark.parametrize(("algorithm", "turns"), TURNS.values(), ids=TURNS)
def test_every_turn_is_stacked_and_equals_serial(algorithm: Algorithm, turns: int) -> None:
    data, journal = local_tests() if algorithm.personal else federation(), ListJournal()
    model = MLP((10,), "tanh")
    alone = ran(algorithm, Serial(), model=model, data=data, rounds=ROUNDS, orchestration=Star(CLIENTS))
    together = ran(
        algorithm, Vectorised(), model=model, data=data, rounds=ROUNDS, orchestration=Star(CLIENTS), journal=journal
    )
    assert_same(alone, together, ROUNDING)
    found = paths_of(journal)
    if "sample-space" in found:  # a head on frozen features trains in sample space
        assert found["sample-space"] + found["stacked"] == ROUNDS * CLIENTS * turns
        assert found["stacked"] >= ROUNDS * CLIENTS
    else:
        assert found == {"stacked": ROUNDS * CLIENTS * turns}


def test_a_turn_too_large_to_be_stacked_follows_one_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stacked heads left behind are sums yet to be made, and the features train alone from them."""
    algorithm, model, journal = FedRep(replace(LOCAL, optimiser="adam"), head_epochs=2), MLP((10,)), ListJournal()
    data = local_tests()
    alone = ran(algorithm, Serial(), model=model, data=data)
    task = task_of(data, model)
    head, whole = (replace(LOCAL, train=part).flops(task) for part in ("head", "all"))
    monkeypatch.setattr(stacked, "SMALL", LOCAL.batch_size * (head + whole) / 2)
    assert_same(alone, ran(algorithm, Vectorised(), model=model, data=data, journal=journal), ROUNDING)
    assert set(paths_of(journal)) == {"stacked", "serial"}


@pytest.mark.parametrize("algorithm", [Scaffold(ONCE, option="I"), Scaffold(ONCE, option="II")], ids=["I", "II"])
def test_turns_for_which_sample_space_is_not_made_go_another_way(algorithm: Algorithm) -> None:
    """Measuring turns have the settings of the training turns beside them, and must not be taken for these."""
    alone = ran(algorithm, Serial())
    for path in ("sample-space", "auto"):
        assert_same(alone, ran(algorithm, Vectorised(path=path)), ROUNDING)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ditto", "fedrep", "l2gd", "pfedme", "perfedavg"])
@pytest.mark.parametrize("labels", ["all", "own"])
def test_personal_models_are_evaluated_stacked_as_one_by_one(
    name: str, labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of nine clients at a time, for memory's sake."""
    stacks: list[int] = []
    stack = evaluation._stack
    monkeypatch.setattr(evaluation, "SAMPLES", 4 * max(SIZES))
    monkeypatch.setattr(evaluation, "_stack", lambda found: stacks.append(len(found)) or stack(found))
    journals, before = (ListJournal(), ListJournal()), (Phase("oll", OLL(), Sweep()),) if labels == "own" else ()
    runs = [
        ran(TURNS[name][0], engine, model=MLP((10,)), data=local_tests(), rounds=2, journal=journal, before=before)
        for engine, journal in zip((Serial(), Vectorised()), journals, strict=True)
    ]
    for left, right in zip(*(journal.records for journal in journals), strict=True):
        assert left["metrics"].keys() == right["metrics"].keys()
        assert left["metrics"] == pytest.approx(right["metrics"], abs=1e-5)
    mine, theirs = (run.store.get(f"{run.index}/scores/2") for run in runs)
    assert mine is not None and theirs is not None and mine.keys() == theirs.keys()
    for key, column in mine.items():
        torch.testing.assert_close(column, theirs[key], rtol=1e-4, atol=1e-5)
    assert max(stacks) == 4


def test_linear_personal_models_too() -> None:
    for model in (Linear(), MLP((6,))):
        algorithm = Ditto(LOCAL, strength=0.3)
        alone, together = (ran(algorithm, e, model=model, data=local_tests()) for e in (Serial(), Vectorised()))
        assert_same(alone, together, ROUNDING)
