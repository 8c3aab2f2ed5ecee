"""Messages of torch.distributed between real ranks, on one host and on several."""

from __future__ import annotations

from pathlib import Path

import pytest
from session.tiers import one_in_gate

PROGRAM = Path(__file__).parent / "programs" / "point_to_point.py"


@pytest.mark.gate
@pytest.mark.parametrize("ranks", one_in_gate((1, 2), 2), ids=str)
def test_all_that_torch_offers_between_two_ranks(run_warm, ranks):
    size = ranks if isinstance(ranks, int) else sum(ranks)
    assert run_warm("torch", ranks, PROGRAM).count("done") == size
