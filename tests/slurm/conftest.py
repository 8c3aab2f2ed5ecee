"""A real Slurm for tests: munge, a controller on this machine, and two hosts of a network of its own as its nodes.

The controller listens at this machine's address in that network, so that several of them, each with its own, may run at
once. Everything is started without systemd, with a configuration, sockets, keys and state of its own in a temporary
directory, and is gone afterwards.
"""

from __future__ import annotations

import ast
import itertools
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from machines.namespaces import Network, RemoteHost, command_line, why_no_hosts
from machines.system_packages import PATH, why_missing
from running_distrun import DEADLINE, Distrun, launches
from shell import kill_all

_PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
_CORES = 2  # of each node, whatever this machine has: two ranks per node
_LOOP = 0.05  # seconds between two looks where nothing tells
_CONFIG = """
ClusterName=distrun
SlurmctldHost={controller}({address})
CommunicationParameters=NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=2
PropagateResourceLimits=NONE
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8 MaxTime=10
"""


class Cluster:
    """Slurm on the two hosts of a network: nodes alpha and beta with two cores each."""

    def __init__(self, directory: Path, network: Network) -> None:
        self.network = network
        self.config = directory / "slurm.conf"
        self._directory = directory
        self._socket = directory / "munge" / "munge.socket.2"
        self._named = f"mount --bind {directory}/hosts /etc/hosts"
        """The command of a shell with mounts of its own that gives the hosts names, this machine's among them."""
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name in ("state", "munge", *network.hosts):
            (directory / name).mkdir(parents=True)
        self._configure()
        try:
            self._start_munge()
            self._start("unshare", "--mount", "sh", "-c", f"{self._named} && exec slurmctld -D -i")
            for host in network.hosts.values():
                self._start_node(host)
            self.wait_for_nodes()
        except BaseException:
            self.destroy()
            raise

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment in which programs find this Slurm and no other."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SRUN", "SBATCH"))}
        return {**clean, "SLURM_CONF": str(self.config), "PATH": PATH}

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command of Slurm's."""
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the numbers of the jobs that are not over."""
        return self.run("squeue", "-h", "-o", "%A").split()

    def processes(self, host: RemoteHost) -> list[psutil.Process]:
        """Return the processes on a node besides Slurm's daemons."""
        return [item for item in host.processes() if not _is_slurm(item)]

    def all_processes(self) -> list[psutil.Process]:
        """Return the processes on all nodes besides Slurm's daemons."""
        return list(itertools.chain.from_iterable(map(self.processes, self.network.hosts.values())))

    def agents(self) -> dict[str, psutil.Process]:
        """Return the agents that run on the nodes, by node."""
        return {
            host.name: process
            for host in self.network.hosts.values()
            for process in self.processes(host)
            if "distrun.runner.agent" in command_line(process)
        }

    def assert_no_process(self) -> None:
        """Wait until no process is left on any node."""
        while left := self.all_processes():
            assert psutil.wait_procs(left, timeout=DEADLINE)[1] == []

    def end_jobs(self) -> None:
        """Leave nothing behind after a failed test."""
        if jobs := self.jobs():
            self.run("scancel", "--signal=KILL", "--full", *jobs, check=False)
            self.run("scancel", *jobs, check=False)
        _wait(lambda: not self.jobs(), "a job does not end")
        kill_all(self.all_processes())
        self.assert_no_process()

    def destroy(self) -> None:
        """End all daemons."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for host in self.network.hosts.values():  # what detaches itself, such as slurmstepd
            for process in host.processes():
                with suppress(psutil.Error):
                    process.kill()

    def _configure(self) -> None:
        nodes = [
            f"NodeName={host.name} NodeAddr={host.address} CPUs={_CORES} RealMemory=1000 State=UNKNOWN"
            for host in self.network.hosts.values()
        ]
        self.config.write_text(
            _CONFIG.format(
                controller=socket.gethostname(),
                address=self.network.address,
                directory=self._directory,
                munge=self._socket,
                nodes="\n".join(nodes),
            )
        )
        # The mounts of a namespace may lack the control groups, which version 1 accepts as long as nothing uses them.
        self.config.with_name("cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        names = "".join(f"{host.address} {host.name}\n" for host in self.network.hosts.values())
        own = f"127.0.0.1 localhost\n{self.network.address} {socket.gethostname()}\n"
        (self._directory / "hosts").write_text(own + names)

    def _start_munge(self) -> None:
        key = self._directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._socket.parent.chmod(0o755)
        paths = {
            "key-file": key,
            "socket": self._socket,
            "pid-file": self._directory / "munged.pid",
            "seed-file": self._directory / "munged.seed",
            "log-file": self._directory / "munged.log",
        }
        # The temporary directory is writable for all, which munged rightly minds; hence --force.
        self._start("munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in paths.items()))
        _wait(self._socket.exists, "munged does not listen")

    def _start_node(self, host: RemoteHost) -> None:
        script = (
            f"hostname {host.name} && {self._named} && mkdir -p /run/munge && "
            f"mount --bind {self._socket.parent} /run/munge && exec slurmd -D -N {host.name}"
        )
        self._start(*host.inside, "unshare", "--uts", "--mount", "sh", "-c", script)

    def _start(self, *command: str) -> None:
        with open(self._directory / "output.log", "ab") as log:
            self._daemons.append(
                subprocess.Popen(command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )

    def set_state(self, node: str, state: str) -> None:
        """Have the controller take a node for `down`, as when it no longer answers, or `resume` it."""
        self.run("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=test")

    def state(self, job: str) -> str:
        """Return Slurm's word for the state of a job, such as `PENDING`."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

    def start_again(self, job: str) -> None:
        """Wait until a job is requeued, and let it start soon: Slurm lets it wait for two minutes.

        Slurm does so because the end of the first run, should it be reported later, would be taken for the end of the
        second. Besides, nodes refuse what was allowed within the second in which the first run was ended.
        """
        show = ("squeue", "--noheader", f"--jobs={job}", "--format=%T %r")
        _wait(lambda: self.run(*show).strip() == "PENDING BeginTime", f"job {job} is not requeued")
        hosts = self.network.hosts.values()
        _wait(lambda: not any(_is_step(item) for host in hosts for item in host.processes()), "a step does not end")
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")
        _wait(lambda: self.state(job) != "PENDING", f"job {job} does not start again")

    def wait_for_end(self, job: str) -> str:
        """Wait until nothing of a job is left; return Slurm's word for how it ended, such as `COMPLETED`."""
        _wait(lambda: job not in self.jobs(), f"job {job} does not end")
        return self.state(job)

    def wait_for_nodes(self) -> None:
        """Wait until all nodes are up and nothing runs on them."""

        def are_idle() -> bool:
            states = self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()
            return states == ["idle"] * len(self.network.hosts)

        try:
            _wait(are_idle, "the nodes do not become idle")
        except RuntimeError as error:
            logs = "\n".join(file.read_text()[-2000:] for file in self._directory.glob("*.log"))
            raise RuntimeError(f"{error}:\n{logs}") from None


def _is_step(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("slurmstepd")
    except psutil.Error:
        return False  # gone


def _is_slurm(process: psutil.Process) -> bool:
    try:
        return process.name().startswith(("slurmd", "slurmstepd"))
    except psutil.Error:
        return True  # gone


def _wait(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint)
        time.sleep(_LOOP)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, on a network of its own."""
    if (reason := why_no_hosts() or why_missing(_PACKAGES)) is not None:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("slurm")
    try:
        network = Network(directory)
    except RuntimeError as error:
        pytest.skip(f"namespaces cannot be made here: {error}")
    try:
        made = Cluster(directory, network)
        yield made
        made.destroy()
    finally:
        network.destroy()


class Allocation:
    """An allocation of both nodes with two tasks each, as a shell within `salloc` has it."""

    def __init__(self, cluster: Cluster, *options: str) -> None:
        show = "import os, sys; print(dict(os.environ), flush=True); sys.stdin.read()"
        self._salloc = subprocess.Popen(
            ["salloc", "--quiet", "--nodes=2", "--ntasks=4", *options, sys.executable, "-c", show],
            env=cluster.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.environ: dict[str, str] = ast.literal_eval(self._salloc.stdout.readline())
        self.job = self.environ["SLURM_JOB_ID"]

    def end(self) -> None:
        """Give the nodes back; a second call does nothing."""
        if self._salloc.returncode is None:
            self._salloc.communicate(timeout=DEADLINE)


@pytest.fixture
def allocation(slurm: Cluster, request: pytest.FixtureRequest) -> Iterator[Allocation]:
    """An allocation; an indirect parameter gives more options of salloc."""
    made = Allocation(slurm, *getattr(request, "param", ()))
    yield made
    made.end()
    slurm.end_jobs()


@pytest.fixture
def distrun(allocation: Allocation, slurm: Cluster, tmp_path: Path) -> Iterator[Callable[..., Distrun]]:
    """Starts `distrun` with the given arguments within the allocation, on the machine where the users log in.

    No process of it is left there, nor on any node, when the test ends.
    """
    jobs: list[Distrun] = []
    with launches(tmp_path, **allocation.environ) as start:
        yield lambda *arguments, **more: jobs.append(start(*arguments, **more)) or jobs[-1]
        slurm.assert_no_process()
        for job in jobs:
            job.assert_gone()


@pytest.fixture
def submit(slurm: Cluster, tmp_path: Path) -> Iterator[Callable[..., Batch]]:
    """Has Slurm run `distrun` with the given arguments on the first of two nodes."""
    started: list[Batch] = []

    def start(*arguments: str, options: tuple[str, ...] = ()) -> Batch:
        started.append(Batch(slurm, tmp_path, arguments, options))
        return started[-1]

    yield start
    slurm.end_jobs()
    for batch in started:
        batch.end()


class Batch:
    """A submitted script that runs `distrun`."""

    def __init__(self, cluster: Cluster, directory: Path, arguments: tuple[str, ...], options: tuple[str, ...]) -> None:
        """Args: where; for the script and its output; of `distrun`; more of sbatch."""
        self._cluster = cluster
        self._output = directory / "output"
        script = directory / "script"
        script.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, '-m', 'distrun.runner', *arguments])}\n")
        places = ["--nodes=2", "--ntasks=4", "--output", str(self._output), "--chdir", str(directory)]
        self._sbatch = subprocess.Popen(
            ["sbatch", "--wait", "--parsable", *places, *options, str(script)],
            env=cluster.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.job = self._sbatch.stdout.readline().strip()

    @property
    def output(self) -> str:
        """Return the output so far."""
        return self._output.read_text() if self._output.exists() else ""

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the text has been printed `count` times."""
        _wait(lambda: self.output.count(text) >= count, f"{text!r} did not appear {count} times")

    def wait(self) -> int:
        """Wait until the script ends; return its exit status.

        It may have ended ten seconds before sbatch looks again.
        """
        return self._sbatch.wait(2 * DEADLINE)

    def end(self) -> None:
        """Leave no sbatch behind: it looks seldom, and takes a requeued job for one that has ended."""
        self._sbatch.kill()
        self._sbatch.communicate()
