"""The engine's records of submissions and sleeping threads. Completions are recorded where operations are executed."""

from __future__ import annotations

from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.operations.engine import Awaited
from distrun.runtime.operations.handle import Handle
from distrun.tracing import recording

_RECORDED_FROM = 16 << 10  # bytes of an array whose submission is recorded: for smaller ones the record costs too much


class Recorder:
    """Records in the ring of this process, if there is one."""

    def __init__(self) -> None:
        self.asleep_since = 0
        """When a thread that waits for its operation was put to sleep, as `time.monotonic_ns()`, or 0 if none was."""
        self._ring = recording.ring

    def held(self, handle: Handle) -> None:
        """Record an operation that the coordinator may learn of late."""
        if self._ring is not None:
            for array in handle.inputs:
                if array.nbytes >= _RECORDED_FROM:
                    self._ring.held(handle.label)
                    break

    def fall_asleep(self, handle: Awaited) -> None:
        """Record that a thread begins to sleep until its operation is done."""
        if self._ring is not None and not self.asleep_since:
            self.asleep_since = self._ring.waiting(handle.label if isinstance(handle, Handle) else handle.title)

    def wake_up(self, handle: Awaited) -> None:
        """Record that the thread that was put to sleep is awake."""
        began, self.asleep_since = self.asleep_since, 0
        # If the wait fails, the record stays open, and shows the wait as the last thing that this rank did.
        if self._ring is not None and getattr(handle, "error", None) is None:
            self._ring.waited(began)

    def cycle(self, operations: PendingOperations) -> None:
        """Record how many of the coordinator's decisions came in, if cycles are to be recorded."""
        if self._ring is not None and self._ring.marks_cycles:
            self._ring.cycle(len(operations.finished) + len(operations.decided))
