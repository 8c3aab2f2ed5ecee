"""Reductions in each wire dtype are within its bounds, and the same on all ranks."""

from __future__ import annotations

import pytest

GATE = [("hosts-2+2", "int8"), ("hosts-3+1", "int4"), ("hosts-1+1", "bfloat16")]
CASES = [
    *GATE,
    *(("hosts-1+1", "int4"), ("hosts-3+1", "float16"), ("hosts-1+1+1", "int8")),
    *(("tree-1+2+1", "bfloat16"), ("tree-1+2+1", "int8")),
]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("job", "wire"),
    [pytest.param(*case, marks=() if case in GATE else pytest.mark.full) for case in CASES],
    indirect=["job"],
)
def test_reductions_of_every_size_on_overlapping_sets(job, wire):
    job.run("wire_dtypes", DISTRUN_WIRE_DTYPE=wire)


@pytest.mark.mpi
@pytest.mark.parametrize("job", ["mpi-backend-2"], indirect=True)
def test_ranks_of_one_host_lose_nothing(job):
    job.run("wire_dtypes", DISTRUN_WIRE_DTYPE="int4")
