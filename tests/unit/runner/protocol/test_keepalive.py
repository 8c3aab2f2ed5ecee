"""Two ends that notice when they hear nothing from each other."""

import pytest

from distrun.runner.protocol import keepalive
from distrun.runner.protocol.keepalive import Keepalive


@pytest.fixture
def clock(monkeypatch):
    """The time, which only the test moves."""
    now = [100.0]
    monkeypatch.setattr(keepalive.time, "monotonic", lambda: now[0])
    return now


def test_it_speaks_ten_times_within_the_timeout(clock):
    end = Keepalive(15.0)
    assert not end.is_due()
    for _ in range(10):
        assert end.seconds_left() == pytest.approx(1.5)
        clock[0] += 1.5
        assert end.is_due()
        assert not end.is_due()


def test_a_timeout_is_loss_and_any_word_resets_the_clock(clock):
    end = Keepalive(15.0)
    clock[0] += 14
    assert not end.is_lost()
    end.heard()
    clock[0] += 14
    assert not end.is_lost()
    clock[0] += 1
    assert end.is_lost()
    assert end.seconds_left() == 0


def test_a_pause_that_was_announced_is_no_loss_until_words_are_expected_again(clock):
    end = Keepalive(15.0)
    end.excuse()
    clock[0] += 1
    end.heard()  # what was under way when it was announced
    clock[0] += 1000
    assert not end.is_lost()
    assert end.is_due()
    assert end.seconds_left() == 1.5
    end.expect()
    clock[0] += 14
    assert not end.is_lost()
    clock[0] += 1
    assert end.is_lost()
