"""Reducescatter between real ranks equals numpy's array_split of the reduction."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_every_dtype_shape_layout_operator_and_scale(job):
    job.run("reducescatter")
