"""mpirun as the launcher on several hosts: it starts the ranks by SSH, and distrun supervises it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from machines.rank_programs import REDUCING
from running_distrun import DEADLINE
from shell import kill_all

pytestmark = pytest.mark.mpi

REPORT = """
import json, os, socket
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
x = numpy.ones(100_000)
world.Allreduce(MPI.IN_PLACE, x)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "DISTRUN_KEY")
told = [os.environ.get(name) for name in names]
print(json.dumps([world.rank, world.size, socket.gethostname(), x[0], os.environ.get("TOKEN"), told]), flush=True)
"""
WAIT = "import signal; from mpi4py import MPI; print('up', flush=True); signal.pause()"
_SEARCH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


def hung_forks():
    """Return the daemons of Open MPI that hang between fork and exec: with Open MPI 5.0 once in some 60 starts."""
    found = []
    for process in psutil.process_iter():
        try:
            parent = process.parent()
            if process.name() == "prted" and parent is not None and parent.cmdline() == process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def again_if_open_mpi_hangs(test):
    """Repeat a test that failed because of such a fork: killing it ends the job. Nothing may be left on the hosts."""

    def assert_gone(keywords):
        for host in (keywords["alpha"], keywords["beta"]):
            host.assert_gone()

    def once(*arguments, **keywords):
        test(*arguments, **keywords)
        assert_gone(keywords)

    @functools.wraps(test)
    def repeated(*arguments, **keywords):
        for _ in range(3):
            try:
                return once(*arguments, **keywords)
            except (subprocess.TimeoutExpired, AssertionError):
                hung = hung_forks()
                if not hung:
                    raise
                kill_all(hung)
                assert_gone(keywords)
        return once(*arguments, **keywords)

    return repeated


@pytest.mark.gate
@again_if_open_mpi_hangs
def test_two_hosts_with_two_ranks_each(mpirun, python, alpha, beta):
    job = mpirun("-H", "alpha:2,beta:2", "-x", "TOKEN=a b", "--no-tag-output", *python(REPORT))
    assert job.wait() == 0, job.stderr.data
    reports = sorted(map(json.loads, job.stdout.data.splitlines()))
    assert reports == [
        [rank, 4, host, 4.0, "a b", [*map(str, (rank, 4, rank % 2, 2, rank // 2)), alpha.address, None]]
        for rank, host in enumerate(("alpha", "alpha", "beta", "beta"))
    ]


@again_if_open_mpi_hangs
def test_horovods_mode_reaches_all_hosts(mpirun, python, alpha, beta):
    code = "import horovod, os; print(horovod.__version__, os.environ['DISTRUN_HOROVOD'])"
    job = mpirun("--horovod", "-H", "alpha:1,beta:1", "--no-tag-output", *python(code))
    assert job.wait() == 0, job.stderr.data
    assert job.stdout.data.splitlines() == [b"0.28.1+distrun 1"] * 2


@again_if_open_mpi_hangs
def test_this_machine_and_another_over_a_chosen_network(mpirun, python, network, alpha, beta):
    subnet = network.address.rpartition(".")[0] + ".0/24"
    job = mpirun("-H", "localhost:1,alpha:1", "--network", subnet, "--no-tag-output", *python(REPORT))
    assert job.wait() == 0, job.stderr.data
    reports = sorted(map(json.loads, job.stdout.data.splitlines()))
    assert [report[:4] for report in reports] == [[0, 2, os.uname().nodename, 2.0], [1, 2, "alpha", 2.0]]


@again_if_open_mpi_hangs
def test_no_value_is_on_a_command_line_of_any_host(mpirun, python, alpha, beta):
    job = mpirun("-H", "alpha:1,beta:1", "-x", "TOKEN=5ec4e7", "--no-tag-output", *python(WAIT))
    job.stdout.wait_for(b"up", 2)
    lines = [" ".join(process.cmdline()) for process in (*job.family(), *alpha.processes(), *beta.processes())]
    assert any("prted" in line or "orted" in line for line in lines)
    assert not [line for line in lines if "5ec4e7" in line and "--launcher" not in line]
    job.process.terminate()
    assert job.wait() == 143


@again_if_open_mpi_hangs
def test_options_for_ssh_reach_it(mpirun, home, beta, alpha):
    home.config.write_text(home.config.read_text().replace(f"Port {beta.port}", "Port 1"))
    job = mpirun("-H", "beta:1", "--no-tag-output", "uname", "-n")
    assert job.wait() != 0
    job = mpirun("-H", "beta:1", "-p", str(beta.port), "--no-tag-output", "uname", "-n")
    assert job.wait() == 0, job.stderr.data
    assert job.stdout.data == b"beta\n"


@again_if_open_mpi_hangs
def test_a_rank_that_fails_there(mpirun, python, alpha, beta):
    code = "import os, signal; from mpi4py import MPI\nif MPI.COMM_WORLD.rank: os._exit(42)\nsignal.pause()"
    job = mpirun("-H", "alpha:1,beta:1", *python(code))
    assert job.wait() == 42
    assert "distrun: mpirun (pid " in job.stderr.data.decode()


@pytest.mark.gate
@again_if_open_mpi_hangs
def test_nothing_survives_a_killed_launcher(mpirun, python, alpha, beta):
    job = mpirun("-H", "alpha:1,beta:1", "--no-tag-output", *python(WAIT))
    job.stdout.wait_for(b"up", 2)
    family = job.family()
    job.process.kill()
    assert psutil.wait_procs(family, timeout=DEADLINE)[1] == []


@pytest.mark.gate
@again_if_open_mpi_hangs
def test_a_host_that_cannot_be_reached_is_told_by_mpirun(mpirun, home, network, alpha, beta):
    home.config.write_text(f"Host {network.nobody}\n  ConnectTimeout 1\n" + home.config.read_text())
    job = mpirun("-H", f"alpha:1,{network.nobody}:1", "true")
    assert job.wait() != 0
    said = job.stderr.data.decode()
    assert network.nobody in said
    assert "distrun: mpirun (pid " in said


@pytest.mark.parametrize("backend", ["tcp", "mpi"])
@again_if_open_mpi_hangs
def test_a_cut_link_ends_the_job_and_the_ranks_on_both_sides(mpirun, python, alpha, beta, backend):
    command = ("-H", "alpha:1,beta:1", "--keepalive", "3", *python(REDUCING))
    job = mpirun(*command, DISTRUN_BACKEND=backend)
    job.stdout.wait_for(b"going", 4)
    ranks = [item for host in (alpha, beta) for item in host.processes() if REDUCING in item.cmdline()]
    assert len(ranks) == 2
    beta.cut()
    try:
        assert job.wait() != 0
        assert b"lost communication with a remote daemon" in job.stderr.data or b"JobAbortedError" in job.stderr.data
        assert psutil.wait_procs(ranks, timeout=DEADLINE)[1] == []
    finally:
        beta.mend()
        kill_all(beta.processes())  # the daemon of Open MPI, whose kernel tries for minutes to reach its mpirun
