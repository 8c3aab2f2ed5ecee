"""The arithmetic of transfers."""

import pytest

from distrun.tools.doctor.network import transfers


@pytest.mark.parametrize(
    ("arrivals", "rate"),
    [
        ([(0.0, 10**9), (0.01, 10**9), (0.1, 500), (0.2, 1000), (0.3, 1000)], 10_000),
        ([(0.0, 100), (0.02, 100), (0.04, 100)], 5000),
        ([(0.0, 100), (0.5, 100)], 200),
        ([], None),
        ([(1.0, 100)], None),
    ],
)
def test_the_warming_up_does_not_count_except_in_a_trickle(arrivals, rate):
    assert transfers.rate(arrivals, 0.05) == pytest.approx(rate)
