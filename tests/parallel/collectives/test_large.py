"""Arrays larger than staging, and those whose counts no longer fit 32 bits."""

from __future__ import annotations

import psutil
import pytest
from session.tiers import one_in_gate


@pytest.mark.parametrize(
    "job", ["distrun-2", "hosts-1+1", pytest.param("mpi-backend-2", marks=pytest.mark.mpi)], indirect=True
)
def test_more_than_two_to_the_31_elements(job):
    available = psutil.virtual_memory().available / 2**30
    if available < 8:
        pytest.skip(f"needs 8 GiB of memory, and {available:.1f} GiB are available")
    job.run_alone("large")


@pytest.mark.gate
@pytest.mark.parametrize(
    "job",
    one_in_gate("hosts-1+2", "distrun-1", "distrun-3", pytest.param("mpi-backend-2", marks=pytest.mark.mpi)),
    indirect=True,
)
def test_large_arrays_of_ordinary_and_of_shared_memory(job):
    job.run("piecewise")
