"""Large arrays that ranks read out of each other's memory, where all of them may."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("job", ["distrun-2", "distrun-3", "distrun-4"], indirect=True)
def test_arrays_of_every_dtype_and_size_are_reduced_as_by_numpy(job, readable_processes):
    job.run("direct_reads", "allowed")


@pytest.mark.parametrize("permission", ["refused", "unwanted"])
@pytest.mark.parametrize("job", ["distrun-3"], indirect=True)
def test_if_one_rank_may_not_read_none_does(job, permission):
    job.run("direct_reads", permission)
