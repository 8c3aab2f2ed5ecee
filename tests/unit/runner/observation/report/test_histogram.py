"""Histograms of durations."""

import itertools
import random

import pytest

from distrun.runner.observation.report.histogram import Histogram


def test_quantiles_are_right_to_one_percent():
    rng = random.Random(1)
    values = sorted(rng.lognormvariate(-3, 1) for _ in range(10_001))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for share in (0.01, 0.5, 0.95, 1.0):
        assert histogram.quantile(share) == pytest.approx(values[round(share * 10_000)], rel=0.011)


def test_bars_hold_all_values_and_have_no_gaps():
    histogram = Histogram()
    for value in (0.001, 0.001, 0.01, 3.0):
        histogram.add(value)
    bars = list(histogram.bars(40))
    assert len(bars) <= 40
    assert sum(count for _, _, count in bars) == 4
    assert all(one[1] == pytest.approx(other[0]) for one, other in itertools.pairwise(bars))


def test_impossible_durations_take_no_memory():
    histogram = Histogram()
    for exponent in range(-300, 300):
        histogram.add(10.0**exponent)
    histogram.add(0.0)
    assert len(histogram._counts) < 20
    assert histogram.count == 601


def test_nothing_has_no_bars():
    assert list(Histogram().bars(10)) == []
    assert Histogram().quantile(0.5) == 0.0
