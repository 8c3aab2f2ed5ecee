"""Running a module of ours on another node of our Slurm allocation, in a job step of one task.

srun passes on what it reads and what the task writes as it is, though only with --unbuffered: otherwise it waits for
ends of lines, and frames have none. A step shares the cores, the memory and the GPUs of the allocation with other steps
(--overlap), and is bound to none of them. The task's stdin closes when its srun ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress

from distrun.runner.hosts.program import pipes, read_some, remote_command, write_all
from distrun.runner.protocol.exits import NOT_FOUND
from distrun.runner.protocol.handshake import AllocationOverError, HostError, explain_failed_start
from distrun.runner.shipping.delivery import Opening

_EXIT_TIMEOUT = 6.0  # seconds srun may take to exit when its task has
_KILLED_EXIT_TIMEOUT = 2.0  # the same after it was terminated: longer only if the node does not answer
# Variables that would add options to ours, such as SLURM_MEM_PER_CPU; those that say where Slurm is are not among them.
_OPTION = re.compile(r"(?!SLURM_(?:CONF|CLUSTERS|WORKING_CLUSTER)$)(?:SLURM|SRUN|PMI)(?:[DX]?_.*)")
# Messages of srun itself, as against those of the task.
_OF_SLURM = re.compile(r"^(?:srun|slurmstepd|slurmd)[^:\s]*: (?:error: )?(.*)$", re.MULTILINE)
# srun: error: Slurm job 2 has expired
# srun: error: Unable to confirm allocation for job 2: Invalid job id specified
# srun: error: Unable to create step for job 2: Job/step already completing or completed
_OVER = re.compile("has expired|Invalid job id|already completing or completed")


class JobSteps:
    """All job steps that one launch has started. Its methods may be called by many threads."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Args: the environment of the launcher, which names the Slurm job."""
        self._slurm_job = environ["SLURM_JOB_ID"]
        self._environ = {name: value for name, value in environ.items() if not _OPTION.fullmatch(name)}
        self._lock = threading.Lock()
        self._closed = False
        self._steps: list[JobStep] = []

    def start(self, node: str, python: str, module: str, opening: Opening) -> JobStep:
        """Run a module of ours on a node.

        Args:
            node: the node.
            python: the node's Python.
            module: the module's name.
            opening: how it begins.

        Raises:
            HostError: srun cannot be started, or it is too late to start anything.
        """
        with self._lock:
            if self._closed:
                raise HostError("the launch was given up")
            step = JobStep(srun_command(self._slurm_job, node, python, module, opening.code), self._environ, python)
            self._steps.append(step)
        with suppress(OSError):  # srun has ended already; that there is no answer will tell why
            step.write(opening.text)
        return step

    def close(self) -> None:
        """End all steps that have not ended, and start no more."""
        with self._lock:
            self._closed = True
        for step in self._steps:
            step.kill()
        for step in self._steps:  # only now, so that they end side by side
            step.release()


class JobStep:
    """A module of ours in a job step; see `distrun.runner.hosts.program.Program` for the interface."""

    def __init__(self, command: list[str], environ: Mapping[str, str], python: str) -> None:
        """Start it.

        Args:
            command: that of srun.
            environ: the environment of srun, and so of the task.
            python: the Python of the node, for errors.

        Raises:
            HostError: there is no srun.
        """
        self.python = python
        self._early = b""
        self._killed = False
        self._stderr = os.memfd_create("distrun-srun")  # in memory, so that nobody must read it all the time
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environ,
                start_new_session=True,  # Ctrl-C on the terminal is for the launcher, which passes it on
            )
        except OSError as error:
            os.close(self._stderr)
            raise HostError(f"srun cannot be started: {error.strerror}; load Slurm, or use --launcher ssh") from None
        self._stdin, self._stdout = pipes(self._process)

    def write(self, data: bytes) -> None:
        """Send all of the data to the task's stdin."""
        write_all(self._stdin.fileno(), data)

    def end_input(self) -> None:
        """Give the task the end of its stdin."""
        with suppress(OSError):
            self._stdin.close()

    def read(self, timeout: float | None) -> bytes:
        """Return the next bytes from the task's stdout."""
        early, self._early = self._early, b""
        return early or read_some(self._stdout.fileno(), timeout)

    def await_output(self, timeout: float) -> bool:
        """Wait until the task writes something, which `read` will return; False when it ends without.

        Raises:
            TimeoutError: it has done neither within so many seconds.
        """
        self._early = self.read(timeout)
        return bool(self._early)

    def kill(self) -> None:
        """Have Slurm kill the step, and with it all descendants of the task that Slurm keeps track of."""
        if not self._killed and self._process.poll() is None:
            self._killed = True
            self._process.terminate()

    def wait(self) -> int:
        """Wait for srun's exit; return its return code, negative when a signal killed it."""
        try:
            return self._process.wait(_KILLED_EXIT_TIMEOUT if self._killed else _EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the node does not answer; the task notices that it is alone
            return self._process.wait()

    def stderr(self) -> str:
        """Return the end of what srun and the task wrote to stderr."""
        with suppress(OSError):
            size = os.fstat(self._stderr).st_size
            return os.pread(self._stderr, 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")
        return ""

    def slurm_error(self) -> str:
        """Return the first thing Slurm said about why the step ended, perhaps nothing."""
        said = [line for line in _OF_SLURM.findall(self.stderr()) if not _is_noise(line)]
        return said[0].strip("* ") if said else ""

    def refusal(self, output: bytes = b"") -> str:
        """Return Slurm's reason for starting nothing; empty when it did start a Python, or tried to.

        Args:
            output: what the task wrote to stdout.
        """
        said = self.slurm_error()
        # slurmstepd: error: execve(): /no/such/python: No such file or directory
        is_slurms = "execve()" not in said and b"distrun" not in output and "distrun" not in self.stderr()
        return said if is_slurms else ""

    def explain_start(self, output: bytes) -> str:
        """Return the reason why the step ended before its first frame."""
        status = self.wait()
        if refusal := self.refusal(output):
            return f"srun cannot start the agent: {refusal}"
        said = self.slurm_error()
        if "execve()" in said:
            # As a shell would have it; the status of srun says nothing.
            return explain_failed_start(NOT_FOUND, said, self.python)
        return explain_failed_start(status, output.decode(errors="replace") + self.stderr(), self.python)

    def refused(self, reason: str) -> HostError:
        """Return a reason for which the task did not start, with what Slurm said meanwhile."""
        said = self.slurm_error()
        kind = AllocationOverError if _OVER.search(said) else HostError
        return kind(reason if not said or said in reason else f"{reason}; srun says: {said}")

    def close(self) -> None:
        """Close the streams. Twice does no harm."""
        for stream in (self._stdin, self._stdout):
            with suppress(OSError):
                stream.close()

    def release(self) -> None:
        """Wait for srun's exit, and close everything."""
        self.wait()
        self.close()
        os.close(self._stderr)


def srun_command(slurm_job: str, node: str, python: str, module: str, code: str) -> list[str]:
    """Return the command that runs a module of ours on one node of a Slurm job, with all that the job has there.

    Args:
        slurm_job: the job's id.
        node: the node.
        python: the node's Python.
        module: the module's name.
        code: that of the program's opening.
    """
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
        *remote_command(python, module, code),
    ]


def _is_noise(line: str) -> bool:
    """Whether srun says this of every end that is not a success."""
    return line.startswith(("Job step aborted", "forcing job termination", "Force Terminated")) or ": task 0:" in line
