"""Allgather between real ranks equals numpy's concatenate."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_every_dtype_shape_layout_and_number_of_rows(job):
    job.run("allgather")
