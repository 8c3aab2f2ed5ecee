"""Autotuning of the buckets; the behaviours are in programs/tuning.py."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate(2, (1, 2)), ids=str)
def test_ranks_choose_alike_and_train_as_without_it(job, size, tmp_path):
    log = str(tmp_path / "log.csv")
    job("tuning", size, log, DISTRUN_AUTOTUNE="1", DISTRUN_AUTOTUNE_LOG=log)
