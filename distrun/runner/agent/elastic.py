"""The processes of an elastic job on one host: they are started and ended one by one, each with a control channel."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable

from distrun.runner.agent.cleanup.leftovers import Leftovers
from distrun.runner.agent.control import ControlRelay
from distrun.runner.agent.launcher_connection import LauncherConnection
from distrun.runner.agent.rank_process import RankProcess, end_group
from distrun.runner.agent.relay import Relay
from distrun.runner.planning.plan import RankPlan
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.system.loop import Loop


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
            job: the job's id.
            loop: the event loop.
            launcher: gets frames about exits, and the processes' messages.
            relay: relays the output of processes.
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
