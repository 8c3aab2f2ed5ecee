"""A function called for many items at once."""

import threading

import pytest

from distrun.runner.system.fan_out import call_for_each


def test_every_item_is_served_and_results_come_in_their_order():
    assert call_for_each(lambda item: item * 2, range(250), "test") == [item * 2 for item in range(250)]
    assert call_for_each(str, [], "test") == []


def test_the_first_exception_is_raised():
    with pytest.raises(ZeroDivisionError):
        call_for_each(lambda item: 1 // item, [1, 0], "test")


def test_the_threads_are_daemons_and_no_more_than_allowed():
    arrived = threading.Barrier(3)

    def meet(item):
        arrived.wait(30)  # would break with fewer than three threads
        return threading.current_thread()

    threads = call_for_each(meet, range(6), "test", max_threads=3)
    assert all(thread.daemon for thread in threads)
    assert {thread.name for thread in threads} <= {"distrun test 0", "distrun test 1", "distrun test 2"}
