"""Operations in flight: queued on the communication stream, and not known to be done.

The host continues as soon as an operation is queued. So this module keeps the operation's memory alive until the device
is done with it, and reports the operation if the device never is. The events after its inputs show whether an operation
waits for other ranks or only for this rank's own computation.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distrun.errors import JobAbortedError, StallError
from distrun.runtime.gpu.driver import Event
from distrun.runtime.operations.timeouts import Timeouts

log = logging.getLogger("distrun")

PARTING_LOOK = 1.0
"""Seconds that an operation has waited before it is asked whether a rank has left. Most end sooner."""
PARTING_TIMEOUT = 12.0
"""Seconds that an operation has to end when a rank that takes part has left. It is longer than the leaving rank waits
for what is in flight there (`SHUTDOWN_DRAIN_TIMEOUT`): what that rank has begun ends, and the rest never does."""


@dataclass(eq=False)
class InFlightOperation:
    """One operation that has been queued, or several that were fused."""

    describe: Callable[[], str]
    """Returns its name in messages."""
    ready: Sequence[Event]
    """The events after the work that produces the inputs."""
    finished: Event
    """The event after the operation itself."""
    handles: Sequence[Any] = ()
    """The handles, kept alive with their memory until the device has passed `finished`, or until `release`."""
    kept_alive: Sequence[Any] = ()
    """Further objects that own memory in use, kept alive until the device has passed `finished`."""
    is_everywhere: bool = True
    """Whether all ranks have queued it, as far as this rank knows. If not, it is not judged how long it takes."""
    process_set: int = 0
    """The process set whose ranks take part."""
    waiting_since: float | None = field(default=None, init=False)
    """The time when a check first found that the inputs are ready, so that it only waits for other ranks."""
    parted_since: float | None = field(default=None, init=False)
    """The time when a check first found, after that, that a rank that takes part has left."""

    def release(self, handle: Any) -> None:
        """Stop keeping `handle` alive: its stream waits for `finished`, so its memory may be reused in stream order.

        Without this, a host that is far ahead of its device would hold the memory of many operations.
        """
        self.handles = [other for other in self.handles if other is not handle]


class InFlight:
    """The operations in flight, oldest first. Any thread may add operations and check."""

    def __init__(
        self,
        is_done: Callable[[Event], bool],
        timeouts: Timeouts,
        departure_from: Callable[[int], str | None] = lambda process_set: None,
    ) -> None:
        """`is_done` returns whether the device has passed an event, and raises if the device has failed.
        `departure_from` returns a sentence about a rank of a process set that has left, or None."""
        self._is_done = is_done
        self._timeouts = timeouts
        self._departure_from = departure_from
        self.operations: deque[InFlightOperation] = deque()
        """The operations in flight, oldest first. An operation that has just been queued is appended."""
        self._checking = threading.Lock()
        self._next_warning = 0.0

    def check(self, now: float) -> None:
        """Remove operations that are done. Warn, or raise, if the oldest one has waited for other ranks for too long.

        Args:
            now: the current `time.monotonic()`.

        Raises:
            StallError: the stall timeout has passed.
            JobAbortedError: a rank that takes part has left without having begun it.
            DeviceError: the device has failed.
        """
        with self._checking:
            self._check(now)

    def _check(self, now: float) -> None:
        while self.operations and self._is_done(self.operations[0].finished):
            self.operations.popleft().handles = ()  # breaks a reference cycle
        operations = tuple(self.operations)  # another thread may append while this one looks
        oldest = next((operation for operation in operations if operation.is_everywhere), None)
        if oldest is None:
            return
        if oldest.waiting_since is None:
            if all(map(self._is_done, oldest.ready)):
                oldest.waiting_since = now
                self._next_warning = self._timeouts.warning or float("inf")
            return
        waited = now - oldest.waiting_since
        if self._timeouts.timeout and waited >= self._timeouts.timeout:
            raise StallError(f"gave up after {waited:.0f} s: {_stall_text(oldest)}")
        if waited >= self._next_warning:
            self._next_warning *= 2
            log.warning("waiting for %.0f s: %s", waited, _stall_text(oldest))
        departure = self._departure_from(oldest.process_set) if waited >= PARTING_LOOK else None
        if departure is not None:
            oldest.parted_since = now if oldest.parted_since is None else oldest.parted_since
            if now - oldest.parted_since >= PARTING_TIMEOUT:
                raise JobAbortedError(f"{oldest.describe()}: {departure}")

    def take_all(self) -> list[InFlightOperation]:
        """Remove and return the operations that have not ended, for an abort."""
        with self._checking:
            operations = list(self.operations)
            self.operations.clear()
        return operations


def _stall_text(operation: InFlightOperation) -> str:
    return (
        f"{operation.describe()}: all ranks have submitted it and this rank's GPU is ready, but it does not end: the "
        "GPU of another rank has not come to it yet, or the connection between the GPUs is stuck, which "
        "NCCL_DEBUG=INFO may show"
    )
