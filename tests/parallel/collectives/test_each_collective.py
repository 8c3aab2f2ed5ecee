"""Each collective between real ranks gives what numpy gives: programs that check everything themselves."""

from __future__ import annotations

import pytest


@pytest.mark.gate
@pytest.mark.parametrize(
    "program", ["allgather", "alltoall", "broadcast", "grouped", "join", "objects", "reducescatter"]
)
def test_every_dtype_shape_layout_and_form(job, program):
    job.run(program)
