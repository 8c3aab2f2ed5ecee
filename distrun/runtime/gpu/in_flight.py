"""Operations in flight: queued on the communication stream, and not known to be done.

The host goes on when an operation is queued, so somebody has to look after it: keep its memory until the device is done with
it, and say so when the device does not come to an end. Whether it waits for the other ranks, and not for this rank's own
computation, is known from the events behind its inputs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distrun.errors import StallError
from distrun.runtime.operations.timeouts import Timeouts

log = logging.getLogger("distrun")

Event = Any


@dataclass(eq=False)
class InFlightOperation:
    """What was queued together."""

    what: str
    ready: Sequence[Event]
    """Behind the work that produces the inputs."""
    finished: Event
    """Behind the operation itself."""
    kept_alive: Sequence[Any] = ()
    """The handles of what was queued, with their memory; it stays until then, or until `release`."""
    kept: Sequence[Any] = ()
    """Whatever else must live until then."""
    since: float | None = field(default=None, init=False)
    """When it was first seen to wait for nothing of this rank's own."""

    def release(self, handle: Any) -> None:
        """Let go of a handle whose stream waits for `finished`: there its memory may be used again, in the order of the stream.

        A host that is far ahead of its device would hold the memory of many operations otherwise.
        """
        self.kept_alive = [other for other in self.kept_alive if other is not handle]


class InFlight:
    """The operations in flight on one stream, oldest first. One thread adds, and any may look."""

    def __init__(self, is_done: Callable[[Event], bool], timeouts: Timeouts) -> None:
        """`is_done` raises when the device has failed."""
        self._is_done = is_done
        self._timeouts = timeouts
        self._in_flight: deque[InFlightOperation] = deque()
        self._looking = threading.Lock()
        self._next_warning = 0.0

    def __len__(self) -> int:
        return len(self._in_flight)

    def add(self, operation: InFlightOperation) -> None:
        """Note an operation that has just been queued."""
        self._in_flight.append(operation)

    def look(self, now: float) -> None:
        """Let go of what has landed; warn, or give up, when what should be next has been waiting for long.

        Args:
            now: a `time.monotonic()`.

        Raises:
            StallError: the stall timeout is over.
            DeviceError: the device has failed.
        """
        with self._looking:
            self._look(now)

    def _look(self, now: float) -> None:
        while self._in_flight and self._is_done(self._in_flight[0].finished):
            self._in_flight.popleft()
        if not self._in_flight:
            return
        oldest = self._in_flight[0]
        if oldest.since is None:
            if all(map(self._is_done, oldest.ready)):
                oldest.since = now
                self._next_warning = self._timeouts.warning or float("inf")
            return
        waited = now - oldest.since
        if self._timeouts.timeout and waited >= self._timeouts.timeout:
            raise StallError(f"gave up after {waited:.0f} s: {_stuck(oldest)}")
        if waited >= self._next_warning:
            self._next_warning *= 2
            log.warning("waiting for %.0f s: %s", waited, _stuck(oldest))

    def take_all(self) -> list[InFlightOperation]:
        """Give up: everything that has not landed."""
        with self._looking:
            in_flight = list(self._in_flight)
            self._in_flight.clear()
        return in_flight


def _stuck(operation: InFlightOperation) -> str:
    return (
        f"{operation.what}: all ranks have submitted it and this rank's GPU is ready, but it does not end: the GPU of another "
        "rank has not come to it yet, or the connection between the GPUs is stuck, which NCCL_DEBUG=INFO may show"
    )
