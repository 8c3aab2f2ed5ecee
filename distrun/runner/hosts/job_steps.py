"""Running a module of distrun on another node of the Slurm allocation, in a job step of one task.

srun forwards the task's streams unchanged, though only with --unbuffered: otherwise it waits for ends of lines, and
frames have none. A step shares the cores, the memory and the GPUs of the allocation with other steps (--overlap), and
is not bound to any of them. The task's stdin closes when its srun ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress

from distrun.runner.hosts.program import ChildProgram, remote_command
from distrun.runner.protocol.exits import NOT_FOUND
from distrun.runner.protocol.handshake import AllocationOverError, HostError, explain_failed_start
from distrun.runner.shipping.delivery import Opening

_EXIT_TIMEOUT = 6.0  # seconds srun may take to exit when its task has
_KILLED_EXIT_TIMEOUT = 2.0  # the same after it was terminated: longer only if the node does not answer
# Variables that would add options to the command line below, such as SLURM_MEM_PER_CPU, but for those that name Slurm.
_OPTION = re.compile(r"(?!SLURM_(?:CONF|CLUSTERS|WORKING_CLUSTER)$)(?:SLURM|SRUN|PMI)(?:[DX]?_.*)")
# Messages of srun itself, unlike what the task writes.
_OF_SLURM = re.compile(r"^(?:srun|slurmstepd|slurmd)[^:\s]*: (?:error: )?(.*)$", re.MULTILINE)
# srun: error: Slurm job 2 has expired
# srun: error: Unable to confirm allocation for job 2: Invalid job id specified
# srun: error: Unable to create step for job 2: Job/step already completing or completed
_OVER = re.compile("has expired|Invalid job id|already completing or completed")


class JobSteps:
    """All job steps that one launch has started. Many threads may call its methods."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Args: the environment of the launcher, which names the Slurm job."""
        self._slurm_job = environ["SLURM_JOB_ID"]
        self._environ = {name: value for name, value in environ.items() if not _OPTION.fullmatch(name)}
        self._lock = threading.Lock()
        self._closed = False
        self._steps: list[JobStep] = []

    def start(self, node: str, python: str, module: str, opening: Opening) -> JobStep:
        """Run a module of distrun on a node, by the node's `python`.

        Raises:
            HostError: srun cannot be started, or it is too late to start anything.
        """
        with self._lock:
            if self._closed:
                raise HostError("the launch was given up")
            step = JobStep(srun_command(self._slurm_job, node, python, module, opening.code), self._environ, python)
            self._steps.append(step)
        with suppress(OSError):  # srun has ended already: the handshake will fail with the reason
            step.write(opening.text)
        return step

    def close(self) -> None:
        """End all steps that have not ended, and refuse to start others."""
        with self._lock:
            self._closed = True
        for step in self._steps:
            step.kill()
        for step in self._steps:  # only now, so that they end side by side
            step.release()


class JobStep(ChildProgram):
    """A module of distrun in a job step. See `distrun.runner.hosts.program.Program` for the interface."""

    def __init__(self, command: list[str], environ: Mapping[str, str], python: str) -> None:
        """Start the step by srun's command line. `environ` is for srun and the task, and `python` is for errors.

        Raises:
            HostError: srun is not installed.
        """
        self.python = python
        self._early = b""
        self._killed = False
        self._stderr = os.memfd_create("distrun-srun")  # a file in memory never fills up as a pipe would
        try:
            super().__init__(command, stderr=self._stderr, env=environ)
        except OSError as error:
            os.close(self._stderr)
            raise HostError(f"srun cannot be started: {error.strerror}; load Slurm, or use --launcher ssh") from None

    def read(self, timeout: float | None) -> bytes:
        """Return the next bytes from the task's stdout."""
        early, self._early = self._early, b""
        return early or super().read(timeout)

    def await_output(self, timeout: float) -> bool:
        """Wait until the task writes something, which `read` will return. False = it ends without output.

        Raises:
            TimeoutError: it has done neither within `timeout` seconds.
        """
        self._early = self.read(timeout)
        return bool(self._early)

    def kill(self) -> None:
        """Let Slurm kill the step, with all descendants of the task that Slurm keeps track of."""
        if not self._killed and self._process.poll() is None:
            self._killed = True
            self._process.terminate()

    def wait(self) -> int:
        """Wait for srun's exit and return its exit code, negative when a signal killed it."""
        try:
            return self._process.wait(_KILLED_EXIT_TIMEOUT if self._killed else _EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the node does not answer: the task will notice that its stdin is closed
            return self._process.wait()

    def stderr(self) -> str:
        """Return the last 64 KiB that srun and the task wrote to stderr."""
        with suppress(OSError):
            size = os.fstat(self._stderr).st_size
            return os.pread(self._stderr, 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")
        return ""

    def slurm_error(self) -> str:
        """Return Slurm's first message about why the step ended. Empty = there is none."""
        said = [line for line in _OF_SLURM.findall(self.stderr()) if not _is_noise(line)]
        return said[0].strip("* ") if said else ""

    def refusal(self, output: bytes = b"") -> str:
        """Return Slurm's reason for not starting the task. Empty = it started a Python, or tried to.

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
            # The status that a shell would return: srun's own status tells nothing.
            return explain_failed_start(NOT_FOUND, said, self.python)
        return explain_failed_start(status, output.decode(errors="replace") + self.stderr(), self.python)

    def refused(self, reason: str) -> HostError:
        """Return an error with the reason why the task did not start, and Slurm's message if there is one."""
        said = self.slurm_error()
        kind = AllocationOverError if _OVER.search(said) else HostError
        return kind(reason if not said or said in reason else f"{reason}; srun says: {said}")

    def release(self) -> None:
        """Wait for srun's exit, and close everything."""
        self.wait()
        self.close()
        os.close(self._stderr)


def srun_command(slurm_job: str, node: str, python: str, module: str, code: str) -> list[str]:
    """Return the command that runs a module of distrun on one node of a Slurm job, with all that the job has there."""
    return [
        *("srun", f"--jobid={slurm_job}", "--job-name=distrun", f"--nodelist={node}", "--nodes=1", "--ntasks=1"),
        *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"),
        *("--unbuffered", "--input=0", "--export=ALL", "--chdir=/"),
        *remote_command(python, module, code),
    ]


def _is_noise(line: str) -> bool:
    """Whether srun writes this line for every failure."""
    return line.startswith(("Job step aborted", "forcing job termination", "Force Terminated")) or ": task 0:" in line
