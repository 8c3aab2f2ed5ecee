"""The processes of an elastic job on one host: they are started and ended one by one, each with a control channel."""

from __future__ import annotations

import math
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial

from distrun.contract.elastic.variables import PROCESS
from distrun.runner.agent.launcher_connection import LauncherConnection
from distrun.runner.agent.rank_process import RankProcess, end_group
from distrun.runner.agent.relay import Relay
from distrun.runner.planning.plan import RankPlan
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.system import descendants
from distrun.runner.system.loop import WRITE, Loop

_LONGEST = 1 << 22  # bytes of a message, more than the kernel accepts
_INTERVAL = 0.01  # seconds between two rounds of SIGKILL: a process may fork between being listed and being killed
_TIMEOUT = 5.0  # seconds of such rounds after which the rest counts as unkillable


class ElasticProcesses:
    """Starts processes when dead ones have no leftovers, and ends processes at the launcher's request."""

    def __init__(
        self,
        job: str,
        loop: Loop,
        launcher: LauncherConnection,
        relay: Relay,
        start: Callable[[RankPlan], RankProcess | None],
        others: Callable[[], set[int]],
    ) -> None:
        """
        Args:
            start: starts a process and reports it to the launcher. Returns None if the process could not be started.
            others: returns the process ids of the agent's children that do not belong to the job.
        """
        self._launcher = launcher
        self._relay = relay
        self._start = start
        self._others = others
        self._control = ControlRelay(loop, launcher)
        self._leftovers = Leftovers(f"DISTRUN_JOB={job}")
        self._processes: dict[int, RankProcess] = {}
        self._kill_at: dict[int, float] = {}
        self._waiting: dict[int, tuple[RankPlan, list[bytes]]] = {}  # with messages for them

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `tend` has something to do. None = nothing to do."""
        now = time.monotonic()
        due = [max(0.0, kill_at - now) for kill_at in self._kill_at.values() if kill_at < math.inf]
        left = self._leftovers.seconds_left
        return min(due if left is None else [*due, left], default=None)

    def start(self, plan: RankPlan) -> None:
        """Start a process as soon as dead processes on this host have no leftovers."""
        self._waiting[plan.rank] = plan, []
        if self._leftovers.seconds_left is None:
            self._start_waiting()

    def tell(self, number: int, message: bytes) -> None:
        """Send a process a message of the launcher."""
        if number in self._waiting:
            self._waiting[number][1].append(message)
        else:
            self._control.send(number, message)

    def end(self, number: int, grace: float) -> None:
        """Begin to end a process, and everything that it has started."""
        if self._waiting.pop(number, None) is not None:
            self._launcher.send(Frame(FrameKind.EXITED, number, RankExit(-signal.SIGTERM).encode()))
        elif (process := self._processes.get(number)) is not None and process.alive:
            process.signal(signal.SIGTERM if grace > 0 else signal.SIGKILL)
            self._kill_at[number] = min(time.monotonic() + grace, self._kill_at.get(number, math.inf))

    def release(self, number: int) -> None:
        """Begin to end the leftovers of a dead process. When they are gone, the process is forgotten."""
        if number in self._processes:
            self._leftovers.add(number)

    def is_ending(self, number: int) -> bool:
        """Whether `end` was called for a process whose exit has not been reported."""
        return number in self._kill_at

    def drain(self, process: RankProcess) -> None:
        """Relay the last messages of a process that is gone."""
        self._control.drain(process.number)

    def exited(self, process: RankProcess, returncode: int) -> None:
        """Begin to end the leftovers of a process that failed or was ended. After a normal exit, they may run on."""
        if self._kill_at.pop(process.number, None) is not None or returncode:
            end_group(process.pid)
            self._leftovers.add(process.number)

    def tend(self) -> list[int]:
        """Send signals and start processes that are due. Returns the dead processes that have no leftovers now."""
        now = time.monotonic()
        for number in [number for number, kill_at in self._kill_at.items() if now >= kill_at]:
            self._processes[number].signal(signal.SIGKILL)
            self._kill_at[number] = math.inf
        alive = {process.pid for process in self._processes.values() if process.alive}
        gone = self._leftovers.end(alive | self._others())
        for number in gone:
            self._relay.remove(self._processes.pop(number))
        if self._waiting and self._leftovers.seconds_left is None:
            self._start_waiting()
        return gone

    def _start_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for number, (plan, messages) in waiting.items():
            if (process := self._start(plan)) is not None:
                self._processes[number] = process
                self._control.add(process)
                for message in messages:
                    self._control.send(number, message)


class ControlRelay:
    """The processes' control channels: messages that this agent passes on without reading them.

    A channel is a pair of SOCK_SEQPACKET sockets, which keep message boundaries. Messages that a process does not take
    at once are queued here.
    """

    def __init__(self, loop: Loop, launcher: LauncherConnection) -> None:
        self._loop = loop
        self._launcher = launcher
        self._channels: dict[int, socket.socket] = {}
        # Duplicates, as the loop watches a descriptor either for reading or for writing.
        self._writers: dict[int, socket.socket] = {}
        self._pending: dict[int, deque[bytes]] = {}

    def add(self, process: RankProcess) -> None:
        """Begin to relay a process's messages."""
        if process.control is not None:
            self._channels[process.number] = process.control
            self._loop.watch(process.control.fileno(), partial(self._read, process.number))

    def send(self, number: int, message: bytes) -> None:
        """Send `message` to a process as soon as it takes it. If the process is gone, the message is dropped."""
        if number in self._channels:
            self._pending.setdefault(number, deque()).append(message)
            self._write(number)

    def drain(self, number: int) -> None:
        """Relay the last messages of a process that is gone, and close its channel."""
        while number in self._channels and self._read(number):
            pass
        self._close(number)

    def _read(self, number: int) -> bool:
        """Relay the next message. Returns whether there was one."""
        try:
            message = self._channels[number].recv(_LONGEST)
        except BlockingIOError:
            return False
        except ConnectionError:  # it died with messages unread
            message = b""
        if not message:  # it has closed its end
            self._loop.unwatch(self._channels[number].fileno())
            return False
        self._launcher.send(Frame(FrameKind.CONTROL, number, message))
        return True

    def _write(self, number: int) -> None:
        pending = self._pending[number]
        channel = self._channels[number]
        try:
            while pending:
                channel.send(pending[0])
                pending.popleft()
        except BlockingIOError:
            if number not in self._writers:
                self._writers[number] = writer = channel.dup()
                self._loop.watch(writer.fileno(), partial(self._write, number), WRITE)
            return
        except OSError:  # the process, or its end, is gone
            pending.clear()
        self._stop_writing(number)

    def _stop_writing(self, number: int) -> None:
        if (writer := self._writers.pop(number, None)) is not None:
            self._loop.unwatch(writer.fileno())
            writer.close()

    def _close(self, number: int) -> None:
        self._stop_writing(number)
        self._pending.pop(number, None)
        if (channel := self._channels.pop(number, None)) is not None:
            self._loop.unwatch(channel.fileno())
            channel.close()


class Leftovers:
    """The dead processes whose leftovers are being ended, such as the workers of a data loader.

    Leftovers hold GPUs, ports and memory that a replacement needs, so they are ended before it is started. They are
    identified by their environment, which has the number of the process that they descend from.
    """

    def __init__(self, job: str) -> None:
        """Args: `job` is the marker of the job, `DISTRUN_JOB=...`."""
        self._job = job
        self._numbers: dict[int, float] = {}  # process -> the time to give up
        self._next = 0.0

    def add(self, number: int) -> None:
        """Begin to end the leftovers of a dead process."""
        now = time.monotonic()
        self._numbers[number] = now + _TIMEOUT
        self._next = now

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `end` has something to do. None = nothing to do."""
        return max(0.0, self._next - time.monotonic()) if self._numbers else None

    def end(self, alive: Collection[int] = ()) -> list[int]:
        """Send SIGKILL if it is due, and return the processes that have no leftovers now, or only unkillable ones.

        Args:
            alive: the process ids of children that are alive.
        """
        now = time.monotonic()
        if not self._numbers or now < self._next:
            return []
        if not descendants.has_orphans(alive):  # the usual case, without a look at all processes of the machine
            done = list(self._numbers)
            self._numbers.clear()
            return done
        markers = {f"{PROCESS}={number}".encode(): number for number in self._numbers}
        left = {markers[marker] for marker in descendants.kill_marked(self._job.encode(), markers)}
        done = [number for number, give_up in self._numbers.items() if number not in left or now > give_up]
        for number in done:
            del self._numbers[number]
        self._next = time.monotonic() + _INTERVAL
        return done
