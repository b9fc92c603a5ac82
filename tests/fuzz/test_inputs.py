"""A small budget of every campaign of damaged input; `python -m tests.fuzz` has as many cases as one asks for."""

from __future__ import annotations

from types import ModuleType

import pytest

from hansa.errors import HansaError

from . import campaign, cards, inputs, messages, plans

BUDGET = {plans: 250, messages: 600, inputs: 250, cards: 120}


@pytest.mark.filterwarnings("ignore")  # Pillow and numpy warn of some of the damage before it is refused
@pytest.mark.parametrize("module", BUDGET, ids=lambda module: module.__name__.rpartition(".")[2])
def test_damaged_input_is_taken_or_refused_with_a_sentence(module: ModuleType) -> None:
    assert module.main(cases=BUDGET[module], seed=3) == 0


def test_a_campaign_counts_what_a_person_would_see_as_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def case(rng: object) -> None:
        if rng.random() < 0.5:  # type: ignore[attr-defined]
            raise KeyError("lost")
        raise HansaError("Refused.")

    failed = campaign.campaign("trial", case, 100, 0)
    told = capsys.readouterr().out
    assert 20 < failed < 80 and "KeyError at test_inputs.py" in told and f"{100 - failed:6d} refused" in told


def test_the_campaign_of_messages_notices_a_reader_that_is_not_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hansa.io.wire._check_spans", lambda spans, size: None)
    monkeypatch.setattr(messages, "CASES", (messages.unpacked,))
    assert messages.main(cases=600, seed=3) > 0
