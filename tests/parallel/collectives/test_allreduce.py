"""Allreduce between real ranks equals numpy, to the bit where no division is involved, and is the same on all ranks."""

from __future__ import annotations

import pytest


@pytest.mark.gate
@pytest.mark.parametrize(
    "job",
    [
        *("distrun-4", "hosts-1+2"),
        *(pytest.param(name, marks=pytest.mark.mpi) for name in ("mpirun-2", "mpi-backend-2")),
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("distrun-2", "hosts-1+1", "hosts-2+2", "hosts-1+1+1")
        ),
    ],
    indirect=True,
)
def test_every_dtype_operator_scale_shape_layout_and_form(job):
    job.run("allreduce")
