"""Messages of torch.distributed between real ranks, on one host and on several."""

from __future__ import annotations

from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "point_to_point.py"


@pytest.mark.parametrize("ranks", [2, 3, (1, 2)], ids=str)
def test_all_that_torch_offers_between_two_ranks(run_warm, ranks):
    size = ranks if isinstance(ranks, int) else sum(ranks)
    assert run_warm("torch", ranks, PROGRAM).count("done") == size
