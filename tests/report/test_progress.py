"""How far a run is, as it is told to whoever shows it."""

from __future__ import annotations

import pytest

from hansa.results import progress


def test_what_a_cache_had_is_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now, notes = 0.0, []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    watch = progress.extraction_watcher(lambda what, done, total, unit, note: notes.append(note))
    for now, done in ((5.0, 600), (5.001, 806), (7.001, 1006)):  # noqa: B007
        watch(done, 2000)
    assert notes == ["", "", "203 a second"]  # the last is over all that was told of late
