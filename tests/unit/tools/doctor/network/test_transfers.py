"""The arithmetic of transfers."""

import pytest

from distrun.tools.doctor.network import transfers


def test_the_warming_up_does_not_count():
    arrivals = [(0.0, 10**9), (0.01, 10**9), (0.1, 500), (0.2, 1000), (0.3, 1000)]
    assert transfers.rate(arrivals, 0.05) == pytest.approx(10_000)


def test_a_trickle_counts_whole():
    assert transfers.rate([(0.0, 100), (0.02, 100), (0.04, 100)], 0.05) == pytest.approx(5000)
    assert transfers.rate([(0.0, 100), (0.5, 100)], 0.05) == pytest.approx(200)


def test_nothing_or_a_single_arrival_has_no_rate():
    assert transfers.rate([], 0.05) is None
    assert transfers.rate([(1.0, 100)], 0.05) is None
