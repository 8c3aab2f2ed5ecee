"""Ending what dead processes of an elastic job have left behind, such as the workers of a data loader.

They hold GPUs, ports and memory that a replacement needs, so they are ended before it is started. They are known by
their environment, which has the number of the process that they descend from.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from distrun.contract.elastic.messages import PROCESS
from distrun.runner.system import descendants

_INTERVAL = 0.01  # seconds between two rounds of SIGKILL: a process may fork between being listed and being killed
_TIMEOUT = 5.0  # seconds of such rounds after which what is left counts as unkillable


class Leftovers:
    """The processes whose leftovers are being ended."""

    def __init__(self, job: str) -> None:
        """Args: the marker of the job, `DISTRUN_JOB=...`."""
        self._job = job
        self._numbers: dict[int, float] = {}  # process -> when it is given up
        self._next = 0.0

    def add(self, number: int) -> None:
        """Begin to end what a dead process has left behind."""
        now = time.monotonic()
        self._numbers[number] = now + _TIMEOUT
        self._next = now

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `end` has something to do; None = it has nothing."""
        return max(0.0, self._next - time.monotonic()) if self._numbers else None

    def end(self, alive: Collection[int] = ()) -> list[int]:
        """Do what is due; return the processes of which nothing is left now, or nothing that can be ended.

        Args:
            alive: the process ids of those that are not dead.
        """
        now = time.monotonic()
        if not self._numbers or now < self._next:
            return []
        if not descendants.has_orphans(alive):  # as nearly always: no need to look at all processes of the machine
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
