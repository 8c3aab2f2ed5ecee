"""DiLoCo and local SGD: hosts that exchange what they have learned now and then."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("size", [2, (1, 1), (1, 2)], ids=str)
def test_hosts_train_by_themselves_and_come_together_now_and_then(job, size):
    job("diloco", size)
