"""One rank as a child of its agent: a process in its own session, the pipes to and from it, and its exit."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from distrun.host.departures import Departures
from distrun.host.forks import die_with_parent
from distrun.host.limits import hint_for
from distrun.runner.planning.plan import AgentPlan, RankPlan
from distrun.runner.protocol.exits import NOT_EXECUTABLE, NOT_FOUND
from distrun.runner.protocol.frames import FrameKind
from distrun.runner.system import cpus
from distrun.tracing.layout import EVENTS_FD, new_ring_fd
from distrun.tracing.reader import RingReader

RANK, EVENTS = "DISTRUN_RANK", "DISTRUN_EVENTS"


class StartError(Exception):
    """A rank could not be started. `status` is the exit status that a shell would give."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RankProcess:
    """A running rank. The agent's ends of its pipes do not block."""

    def __init__(
        self, plan: AgentPlan, rank: RankPlan, function: int | None, departures: Departures | None = None
    ) -> None:
        """Start the rank.

        Args:
            plan: the part of the plan that all ranks of the host share.
            rank: its own part.
            function: descriptor of the pickled function of `distrun.run`, or None for an ordinary command.
            departures: notifies it during init of ranks that have exited. None = nothing does.

        Raises:
            StartError: the command or the directory does not exist or may not be used.
        """
        self.number = rank.rank
        is_bound = plan.bind_to != "none" and not rank.is_spare and not rank.is_server
        self.cpus = cpus.share(plan.bind_to, rank.local_rank, rank.local_size) if is_bound else set()
        """The CPUs that it is bound to. Empty = not bound. A spare binds itself when it becomes a rank."""
        self.is_server = rank.is_server
        self.alive = True
        self.sources: dict[int, FrameKind] = {}
        """The open descriptors to read from, with the kind of frame for the bytes."""
        self.stdin: int | None = None
        self.control: socket.socket | None = None
        """The agent's end of the control channel, which only a process of an elastic job has."""
        self.events: RingReader | None = None
        """The reader of the rank's ring of events, if it records events."""
        self._question: int | None = None
        self._scratch: str | None = None
        theirs: list[int] = []
        try:
            self._process = self._start(plan, rank, function, departures, theirs)
        except OSError as error:
            self.close()
            raise _explain(error, plan) from None
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.pid = self._process.pid

    def _start(
        self,
        plan: AgentPlan,
        rank: RankPlan,
        function: int | None,
        departures: Departures | None,
        theirs: list[int],
    ) -> subprocess.Popen[bytes]:
        stdout, stderr = self._source(FrameKind.STDOUT, theirs), self._source(FrameKind.STDERR, theirs)
        stdin = self._sink(theirs) if rank.stdin else subprocess.DEVNULL
        command = rank.command or plan.command
        environ = {**rank.defaults, **plan.environ, **rank.environ}
        inherit: tuple[int, ...] = ()
        if function is not None:
            inherit = (function, *(self._source(kind, theirs) for kind in (FrameKind.RESULT, FrameKind.TRACEBACK)))
            command = [*command, *map(str, inherit)]
        if rank.is_server:
            inherit = (rank.memory,)
        if plan.room:
            from distrun.contract.elastic.variables import CONTROL_FD, PROCESS, SCRATCH, TRIAL, TRIAL_FD
            from distrun.runner.system import scratch

            control = self._control(theirs)
            inherit = (*inherit, control)
            environ |= {TRIAL_FD if TRIAL in environ else CONTROL_FD: str(control), PROCESS: str(rank.rank)}
            self._scratch = scratch.make(environ, rank.rank)
            environ |= {SCRATCH: self._scratch} if self._scratch else {}
        if RANK in rank.environ and environ.get(EVENTS) != "0":
            theirs.append(ring := new_ring_fd())
            self._question = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            inherit = (*inherit, ring, self._question)
            environ[EVENTS_FD] = f"{ring},{self._question}"
            self.events = RingReader(ring)
        if departures is not None:
            inherit = (*inherit, departures.descriptor)
            environ |= departures.environ
        if rank.is_spare:
            command = spare_command(command, environ, plan.wdir)
            if plan.bind_to != "none":
                shares = (cpus.share(plan.bind_to, slot, plan.room) for slot in range(plan.room))
                environ["DISTRUN_SPARE_CPUS"] = ";".join(map(cpus.format_cpus, shares))
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=plan.wdir,
            env=environ,
            pass_fds=inherit,
            start_new_session=True,
            preexec_fn=partial(_before_exec, os.getpid(), self.cpus),  # the agent has one thread, so this is safe
        )

    def _source(self, kind: FrameKind, theirs: list[int]) -> int:
        ours, their_end = os.pipe()
        theirs.append(their_end)
        os.set_blocking(ours, False)
        self.sources[ours] = kind
        return their_end

    def _sink(self, theirs: list[int]) -> int:
        their_end, self.stdin = os.pipe()
        theirs.append(their_end)
        os.set_blocking(self.stdin, False)
        return their_end

    def _control(self, theirs: list[int]) -> int:
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        theirs.append(their_end := other.detach())
        return their_end

    def ask_stacks(self) -> None:
        """Ask the rank for the stacks of its threads. The answer appears in `events`, if the rank can answer."""
        if self._question is not None and self.alive:
            with suppress(BlockingIOError):
                os.eventfd_write(self._question, 1)

    def signal(self, signum: int) -> None:
        """Send a signal to the rank's process group. Its process id cannot be reused before the rank is reaped."""
        if self.alive:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)
                if signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    os.killpg(self.pid, signal.SIGCONT)  # a stopped rank would act only when continued

    def reaped(self, returncode: int) -> None:
        """Record that the process is gone and has been reaped."""
        self.alive = False
        self._process.returncode = returncode  # or subprocess would wait for that process id again

    def close(self) -> None:
        """Close all pipes, and delete the temporary files of a process of an elastic job."""
        for descriptor in self.sources:
            os.close(descriptor)
        self.sources.clear()
        self.close_stdin()
        if self._question is not None:
            os.close(self._question)
            self._question = None
        if self.control is not None:
            self.control.close()
        if self._scratch is not None:
            import shutil  # only an elastic job needs it

            shutil.rmtree(self._scratch, ignore_errors=True)

    def close_stdin(self) -> None:
        """Close the rank's standard input, so that it reads end of file."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None


def spare_command(command: list[str], environ: Mapping[str, str], wdir: str) -> list[str]:
    """Return the command of a spare, which waits until it is activated and then runs `command`.

    Raises:
        StartError: the command is not a Python program.
    """
    from distrun.runner.planning import python_command

    parts = python_command.split(command, environ.get("PATH"), wdir)
    if parts is None:
        raise StartError(NOT_EXECUTABLE, f"{command[0]!r} is no Python program, for which alone there are spares")
    return [*parts.interpreter, str(Path(__file__).with_name("spare.py")), *parts.program]


def end_group(leader: int) -> None:
    """SIGKILL the rest of the process group of a dead process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def waiting_bytes(descriptor: int) -> int:
    """Return the number of bytes that a pipe holds at this moment."""
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    return int(count)


def _before_exec(agent: int, bound_to: set[int]) -> None:
    die_with_parent(agent)
    if bound_to:
        os.sched_setaffinity(0, bound_to)
    # Ignored signals are inherited, for example from nohup or from a shell's background job, but these must end a rank.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def _explain(error: OSError, plan: AgentPlan) -> StartError:
    if error.filename == plan.wdir:
        return StartError(2, f"the working directory {plan.wdir!r} cannot be used: {error.strerror}")
    status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return StartError(status, f"{plan.command[0]!r} cannot be run: {error.strerror}{hint_for(error)}")
