"""Asynchronous successive halving: who goes on at a rung."""

import math

from hypothesis import given, strategies as st

from distrun.tools.sweep.policy.halving import Halving


def test_only_the_best_part_goes_on_at_rungs_and_everybody_between_them():
    halving = Halving(minimizes=True, factor=3, first=2)
    assert halving.judge(0, 1, 5.0)
    assert halving.judge(0, 2, 5.0)  # the first to come has nobody to be compared with
    assert halving.judge(1, 1, 9.0)
    assert not halving.judge(1, 2, 9.0)
    assert halving.judge(2, 2, 1.0)
    assert not halving.judge(3, 2, 4.0)  # one of four goes on
    assert all(halving.judge(2, reports, 100.0) for reports in (3, 4, 5))
    assert halving.judge(2, 6, 1.0)
    assert not halving.judge(0, 6, 2.0)


def test_large_values_may_be_the_good_ones():
    halving = Halving(minimizes=False, first=1)
    assert halving.judge(0, 1, 0.5)
    assert halving.judge(1, 1, 0.9)
    assert not halving.judge(2, 1, 0.7)


def test_what_diverges_ends_at_once():
    halving = Halving(minimizes=True, first=8)
    assert [halving.judge(0, 1, value) for value in (math.nan, math.inf, -math.inf)] == [False] * 3


def test_a_trial_that_is_forgotten_is_compared_with_nobody():
    halving = Halving(minimizes=True, first=1)
    assert halving.judge(0, 1, 1.0)
    assert not halving.judge(1, 1, 2.0)
    halving.forget(0)
    halving.forget(1)
    assert halving.judge(2, 1, 3.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(2, 5))
def test_about_one_of_factor_goes_on_and_the_best_always_does(values, factor):
    halving = Halving(minimizes=True, factor=factor, first=1)
    went_on = [halving.judge(trial, 1, value) for trial, value in enumerate(values)]
    for trial in range(len(values)):
        if values[trial] == min(values[: trial + 1]):
            assert went_on[trial]
