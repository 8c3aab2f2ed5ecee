"""Alltoall between real ranks equals slices of everybody's tensor."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_every_dtype_shape_layout_and_split(job):
    job.run("alltoall")
