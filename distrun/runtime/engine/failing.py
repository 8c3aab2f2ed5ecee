"""Failing: how this rank stops completing operations, and how the other ranks learn of it."""

from __future__ import annotations

import logging

from distrun.errors import JobAbortedError
from distrun.runtime.engine.execute import Executor
from distrun.runtime.engine.state import CALLER, ProgressState
from distrun.runtime.gpu.monitor import GpuMonitor
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.negotiation.stalls import UNEQUAL_STEPS
from distrun.runtime.operations.unreported import UnreportedError
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.shared_memory.segment import FAILED, LEFT

log = logging.getLogger("distrun")

FAREWELL = f"it called shutdown() or its script ended; {UNEQUAL_STEPS}"
"""Why a rank has left, unless it gives another reason."""
SHUT_DOWN = "distrun.shutdown() was called"
"""Why operations under way fail when the rank shuts down."""


class Failing:
    """The failure of an engine, which is set once and stays. Its rules are in `ProgressState`."""

    farewell = FAREWELL
    """The reason that other ranks get when this rank leaves the job."""

    def __init__(
        self,
        rank: int,
        state: ProgressState,
        operations: PendingOperations,
        executor: Executor,
        local_group: LocalGroup,
        gpu_monitor: GpuMonitor,
        unreported_error: UnreportedError,
    ) -> None:
        """`rank` is this rank. The other arguments are the engine's."""
        self._rank = rank
        self._state = state
        self._operations = operations
        self._executor = executor
        self._local_group = local_group
        self._gpu_monitor = gpu_monitor
        self._unreported_error = unreported_error

    def abort(self, reason: str) -> None:
        """Let nothing complete any longer: what is under way fails, and what is submitted later, on all ranks.

        Only for the thread that has the turn.
        """
        self._announce(reason)
        self._fail_operations(reason)
        if not self._state.is_leaving:
            self._gpu_monitor.abort(reason)

    def fail_what_is_left(self) -> None:
        """After the job has failed: fail what is under way, unless another thread has the turn and therefore will."""
        while not self._operations.is_empty and self._state.take(CALLER):
            self._fail_operations(self._state.failure or "")
            self._state.give_back()

    def die(self, error: BaseException) -> None:
        """Fail the job for an exception in the progress thread, though the script may never wait for anything."""
        reason = f"the progress thread of rank {self._rank} failed: {type(error).__name__}: {error}"
        log.error("%s", reason, exc_info=error)
        self._unreported_error.note(reason)  # before any other thread can learn of the failure
        self._announce(reason)
        self._gpu_monitor.abort(reason)
        self._local_group.bell.force()  # for the thread that has the turn
        self.fail_what_is_left()

    def fail(self, reason: str) -> None:
        """Fail for a reason that the ranks do not know yet. See `ProgressEngine.fail`."""
        local_group = self._local_group
        local_group.stop_reason = reason
        self._state.fail(reason)
        self._gpu_monitor.abort(reason)
        local_group.service_bells[local_group.own].force()
        local_group.bell.force()  # for the thread that has the turn
        self.fail_what_is_left()

    def _announce(self, reason: str) -> None:
        self._state.fail(reason)
        if self._state.is_leaving:
            self._local_group.announce(LEFT, self.farewell)
        else:
            self._local_group.announce(FAILED, reason)

    def _fail_operations(self, reason: str) -> None:
        operations = self._operations
        self._executor.complete(operations.finished)
        operations.finished.clear()
        handles = operations.take_all()
        for handle in handles:
            handle.error = JobAbortedError(reason)
        self._executor.tell(handles)
