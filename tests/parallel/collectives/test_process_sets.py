"""Process sets between real ranks."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate

MPI = pytest.param("mpi-backend-3", marks=[pytest.mark.mpi, pytest.mark.full])


@pytest.mark.gate
@pytest.mark.parametrize(
    "job",
    [*one_in_gate("distrun-4", "distrun-1", "distrun-2"), *one_in_gate("hosts-1+2", "hosts-2+2", "hosts-1+1+1"), MPI],
    indirect=True,
)
def test_every_collective_on_overlapping_sets_in_any_order(job):
    job.run("process_sets")


@pytest.mark.gate
@pytest.mark.parametrize(
    "job", [*one_in_gate("hosts-1+2", "distrun-1", "distrun-3", "distrun-4", "hosts-2+2"), MPI], indirect=True
)
def test_sets_are_formed_by_their_own_ranks(job, tmp_path):
    job.run("member_sets", str(tmp_path))


@pytest.mark.gate
@pytest.mark.parametrize("job", ["distrun-3"], indirect=True)
def test_some_of_the_ranks_of_a_host_are_a_world(job):
    job.run("comm")


@pytest.mark.gate
@pytest.mark.mpi
@pytest.mark.parametrize("job", ["mpirun-3"], indirect=True)
def test_communicators_make_worlds_and_process_sets(job):
    job.run_alone("communicators")
