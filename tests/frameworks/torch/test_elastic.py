"""TorchState and its handlers; see programs/elastic.py for the behaviours, and tests/elastic for jobs that use them."""

from __future__ import annotations


def test_ranks_take_the_state_of_the_one_that_is_furthest(job):
    job("elastic", 3)


def test_they_do_between_hosts(job):
    job("elastic", (2, 1))
