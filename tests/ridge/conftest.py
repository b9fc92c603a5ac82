"""A small problem for every test."""

from __future__ import annotations

import pytest
from ridge_problems import Problem, make


@pytest.fixture
def problem() -> Problem:
    return make()
