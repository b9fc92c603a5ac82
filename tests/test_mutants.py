"""Mutants are tried by `make mutants`; here only that each of them still finds the line it changes."""

from __future__ import annotations

import pytest

from mutants import MUTANTS, SOURCE, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_finds_its_line(mutant: Mutant) -> None:
    assert mutant.applied(SOURCE) != (SOURCE / mutant.file).read_text(encoding="utf-8")


def test_names_tell_mutants_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 28
