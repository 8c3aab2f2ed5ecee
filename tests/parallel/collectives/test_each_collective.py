"""Each collective between real ranks gives what numpy gives: programs that check everything themselves."""

from __future__ import annotations

import psutil
import pytest
from session.tiers import one_in_gate

MPI = pytest.param("mpi-backend-2", marks=pytest.mark.mpi)


@pytest.mark.gate
@pytest.mark.parametrize("program", ["each_kind", "join", "objects"])
def test_every_dtype_shape_layout_and_form(job, program):
    job.run(program)


@pytest.mark.gate
@pytest.mark.parametrize(
    "job",
    [
        *("distrun-4", "hosts-1+2", MPI, pytest.param("mpirun-2", marks=pytest.mark.mpi)),
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("distrun-2", "hosts-1+1", "hosts-2+2", "hosts-1+1+1")
        ),
    ],
    indirect=True,
)
def test_allreduce_also_of_every_operator_and_scale(job):
    """Equal to numpy to the bit where no division is involved, and the same on all ranks."""
    job.run("allreduce")


@pytest.mark.gate
@pytest.mark.parametrize("job", one_in_gate("hosts-1+1+1", "hosts-1+1", "hosts-1+2", "hosts-1+1+1+1"), indirect=True)
@pytest.mark.parametrize("algorithm", ["auto", "direct", "ring", "halving-doubling", "tree"])
def test_each_algorithm_between_hosts(job, algorithm):
    printed = job.run("algorithms", DISTRUN_ALGORITHM=algorithm)
    assert algorithm == "auto" or f"'{algorithm}'" in printed


@pytest.mark.parametrize("job", ["distrun-2", "hosts-1+1", MPI], indirect=True)
def test_more_than_two_to_the_31_elements(job):
    available = psutil.virtual_memory().available / 2**30
    if available < 8:
        pytest.skip(f"needs 8 GiB of memory, and {available:.1f} GiB are available")
    job.run_alone("large")


@pytest.mark.gate
@pytest.mark.parametrize("job", one_in_gate("hosts-1+2", "distrun-1", "distrun-3", MPI), indirect=True)
def test_arrays_larger_than_staging_of_ordinary_and_of_shared_memory(job):
    job.run("piecewise")
