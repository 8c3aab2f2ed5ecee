"""The agent of another node of our Slurm allocation: a job step of one task, whose stdin closes when its srun ends.

srun passes on the frames as they are, in both directions, though only with --unbuffered: otherwise it waits for ends of
lines, and frames have none. A step shares the cores, the memory and the GPUs of the allocation with other steps (--overlap),
and is bound to none of them.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from distrun.runner.connect.remote import RemoteAgent, greet, program
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.planning.ssh_config import SshOptions
from distrun.runner.protocol.exits import signal_name
from distrun.runner.protocol.handshake import Greeting, HostError, explain, judge

_END_PATIENCE = 6.0  # seconds srun may take to end when its task has
_TOLD_PATIENCE = 2.0  # the same when it was told to end: longer only if the node does not answer
_CLEAN_UP_PATIENCE = 10.0  # seconds for starting a second step and ending what a dead agent left behind
_SILENT_PATIENCE = 4.0  # seconds for that when the agent is silent: it may be stopped, but likely the node is cut off
# Variables by which Slurm would add options to ours, such as SLURM_MEM_PER_CPU. Where it is, it must still be told.
_OPTION = re.compile(r"(?!SLURM_(?:CONF|CLUSTERS|WORKING_CLUSTER)$)(?:SLURM|SRUN|PMI)(?:[DX]?_.*)")
# What srun itself has to say, as against the agent and the ranks.
_OF_SLURM = re.compile(r"^(?:srun|slurmstepd|slurmd)[^:\s]*: (?:error: )?(.*)$", re.MULTILINE)


class SrunAgentProcess(RemoteAgent):
    """An agent on another node; see `distrun.runner.connect.agent_client.AgentProcess` for the interface."""

    def __init__(self, plan: AgentPlan, job: str, steps: Steps, options: SshOptions, deadline: float) -> None:
        """Start the agent and hear its first words.

        Args:
            plan: its part of the plan. It is not handed over here.
            job: the job's name, by which what it leaves behind is found.
            steps: starts job steps.
            options: the flags; of them, the remote Python and the keepalive.
            deadline: when to give up.

        Raises:
            HostError: the node cannot be used.
        """
        super().__init__(plan.host, job, options.keepalive)
        self._steps = steps
        python = os.path.expanduser(options.python or sys.executable)
        self._python = python
        self._step = steps.start(plan.host, python, "distrun.runner.agent")
        try:
            greeting = Greeting(options.keepalive, plan.wdir, plan.ports)
            self.answer, self._early = greet(greeting, deadline, self.write, self._receive, self._stillborn)
            self.note = judge(self.answer, python)
        except HostError as error:
            self._step.end()
            raise HostError(self._step.excuse(str(error))) from None
        except OSError:
            reason = self._stillborn(b"")
            self._step.end()
            raise HostError(reason) from None
        except BaseException:
            self._step.end()
            raise

    def write(self, data: bytes) -> None:
        """Send it all; raises OSError when there is nobody any more."""
        self._step.write(data)

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end."""
        status, said = self._step.wait(), self._step.last_words()
        words = f": {said}" if said else ""
        if "CANCELLED" in said:  # by scancel, or at the time limit
            return f"(pid {self.pid}) was ended by Slurm{words}", 143
        if status < 0:
            return f"(pid {self.pid}) is out of reach: its srun was killed by {signal_name(-status)}", 128 - status
        if status > 128:
            return f"(pid {self.pid}) was killed by {signal_name(status - 128)}{words}", status
        return f"(pid {self.pid}) left without a farewell, with exit code {status}{words}", status or 1

    def kill(self) -> None:
        """End the step at once, and thus the agent and all its descendants that Slurm keeps track of."""
        self._step.end()

    def _sweep(self) -> None:
        with suppress(OSError, TimeoutError, HostError):
            sweep = self._steps.start(self._host, self._python, "distrun.runner.agent.sweep")
            try:
                sweep.write(f"{self._job} {self.pid}\n".encode())
                sweep.read(_SILENT_PATIENCE if self._silent else _CLEAN_UP_PATIENCE)  # its end
            finally:
                sweep.end()

    def close(self) -> None:
        """Close the streams, which ends the agent, when the cleaning up is done."""
        self._await_sweep()
        self._step.close()

    def _receive(self, seconds: float | None) -> bytes:
        return self._step.read(seconds)

    def _stillborn(self, stream: bytes) -> str:
        status, output = self._step.wait(), stream.decode(errors="replace") + self._step.stderr()
        said = self._step.last_words()
        if "execve()" in said:
            return explain(127, said, self._python)  # as a shell has it; Slurm's own number says nothing
        if said and "distrun" not in output:
            return f"srun cannot start the agent: {said}"
        return explain(status, output, self._python)


class SrunStarter:
    """Starts agents by srun; see `distrun.runner.connect.connector.Starter` for the interface."""

    def __init__(self, job: str, options: SshOptions, start_timeout: float) -> None:
        """Args: the job's name; the flags; seconds for everything. Slurm's job is the one of our environment."""
        self._job = job
        self._steps = Steps(os.environ)
        self._options = options
        self._deadline = time.monotonic() + start_timeout

    def start(self, plan: AgentPlan) -> tuple[SrunAgentProcess, str]:
        """Start one."""
        process = SrunAgentProcess(plan, self._job, self._steps, self._options, self._deadline)
        return process, process.note

    def close(self) -> None:
        """End the steps that are left, such as those of nodes that did not answer in time."""
        self._steps.close()


class Steps:
    """Starts job steps, and knows all that it has started."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Args: the environment of the launcher."""
        self._slurm_job = environ["SLURM_JOB_ID"]
        self._environ = {name: value for name, value in environ.items() if not _OPTION.fullmatch(name)}
        self._lock = threading.Lock()
        self._closed = False
        self._steps: list[Step] = []

    def start(self, node: str, python: str, module: str) -> Step:
        """Run a module of ours on a node.

        Raises:
            HostError: srun cannot be started, or it is too late to start anything.
        """
        with self._lock:
            if self._closed:
                raise HostError("the launch was given up")
            step = Step(command(self._slurm_job, node, python, module), self._environ)
            self._steps.append(step)
            return step

    def close(self) -> None:
        """End all steps that have not ended, and start no more."""
        with self._lock:
            self._closed = True
        for step in self._steps:
            step.end()
        for step in self._steps:
            step.bury()


class Step:
    """A job step of one task: its srun, and the streams to it."""

    def __init__(self, arguments: list[str], environ: Mapping[str, str]) -> None:
        """Start it.

        Raises:
            HostError: there is no srun.
        """
        self._stderr = os.memfd_create("distrun-srun")  # in memory, so that nobody must read it all the time
        try:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environ,
                start_new_session=True,  # Ctrl-C on the terminal is for the launcher, which passes it on
            )
        except OSError as error:
            os.close(self._stderr)
            raise HostError(f"srun cannot be started: {error.strerror}; load Slurm, or use --launcher ssh") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._told = False

    def read(self, seconds: float | None) -> bytes:
        """What has come; none at its end. Raises TimeoutError when nothing has for so many seconds."""
        if not _readable(self._stdout.fileno(), seconds):
            raise TimeoutError
        return os.read(self._stdout.fileno(), 1 << 20)

    def write(self, data: bytes) -> None:
        """Send it all; raises OSError when there is nobody any more."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._stdin.fileno(), rest) :]

    def end(self) -> None:
        """Have Slurm kill the step."""
        if not self._told and self._process.poll() is None:
            self._told = True
            self._process.terminate()

    def wait(self) -> int:
        """Wait for srun's end; its return code, negative when it was killed by a signal."""
        try:
            return self._process.wait(_TOLD_PATIENCE if self._told else _END_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the node does not answer; the agent notices that it is alone
            return self._process.wait()

    def stderr(self) -> str:
        """What srun, and the task, wrote to stderr."""
        with suppress(OSError):
            size = os.fstat(self._stderr).st_size
            return os.pread(self._stderr, 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")
        return ""

    def last_words(self) -> str:
        """What Slurm said first of the end, perhaps nothing."""
        said = [line for line in _OF_SLURM.findall(self.stderr()) if not _is_noise(line)]
        return said[0].strip("* ") if said else ""

    def excuse(self, reason: str) -> str:
        """A reason for which the agent did not start, and what srun said meanwhile."""
        said = self.last_words()
        return reason if not said or said in reason else f"{reason}; srun says: {said}"

    def close(self) -> None:
        """Close the streams: the task gets the end of its input. Twice does no harm."""
        for stream in (self._stdin, self._stdout):
            with suppress(OSError):
                stream.close()

    def bury(self) -> None:
        """Wait for its end, and let go of everything."""
        self.wait()
        self.close()
        os.close(self._stderr)


def command(slurm_job: str, node: str, python: str, module: str) -> list[str]:
    """The command line that runs a module of ours on one node of a Slurm job, with all that the job has there."""
    return [
        "srun",
        f"--jobid={slurm_job}",
        "--job-name=distrun",
        f"--nodelist={node}",
        "--nodes=1",
        "--ntasks=1",
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--unbuffered",
        "--input=0",
        "--export=ALL",
        "--chdir=/",
        python,
        "-c",
        program(module),
    ]


def _is_noise(line: str) -> bool:
    """What srun says of every end that is not a success."""
    return line.startswith(("Job step aborted", "forcing job termination", "Force Terminated")) or ": task 0:" in line


def _readable(descriptor: int, seconds: float | None) -> bool:
    poll = select.poll()  # unlike select, without a limit on the descriptor's number
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
