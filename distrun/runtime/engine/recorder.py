"""The engine's records of who submits and who sleeps; that operations are done is recorded where they are executed."""

from __future__ import annotations

from distrun.runtime.operations.engine import Awaited
from distrun.runtime.operations.handle import Handle
from distrun.tracing import recording

_RECORDED_FROM = 16 << 10  # bytes of an array whose submission is recorded: for small ones that would cost too much


class Recorder:
    """Records in the ring of this process, if there is one."""

    def __init__(self) -> None:
        self.asleep_since = 0
        """When a thread that waits for its operation was put to sleep, as `time.monotonic_ns()`; 0: none was."""
        self._ring = recording.ring

    def held(self, handle: Handle) -> None:
        """Record an operation of which the coordinator may be told late."""
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
        """Record that the thread which was put to sleep is awake."""
        began, self.asleep_since = self.asleep_since, 0
        # A wait that fails is the last thing that this rank has done, and stays to be seen as such.
        if self._ring is not None and getattr(handle, "error", None) is None:
            self._ring.waited(began)

    def cycle(self, decisions: int) -> None:
        """Record that so many decisions of the coordinator came in, if that is wanted."""
        if self._ring is not None and self._ring.marks_cycles:
            self._ring.cycle(decisions)
