"""Arrays whose counts no longer fit 32 bits."""

from __future__ import annotations

import psutil
import pytest


@pytest.mark.parametrize(
    "job", ["distrun-2", "hosts-1+1", pytest.param("mpi-backend-2", marks=pytest.mark.mpi)], indirect=True
)
def test_more_than_two_to_the_31_elements(job):
    available = psutil.virtual_memory().available / 2**30
    if available < 8:
        pytest.skip(f"needs 8 GiB of memory, and {available:.1f} GiB are available")
    job.run_alone("large")
