"""Numbers read well, and ticks fall on round values."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hansa.results.columns import column
from hansa.results.report.bars import even_bins
from hansa.results.report.format import (
    bytes_text,
    count_text,
    flops_text,
    metric_text,
    percent_text,
    seconds_text,
)
from hansa.results.report.frame import spread
from hansa.results.report.markup import Markup, element
from hansa.results.report.scale import Scale, log_scale


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(999), "999 B"),
        (bytes_text(1_200_000), "1.2 MB"),
        (bytes_text(999_960), "1 MB"),
        (bytes_text(24_700_000_000), "24.7 GB"),
        (flops_text(3.4e9), "3.4 GFLOP"),
        (flops_text(12), "12 FLOP"),
        (flops_text(math.nan), "–"),
        (seconds_text(0), "0 s"),
        (seconds_text(0.0004), "< 1 ms"),
        (seconds_text(0.254), "0.25 s"),
        (seconds_text(12.34), "12.3 s"),
        (seconds_text(59.97), "1 min 00 s"),
        (seconds_text(245), "4 min 05 s"),
        (seconds_text(7800), "2 h 10 min"),
        (percent_text(0.8523), "85.2 %"),
        (count_text(12345), "12,345"),
        (count_text(3.44), "3.4"),
        (metric_text(column("test_accuracy"), 0.5), "50.0 %"),
        (metric_text(column("test_loss"), 0.38249), "0.382"),
        (metric_text(column("client_rmse_worst10"), 12.345), "12.3"),
        (metric_text(column("test_r2"), -0.5), "-0.5"),
        (metric_text(column("test_accuracy"), math.nan), "–"),
    ],
)
def test_numbers_read_well(text, expected):
    assert text == expected


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e7), st.integers(3, 8))
def test_even_ticks_are_within_and_evenly_apart(low, span, count):
    scale = Scale(low, low + span, 0, 100)
    ticks = scale.ticks(count)
    assert 1 <= len(ticks) <= count + 1
    assert all(-0.01 <= scale(tick) <= 100.01 for tick in ticks)
    gaps = [after - before for before, after in pairwise(ticks)]
    assert not gaps or max(gaps) == pytest.approx(min(gaps), rel=1e-3, abs=1e-9)


@given(st.floats(1, 1e15), st.floats(1.0, 1e12))
def test_log_ticks_are_within_and_never_crowd(low, ratio):
    scale = log_scale([low, low * ratio], 0, 286)
    ticks = scale.ticks(5)
    assert 1 <= len(ticks) <= 6
    assert ticks == sorted(set(ticks))
    assert all(-0.01 <= scale(tick) <= 286.01 for tick in ticks)


def test_log_scale_needs_something_above_zero():
    assert log_scale([0.0, 0.0], 0, 100) is None


@given(st.lists(st.floats(0, 200), min_size=1, max_size=8))
def test_labels_move_apart_within_bounds_and_keep_their_order(places):
    moved = spread(places, 13, 0, 200)
    ordered = sorted(moved)
    assert all(after - before >= 13 - 1e-9 for before, after in pairwise(ordered))
    assert min(moved) >= -1e-9
    assert max(moved) <= 200 + 1e-9
    assert [m for _, m in sorted(zip(places, moved, strict=True))] == ordered


@given(st.lists(st.one_of(st.integers(0, 5000).map(float), st.floats(0, 1e4)), min_size=1, max_size=200))
@example([0.0, 5e-324])
def test_every_value_is_in_one_bin(values):
    bins = even_bins(values)
    assert sum(one.count for one in bins) == len(values)
    assert bins[0].low <= min(values)
    assert bins[-1].high >= max(values) - 1e-6
    assert len(bins) <= 23


def test_text_and_attributes_are_escaped_and_markup_is_not():
    made = element("p", "<b>", Markup("<i>x</i>"), title='"&', data_run=3, hidden=False, open=True)
    assert made == '<p title="&quot;&amp;" data-run="3" open>&lt;b&gt;<i>x</i></p>'


def test_ticks_are_round_in_the_unit_that_they_are_read_in():
    assert Scale(0.0, 660.0, 0, 100).ticks(5, 60.0) == [0.0, 300.0, 600.0]  # five minutes, and not 200 seconds
    assert [round(tick / 3600, 9) for tick in Scale(60.0, 2e5, 0, 100, log=True).ticks(5, 3600.0)] == [0.1, 1.0, 10.0]
