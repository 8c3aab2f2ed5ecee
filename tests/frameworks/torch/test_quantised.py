"""Gradients that travel quantised between hosts."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.parametrize("size", [2, (1, 2)], ids=str)
def test_quantised_gradients(job, size):
    job("quantised", size)


def test_every_large_reduction_is_quantised_where_the_job_is_told_to(job):
    job("quantised_job", (1, 1), DISTRUN_WIRE_DTYPE="int4")


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate((1, 2), 2), ids=str)
def test_what_compression_takes_from_gradients_is_made_up_for(job, size, tmp_path):
    job("residuals", size, str(tmp_path))
