"""Clocks of hosts are known as well as the ways of questions and answers allow, and never better than they say."""

import pytest
from hypothesis import given, strategies as st

from distrun.runner.observation.clocks import DRIFT, Clocks
from distrun.tracing import layout
from distrun.tracing.reader import Event
from distrun.tracing.timeline.clock_bounds import Bounds

MS = 1_000_000
SECOND = 1000 * MS
NAMES = ["", "allreduce 'a'"]


def asked(at, ahead, there, back, bounds=None):
    """Return the bounds after asking at a time; the way there and back takes so long each."""
    return (bounds or Bounds()).tightened(ahead - back, ahead + there, at + there + back, DRIFT)


def test_fast_ways_there_and_back_need_not_be_of_the_same_answer():
    slow_there = asked(SECOND, 7, 50 * MS, MS // 10)
    assert slow_there[:2] == (7 - MS // 10, 7 + 50 * MS)
    low, high, _ = asked(SECOND + 1, 7, MS // 10, 30 * MS, slow_there)
    assert low <= 7 <= high
    assert high - low < 0.21 * MS


def test_old_answers_count_for_less():
    old = asked(0, 0, MS // 10, MS // 10)
    found = asked(100 * SECOND, 0, 10 * MS, 10 * MS, old)
    assert found.most == pytest.approx(0.1 * MS + DRIFT * 100 * SECOND, rel=1e-3)


def test_a_clock_that_stood_still_is_measured_anew():
    found = asked(SECOND, -60 * SECOND, MS, MS, asked(0, 0, MS, MS))
    assert found[:2] == (-60 * SECOND - MS, -60 * SECOND + MS)


WAY = st.integers(50_000, 50 * MS)


@given(
    st.lists(st.tuples(st.integers(0, 10 * SECOND), WAY, WAY), min_size=1),
    st.floats(-DRIFT, DRIFT),
    st.integers(-(10**15), 10**15),
)
def test_the_truth_is_within_the_bounds(questions, drift, begin):
    bounds, now = None, 0
    for pause, there, back in questions:
        now += pause
        bounds = asked(now, begin + int(drift * (now + there)), there, back, bounds)
        now += there + back
        rounding = len(questions) + 1
        assert bounds.least - rounding <= begin + int(drift * now) <= bounds.most + rounding


def done(submitted, end, number):
    return Event(end - 1, end, submitted, 8, layout.DONE, 1, number, 0, 1)


@pytest.fixture
def clocks():
    """Return those of two hosts, 3 s and 5 s ahead, of which answers tell little."""
    clocks = Clocks()
    for host, ahead in (("a", 3 * SECOND), ("b", 5 * SECOND)):
        clocks.add(host, is_remote=True)
        clocks.answered(host, 0, ahead + 8 * MS, 10 * MS)
    return clocks


def test_nothing_is_known_of_clocks_of_which_nothing_was_heard():
    clocks = Clocks()
    clocks.add("here", is_remote=False)
    assert (clocks.offset("here"), clocks.error("here"), list(clocks.remote)) == (0, 0, [])


def test_answers_alone_tell_of_clocks(clocks):
    assert clocks.offset("b") - clocks.offset("a") == 2 * SECOND
    assert clocks.error("b") == 10 * MS
    assert clocks.error("a") == 0  # the others are compared with it


def test_what_ranks_do_together_tells_how_far_their_clocks_are_apart(clocks):
    for number, late in ((1, "a"), (2, "b")):  # the one that is late is done at once, the other one 0.1 ms later
        for host, ahead in (("a", 3 * SECOND), ("b", 5 * SECOND)):
            at = ahead + number * SECOND
            submitted, end = (at, at + MS // 20) if host == late else (at - 5 * MS, at + MS // 10)
            clocks.learn(host, 0, [done(submitted, end, number)], NAMES)
    assert clocks.error("b") <= 0.13 * MS
    assert abs(clocks.offset("b") - clocks.offset("a") - 2 * SECOND) <= clocks.error("b")


def test_the_launchers_own_host_is_the_reference_when_it_has_ranks(clocks):
    clocks.add("here", is_remote=False)
    clocks.add("another", is_remote=True)
    assert clocks.reference == "here"
    assert clocks.error("here") == 0
    assert clocks.error("a") == 5 * MS


def test_operations_of_earlier_worlds_are_others(clocks):
    for generation, ahead in ((1, 0), (2, SECOND)):
        for host in ("a", "b"):
            joined = Event(0, 0, 0, 0, layout.GENERATION, 0, generation, 0, 0)
            at = (3 if host == "a" else 5) * SECOND + ahead
            clocks.learn(host, generation, [joined, done(at, at + MS, 1)], NAMES)
    assert abs(clocks.offset("b") - clocks.offset("a") - 2 * SECOND) <= clocks.error("b") <= MS + DRIFT * SECOND
