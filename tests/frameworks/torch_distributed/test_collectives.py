"""The collectives of the backend "distrun"; see programs/collectives.py for what they are to do."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate(2, 1, 4, (1, 2)), ids=str)
def test_every_collective_does_what_torch_does_on_everybodys_tensors(job, size):
    job("collectives", size)
