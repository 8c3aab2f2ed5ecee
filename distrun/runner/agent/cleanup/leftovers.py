"""Ending the leftovers of dead processes of an elastic job, such as the workers of a data loader.

Leftovers hold GPUs, ports and memory that a replacement needs, so they are ended before it is started. They are
identified by their environment, which has the number of the process that they descend from.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from distrun.contract.elastic.variables import PROCESS
from distrun.runner.system import descendants

_INTERVAL = 0.01  # seconds between two rounds of SIGKILL: a process may fork between being listed and being killed
_TIMEOUT = 5.0  # seconds of such rounds after which the rest counts as unkillable


class Leftovers:
    """The dead processes whose leftovers are being ended."""

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
