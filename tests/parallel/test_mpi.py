"""The MPI backend's own life: what it needs, and that every process ends, with its report, when the job has failed."""

from __future__ import annotations

import subprocess

import pytest
from session.tiers import one_in_gate

pytestmark = pytest.mark.mpi


def run(job, ending: str) -> subprocess.CompletedProcess[str]:
    done = job.start("mpi_life", ending)
    assert done.returncode != 0
    return done


@pytest.fixture
def mpi(make_job):
    return make_job("mpi-backend-2")


@pytest.mark.gate
def test_joining_and_leaving_several_times_beside_a_script_that_uses_mpi(mpi):
    mpi.run_alone("mpi_life", "well")


def test_a_script_that_fails_shows_its_error(mpi):
    assert "ValueError: the error of rank 1" in run(mpi, "script fails").stderr


@pytest.mark.gate
@pytest.mark.parametrize("ending", one_in_gate("job fails", "mpi4py first"))
def test_a_rank_on_which_the_job_fails_tells_why_and_ends_and_so_does_the_one_that_had_left(mpi, ending):
    assert "JobAbortedError: allreduce 'waits': rank 1 (process" in run(mpi, ending).stderr


@pytest.mark.gate
def test_a_rank_killed_in_the_middle_of_an_operation_ends_the_job(mpi):
    assert "signal 9" in run(mpi, "dies").stderr


def test_shutdown_in_one_thread_ends_the_wait_of_another(mpi):
    assert "JobAbortedError: " in mpi.start("mpi_life", "shutdown elsewhere").stdout


@pytest.mark.gate
def test_without_an_mpi_launcher_it_says_so(make_job, tmp_path):
    own = {"TMPDIR": str(tmp_path), "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}  # one of the ranks is killed
    done = make_job("distrun-2").start("mpi_life", "well", DISTRUN_BACKEND="mpi", **own)
    assert done.returncode == 1
    assert "UsageError: DISTRUN_BACKEND=mpi: to MPI this process is rank 0 of 1, to the job it is rank " in done.stderr
    assert "start the script with mpirun or srun" in done.stderr
