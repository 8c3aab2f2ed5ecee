"""TorchState and its handlers; see programs/elastic.py for the behaviours, and tests/elastic for jobs that use them."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("size", [(1, 2), 3], ids=str)
def test_ranks_take_the_state_of_the_one_that_is_furthest(job, size):
    job("elastic", size)
