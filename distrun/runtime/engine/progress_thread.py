"""The progress thread of an engine: it makes progress when operations are under way and no other thread waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

from distrun.runtime.engine.state import IDLE, PROGRESS_THREAD, ProgressState
from distrun.runtime.gpu.monitor import CHECK_INTERVAL, GpuMonitor
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.transport.local_group import LocalGroup

LINGER = 0.0002
"""Seconds without a new submission after which the progress thread starts on small operations."""
LARGE = 256 << 10
"""Bytes of a tensor that make the progress thread start at once."""


class ProgressThread:
    """Sleeps until the service bell rings, another host sends an alarm, or a check of the GPU is due."""

    def __init__(
        self,
        state: ProgressState,
        operations: PendingOperations,
        negotiator: Negotiator,
        local_group: LocalGroup,
        gpu_monitor: GpuMonitor,
        pause: Callable[[float], None],
        run_turn: Callable[[], None],
        die: Callable[[BaseException], None],
    ) -> None:
        """`run_turn` makes progress until nothing is under way, and the thread has taken the turn before the call.
        `die` is called with the exception that ends the thread."""
        self._state = state
        self._operations = operations
        self._negotiator = negotiator
        self._local_group = local_group
        self._gpu_monitor = gpu_monitor
        self._pause = pause
        self._run_turn = run_turn
        self._die = die
        # Waiting for another host leaves a core idle. And its ranks cannot see what is submitted here, and nudge.
        self.wakes_on_submit = local_group.spare_cores > 0 or negotiator.is_across_hosts
        """Whether the thread starts on a submission at once, and does not wait until a peer needs it."""
        self.bell = local_group.service_bells[local_group.own]
        """Wakes the thread."""
        self._thread = threading.Thread(target=self._serve, name="distrun", daemon=True)
        self.start = self._thread.start
        self.join = self._thread.join
        self.is_alive = self._thread.is_alive

    def _serve(self) -> None:
        try:
            sleeper = self._local_group.service_sleeper(self._negotiator.speaks_for_host)
            while not self._state.is_leaving:
                self.bell.arm()
                # Arm before the last check: a bell that rings in between is not lost, it ends the sleep at once.
                if not (self._state.is_leaving or self.has_work()):
                    nap = CHECK_INTERVAL if self._gpu_monitor.is_busy else self._local_group.longest_nap()
                    if sleeper.sleep(nap):
                        self._state.is_turn_due = True  # a peer has ended, and the other hosts have to learn of it
                self.bell.disarm()
                self.serve_once()
        except BaseException as error:
            self._die(error)
        finally:
            # They refer to the engine. Without this cycle its shared memory is freed with the last reference to it, and
            # not at some later garbage collection.
            del self._run_turn, self._die

    def serve_once(self) -> None:
        """After a wake-up: check the GPU and the other hosts, and take a turn if there is work."""
        state = self._state
        if self._gpu_monitor.is_busy and self._gpu_monitor.check() is not None:
            self._local_group.bell.force()  # for the thread that has the turn; if none has, this one takes it, aborting
        if not state.is_leaving and self._negotiator.hear_alarms():
            state.is_turn_due = True  # the thread that has the turn may have read its messages before this alarm
        if self.wakes_on_submit:
            self._linger()
        if state.failure is None and state.take(PROGRESS_THREAD):
            self._run_turn()

    def has_work(self) -> bool:
        """Whether this thread should take a turn although its bell has not rung."""
        state, operations = self._state, self._operations
        is_waiting = bool(operations.outbox or operations.pending)
        if not (is_waiting or state.is_turn_due or self._negotiator.is_sending):
            return False
        if state.turn is not IDLE or state.failure is not None:
            return False
        return state.is_turn_due or not is_waiting or self.wakes_on_submit or self._local_group.is_nudged

    def _linger(self) -> None:
        """Let a burst of operations accumulate before starting on it.

        Otherwise a thread that submits hundreds of operations in a row would be interrupted for the first few, and
        again for the next few. If it then waits for one of them, it makes progress at once, since the progress thread
        does not have the turn while it lingers.
        """
        seen = -1
        outbox = self._operations.outbox
        while self._state.turn is IDLE and seen != len(outbox):
            seen = len(outbox)
            if any(array.nbytes >= LARGE for handle in list(outbox) for array in handle.inputs):
                return
            self._pause(LINGER)
