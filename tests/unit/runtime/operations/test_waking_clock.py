"""The waking clock leaves out the time for which a sleep went on beyond its end."""

import pytest

from distrun.runtime.operations import waking_clock


@pytest.fixture
def clock(monkeypatch):
    """Sets the real time."""
    monkeypatch.setattr(waking_clock, "_stopped", 0.0)
    now = [100.0]
    monkeypatch.setattr(waking_clock.time, "monotonic", lambda: now[0])

    def set_to(time):
        now[0] = time

    return set_to


def test_a_sleep_that_is_much_too_long_counts_for_what_it_was_to_be(clock):
    clock(1010.0)
    waking_clock.note_sleep(100.0, 2.0)
    assert waking_clock.now() == 102.0
    clock(1011.0)
    assert waking_clock.now() == 103.0
    clock(2011.0)
    waking_clock.note_sleep(1011.0, 0.0)
    assert waking_clock.now() == 103.0


@pytest.mark.parametrize("seconds", [0.1, 10.0, float("inf")])
def test_one_that_is_woken_early_or_a_little_late_counts_as_it_was(clock, seconds):
    clock(100.5)
    waking_clock.note_sleep(100.0, seconds)
    assert waking_clock.now() == 100.5
