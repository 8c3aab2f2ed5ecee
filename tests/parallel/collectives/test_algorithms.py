"""Whatever the algorithm between hosts, collectives between real ranks are right, and the same on all ranks."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize("job", one_in_gate("hosts-1+1+1", "hosts-1+1", "hosts-1+2", "hosts-1+1+1+1"), indirect=True)
@pytest.mark.parametrize("algorithm", ["auto", "direct", "ring", "halving-doubling", "tree"])
def test_each_algorithm(job, algorithm):
    printed = job.run("algorithms", DISTRUN_ALGORITHM=algorithm)
    assert algorithm == "auto" or f"'{algorithm}'" in printed
