"""Waits that double."""

from distrun.runner.decisions.backoff import backoff


def test_a_wait_doubles_with_each_failure_up_to_the_limit_and_no_wait_stays_none():
    assert [backoff(1.0, 600.0, failures) for failures in (1, 2, 3, 10, 11, 10_000)] == [1, 2, 4, 512, 600, 600]
    assert backoff(0.0, 0.0, 10_000) == 0
