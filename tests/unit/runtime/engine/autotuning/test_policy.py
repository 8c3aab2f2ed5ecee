"""The policy of autotuning, on step times that are made up: what it chooses, how often it errs, and when it ends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from random import Random

import pytest
from hypothesis import given, strategies as st
from session.tiers import one_in_gate

from distrun.runtime.engine.autotuning.policy import (
    CHANCE,
    LIMIT,
    WARM_UP,
    Outcome,
    Policy,
    Row,
    Setting,
    largest_sum,
    slower_ranks,
    words,
)

SEEDS = 600
DEFAULT = {"bucket": 25, "first": 1}
CHOICES = [("first", 25), ("bucket", 100), ("bucket", 6)]


def tuned(seconds: Callable[[Setting, int], float], seed: int = 0, choices=CHOICES) -> tuple[Outcome, list[Row]]:
    policy = Policy(DEFAULT, choices, Random(seed))
    rows: list[Row] = []
    while policy.outcome is None:
        rows.append(policy.record(seconds(policy.setting, len(rows))))
    assert policy.setting == policy.outcome.setting
    return policy.outcome, rows


def model(
    factors: Mapping[tuple[str, int], float],
    noise: float,
    seed: int,
    outliers: float = 0.0,
    pattern: Callable[[int], float] = lambda step: 1.0,
) -> Callable[[Setting, int], float]:
    """Steps that take `factors` times as long for what differs from the default, with log-normal noise."""
    draw = Random(1000 + seed)

    def seconds(setting: Setting, step: int) -> float:
        factor = math.prod(factors.get((name, setting[name]), 1.0) for name in setting)
        spike = draw.uniform(2, 10) if draw.random() < outliers else 1.0
        return 0.05 * factor * math.exp(draw.gauss(0, noise)) * spike * pattern(step)

    return seconds


def share_chosen(of: Callable[[Outcome], bool], **kind) -> float:
    return sum(of(tuned(model(seed=seed, **kind), seed)[0]) for seed in range(SEEDS)) / SEEDS


PATTERNS = {
    "steady": lambda step: 1.0,
    "slower and slower": lambda step: 1 + step / 25,
    "every third step does more": lambda step: 3.0 if step % 3 == 0 else 1.0,
    "every fourth step does more": lambda step: 3.0 if step % 4 == 0 else 1.0,
    "twice as slow from the middle on": lambda step: 1.0 if step < 25 else 2.0,
}
ALLOWED = CHANCE + 4 * math.sqrt(CHANCE * (1 - CHANCE) / SEEDS)  # 4 standard deviations: the seeds are fixed anyway


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    ("noise", "outliers"), [(0.1, 0.1), *(pytest.param(noise, 0.0, marks=pytest.mark.full) for noise in (0.02, 0.4))]
)
@pytest.mark.parametrize("factor", one_in_gate(1.0, 1.02, 1.3))
def test_a_setting_that_saves_nothing_is_chosen_at_most_as_often_as_promised(pattern, noise, outliers, factor):
    factors = dict.fromkeys(CHOICES, factor)
    kind = {"factors": factors, "noise": noise, "outliers": outliers, "pattern": PATTERNS[pattern]}
    assert share_chosen(lambda outcome: outcome.setting != DEFAULT, **kind) <= ALLOWED


factor = st.floats(0.5, 2.0)


@given(factors=st.tuples(factor, factor, factor), seed=st.integers(0, 1 << 30))
def test_without_noise_what_remains_is_never_slower_and_what_saves_much_is_found(factors, seed):
    by_choice = dict(zip(CHOICES, factors, strict=True))

    def seconds(setting, step=0):
        return math.prod(by_choice.get((name, setting[name]), 1.0) for name in setting)

    outcome, _ = tuned(seconds, seed)
    assert seconds(outcome.setting) <= seconds(outcome.default)
    if min(factors) < 0.97:
        assert outcome.setting != DEFAULT
        assert outcome.seconds < outcome.default_seconds


@given(
    factors=st.tuples(*[st.floats(1.25, 2.0)] * 3),
    noise=st.lists(st.floats(0.9, 1.1), min_size=LIMIT, max_size=LIMIT),
    seed=st.integers(0, 1 << 30),
)
def test_a_setting_that_is_slower_by_more_than_the_noise_is_never_chosen(factors, noise, seed):
    by_choice = dict(zip(CHOICES, factors, strict=True))
    outcome, _ = tuned(
        lambda setting, step: noise[step] * math.prod(by_choice.get((n, setting[n]), 1.0) for n in setting), seed
    )
    assert outcome.setting == DEFAULT


@pytest.mark.parametrize(
    ("factor", "noise", "share"), [(0.7, 0.05, 0.99), (0.7, 0.1, 0.98), (0.9, 0.02, 0.98), (0.9, 0.05, 0.85)]
)
@pytest.mark.parametrize("place", one_in_gate(*range(len(CHOICES))))
def test_a_large_difference_is_found(place, factor, noise, share):
    name, value = CHOICES[place]
    kind = {"factors": {(name, value): factor}, "noise": noise}
    assert share_chosen(lambda outcome: outcome.setting[name] == value, **kind) >= share


def test_values_that_each_save_something_are_combined():
    outcome, _ = tuned(model({("first", 25): 0.8, ("bucket", 100): 0.8}, 0.02, 1))
    assert outcome.setting == {"bucket": 100, "first": 25}
    assert outcome.seconds == pytest.approx(0.05 * 0.64, rel=0.05)
    assert outcome.default_seconds == pytest.approx(0.05, rel=0.05)


@given(
    times=st.lists(st.floats(0, 1e6), min_size=1, max_size=20),
    values=st.lists(st.integers(2, 50), max_size=30, unique=True),
    seed=st.integers(0, 1 << 30),
)
def test_it_ends_within_its_steps_whatever_they_take(times, values, seed):
    endless = itertools.cycle(times)
    outcome, rows = tuned(lambda setting, step: next(endless), seed, [("bucket", value) for value in values])
    assert outcome.steps == len(rows) <= LIMIT
    assert [row.step for row in rows] == list(range(1, len(rows) + 1))
    assert {row.decision for row in rows[:WARM_UP]} <= {"warm-up"}
    assert all(row.seconds is None and row.setting == DEFAULT for row in rows[:WARM_UP])
    assert all(row.seconds is not None for row in rows[WARM_UP:])


def test_noisy_steps_leave_time_for_fewer_candidates():
    choices = [("bucket", value) for value in range(2, 20)]

    def candidates(noise: float) -> float:
        seen = [tuned(model(dict.fromkeys(choices, 1.02), noise, s), s, choices)[1] for s in range(200)]
        return sum(len({words(row.setting) for row in rows}) for rows in seen) / len(seen)

    assert candidates(0.2) < candidates(0.001) - 1


def test_the_same_lot_and_times_make_the_same_choices():
    assert tuned(model({("bucket", 6): 0.7}, 0.1, 5), 5) == tuned(model({("bucket", 6): 0.7}, 0.1, 5), 5)


def test_settings_of_equal_effect_are_not_compared():
    def effect(setting):
        return setting["first"]

    policy = Policy(DEFAULT, CHOICES[1:], Random(1), effect)
    assert policy.outcome == Outcome(DEFAULT, DEFAULT, 0)
    policy = Policy(DEFAULT, CHOICES, Random(1), effect)
    while policy.outcome is None:
        assert policy.setting["bucket"] == 25
        policy.record(1.0)
    assert policy.outcome.steps == WARM_UP + 4  # equal times: two pairs say nothing, and four no more


def test_the_rows_say_what_was_decided():
    _, rows = tuned(model({("bucket", 6): 0.7, ("first", 25): 1.5}, 0.01, 1))
    told = [row.decision for row in rows if row.decision not in ("", "warm-up")]
    assert told[0] == "dropped: first=25"
    assert "seems faster: bucket=6" in told
    assert told[-1] == "chosen: bucket=6"
    _, rows = tuned(model(dict.fromkeys(CHOICES, 1.5), 0.01, 1))
    assert rows[-1].decision == "dropped: bucket=6; default: nothing seemed faster"


def test_it_can_be_stopped_at_any_time_and_the_default_stays():
    policy = Policy(DEFAULT, CHOICES, Random(1))
    for _ in range(WARM_UP + 2):
        policy.record(1.0 if policy.setting == DEFAULT else 0.1)
    policy.stop("a rank has joined")
    assert policy.setting == DEFAULT
    assert policy.outcome == Outcome(DEFAULT, DEFAULT, WARM_UP + 2, why="a rank has joined")


def test_the_sums_of_ranks_are_those_of_wilcoxons_tables():
    assert [largest_sum(count, 0.05) for count in (4, 5, 6, 7, 8, 9, 10)] == [-1, 0, 2, 3, 5, 8, 10]
    assert [largest_sum(count, 0.01) for count in (6, 7, 8, 9, 10)] == [-1, 0, 1, 3, 5]


def test_ties_and_zeros_count_against_the_second():
    assert slower_ranks([-1.0, -3.0, 2.0]) == 2
    assert slower_ranks([-1.0, 1.0]) == 2
    assert slower_ranks([0.0, -1.0]) == 1
    assert slower_ranks([-0.5, -0.25]) == 0
