"""The progress engine: the loop that makes progress, and the protocol of the threads that run it.

A thread that waits for its operation makes the progress itself, so a synchronous call pays for no hand-over to another
thread and back. When operations are under way and no thread of this rank waits for them, the engine's own thread, the
progress thread, does it. Otherwise that thread sleeps: there is no cycle and no polling, and an idle rank costs
nothing. `ProgressState` defines which thread has the turn, and how a turn ends.

Where every core is kept busy by a rank, the progress thread would only slow its own rank down, and the rank will most
often wait for the operation soon and make the progress then. There, submitting does not wake the progress thread. A
local peer that has waited for this rank for a while does (a nudge), and so does `poll`.

One pass of the loop has three steps. Tell the coordinator what has been submitted or, on the coordinator, let the
controller decide what is ready. Execute what has been decided, in the order of the decisions. Sleep until there is
more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from distrun.errors import CollectiveError, JobAbortedError, UsageError
from distrun.runtime.backends.groups import WORLD, Groups
from distrun.runtime.engine.execute import Executor
from distrun.runtime.engine.failing import FAREWELL, SHUT_DOWN, Failing
from distrun.runtime.engine.progress_thread import ProgressThread
from distrun.runtime.engine.recorder import Recorder
from distrun.runtime.engine.state import CALLER, IDLE, PROGRESS_THREAD, ProgressState
from distrun.runtime.gpu.monitor import CHECK_INTERVAL, DRAIN_TIMEOUT, GpuMonitor
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.inquiries import Inquiry
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.engine import Awaited
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.timeouts import FOREVER
from distrun.runtime.operations.unreported import UnreportedError
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.shared_memory.segment import LEFT

if TYPE_CHECKING:
    from distrun.runtime.gpu.gpu import Gpu

JOIN_TIMEOUT = 10.0
"""Seconds that `shutdown` gives the progress thread to end: it may be in NCCL, waiting for a rank that never comes."""


class ProgressEngine:
    """The communication of one rank in a job of several ranks. See the module's text."""

    def __init__(
        self,
        local_group: LocalGroup,
        groups: Groups,
        controller: Controller | None,
        operations: PendingOperations,
        negotiator: Negotiator,
        gpu_monitor: GpuMonitor,
        unreported_error: UnreportedError,
        clock: Callable[[], float] = waking_clock.now,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Call `start` before anything is submitted. `groups` move arrays in host memory, `controller` is given on the
        coordinator only, `operations` are entered by this engine, and `unreported_error` is shared with
        `gpu_monitor`."""
        self.backend = groups.backends[WORLD]
        """Moves arrays in host memory among all ranks."""
        self._groups = groups
        self.local_group = local_group
        """The ranks of this host."""
        self._operations = operations
        self._negotiator = negotiator
        self._gpu_monitor = gpu_monitor
        self._unreported_error = unreported_error
        self._clock = clock
        self._state = ProgressState()
        self._recorder = Recorder()
        self._executor = Executor(groups, controller, local_group, self._state)
        self._failing = Failing(
            negotiator.rank, self._state, operations, self._executor, local_group, gpu_monitor, unreported_error
        )
        self._progress_thread = ProgressThread(
            self._state,
            operations,
            negotiator,
            local_group,
            gpu_monitor,
            pause,
            partial(self._run_turn, None),
            self._failing.die,
        )
        self._service_bell = self._progress_thread.bell

    def start(self) -> None:
        """Start the progress thread."""
        self._progress_thread.start()

    def gpu(self) -> Gpu:
        """The GPU of this rank. Raises `UsageError` if it has none that can be used."""
        # While GPUs compute, the host's cores are idle, so the progress thread takes no time from the rank's own work.
        self._progress_thread.wakes_on_submit = True
        return self._gpu_monitor.gpu()

    # Submitting and waiting -------------------------------------------------------------------------------------------

    def submit(self, handle: Handle) -> Handle:
        """Start an operation, which progresses while the caller does other things.

        Raises:
            UsageError: an operation of this name is under way already.
            JobAbortedError: the job has failed or this rank has shut down.
        """
        self._enter(handle)
        if self._state.turn is not IDLE:
            self._ring_bell(handle)
        elif self._progress_thread.wakes_on_submit or self.local_group.is_nudged:
            self._service_bell.ring()
        else:
            self._recorder.held(handle)
        return handle

    def run(self, handle: Handle) -> Handle:
        """Start an operation that the caller will wait for at once. Raises as `submit` does."""
        self._enter(handle)
        if self._state.turn is not IDLE:
            self._ring_bell(handle)
        return handle

    def _ring_bell(self, handle: Handle) -> None:
        """Tell the thread that makes progress, which may be busy for long, about a new operation."""
        self.local_group.bell.ring()
        self._recorder.held(handle)

    def _enter(self, handle: Handle) -> None:
        failure = self._state.failure
        if failure is not None:
            self.error_reported()
            raise JobAbortedError(failure)
        self._operations.enter(handle)
        # The job may have failed in between, and the thread that failed everything under way may have missed this one.
        if self._state.failure is not None:
            self._failing.fail_what_is_left()

    @property
    def is_served_at_once(self) -> bool:
        """Whether the progress thread starts on a submission at once, and does not wait until a peer needs it."""
        return self._progress_thread.wakes_on_submit

    def ensure_progress(self) -> None:
        """Make sure that the operations under way complete although no thread waits for them."""
        if self._state.turn is IDLE:
            self._service_bell.ring()

    def wait(self, handle: Awaited) -> None:
        """Return when `handle` is done, making progress meanwhile if no other thread does.

        Raises:
            UsageError: the caller is a signal handler or finalizer, and interrupted the thread that makes progress.
        """
        state = self._state
        while not handle.done:
            if state.take(CALLER):
                self._run_turn(handle)
            elif state.is_ours():
                raise UsageError(
                    f"{handle.title} cannot be waited for here: a signal handler has interrupted this thread while it "
                    "communicates; let the handler submit, and wait when it has returned"
                )
            else:
                self._recorder.fall_asleep(handle)
                # If the progress thread is blocked in the GPU's library, this thread has to notice a lost rank for it.
                if not state.wait_for(handle) and state.turn is PROGRESS_THREAD and self._gpu_monitor.is_busy:
                    self._gpu_monitor.check_from_waiter()
        if self._recorder.asleep_since:
            self._recorder.wake_up(handle)

    def who_is_missing(self, handle: Handle) -> str:
        """Ask the coordinator which ranks have not submitted an operation, and wait for the answer for a short time."""
        return self._ask(Inquiry(handle))

    def give_up(self, handle: Handle, why: str) -> str:
        """Ask the coordinator to give up an operation unless all ranks have submitted it, and wait for that briefly.
        Returns which ranks are missing if it cannot be given up yet."""
        return self._ask(Inquiry(handle, why))

    def _ask(self, inquiry: Inquiry) -> str:
        self._negotiator.inquiries.new.append(inquiry)
        self.local_group.bell.ring()
        self.wait(inquiry)
        return inquiry.answer or ""

    def error_reported(self) -> None:
        """Note that a call raises, so that the caller learns of the error."""
        self._unreported_error.reported()

    # The progress loop ------------------------------------------------------------------------------------------------

    def _run_turn(self, handle: Awaited | None) -> None:
        """Make progress until `handle` is done or, given None, until nothing is under way. This thread has the turn."""
        state = self._state
        try:
            if state.is_turn_due:
                state.is_turn_due = False
                self._negotiator.look_after_host()
            self.local_group.may_spin = handle is not None
            self.local_group.before_sleep = None if handle is None else partial(self._recorder.fall_asleep, handle)
            self._make_progress(handle)
        except CollectiveError as error:
            self._failing.abort(str(error))
        except BaseException as error:
            if handle is None:
                self._failing.die(error)
            else:
                kind, rank = type(error).__name__, self._negotiator.rank
                self._failing.abort(f"rank {rank} was interrupted while communicating: {kind}: {error}")
                raise
        finally:
            # The turn is given back without a function call: an interrupt could come there, and it would stay taken.
            self.local_group.before_sleep = None  # it refers to a handle, and through it to this engine
            state.turn = IDLE
            state.lock.release()
            if state.waiters:
                state.notify()
            # During the turn other threads may have failed the job, or entered an operation after it failed. They did
            # not get the turn, and rely on this thread to fail what is under way.
            if state.failure is not None:
                self._failing.fail_what_is_left()
            if handle is not None and self._progress_thread.has_work():
                self._service_bell.ring()

    def _make_progress(self, handle: Awaited | None) -> None:
        state, operations, negotiator, gpu_monitor = self._state, self._operations, self._negotiator, self._gpu_monitor
        # The shortest way: two ranks with a single operation under way may need no decision at all.
        is_well = state.failure is None and gpu_monitor.trouble is None
        if handle is not None and negotiator.may_cross and is_well and negotiator.cross():
            self._act()
            if handle.done:
                return
        began = time.monotonic()
        while True:
            if state.failure is not None or gpu_monitor.trouble is not None:
                raise JobAbortedError(state.failure or gpu_monitor.trouble)
            began = waking_clock.note_sleep(began, 0.0)  # the process may have been stopped since then
            negotiator.progress()
            if operations.finished or operations.decided:
                self._act()
                began = time.monotonic()
            if negotiator.is_across_hosts:
                negotiator.check_hosts()
            if handle is None:
                began = waking_clock.note_sleep(began, 0.0)
                negotiator.check_stalls()
                gpu_monitor.check()
                if state.is_leaving or (operations.is_empty and negotiator.is_idle):
                    return
            elif handle.done:
                return
            if not self._has_news():
                waking_clock.note_sleep(began, 0.0)
                self._sleep(handle)
                began = self.local_group.watched_since

    def _act(self) -> None:
        """Complete what is finished, and execute what has been decided."""
        operations = self._operations
        self._recorder.cycle(operations)
        if operations.finished:
            self._executor.complete(operations.finished)
            operations.finished.clear()  # only now: after an interrupt, the thread that fails the rest finds them here
        while operations.decided:
            failure = self._state.failure
            if failure is not None:  # set in between, by a signal handler for instance: nothing new is begun
                raise JobAbortedError(failure)
            self._executor.execute(operations.decided[0])
            operations.decided.popleft()  # only now, for the same reason

    def _has_news(self) -> bool:
        """Whether there is anything to do. Called again and again while spinning, so it has to be cheap."""
        if self._negotiator.has_news():
            return True
        return self._state.failure is not None or self._gpu_monitor.trouble is not None

    def _sleep(self, handle: Awaited | None) -> None:
        """Wait until there is news, a check is due, or the deadline of `handle` has come."""
        negotiator, now = self._negotiator, self._clock()
        until = negotiator.next_look(now)
        if handle is not None:
            until = min(until, handle.deadline)
        if self._gpu_monitor.is_busy:
            until = min(until, now + CHECK_INTERVAL)
        waiting_for = self._operations.describe
        if not self.local_group.wait(self._has_news, waiting_for, until, FOREVER, negotiator.is_follower):
            negotiator.check_stalls()

    # Failing and leaving ----------------------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Let nothing complete any longer, for a reason that the ranks do not know yet. Any thread may call this.

        The other ranks learn of it when the thread that has the turn, or the next one that takes it, finds the failure.
        """
        self._failing.fail(reason)

    @property
    def failure(self) -> str | None:
        """The reason why nothing can complete any longer, or None."""
        return self._state.failure

    def watch(self, on_failure: Callable[[], None]) -> None:
        """Set the function that is called when the failure has been set: once, by any thread. It must not block.

        It replaces the function given before. Check `failure` afterwards, which may have been set already.
        """
        self._state.on_failure = on_failure

    def disown(self) -> None:
        """In a forked child of the rank that owns this engine: make sure that nothing of it is touched."""
        self.local_group.disown()
        self._state.disown("a forked child of a rank is not a rank: call collectives in the rank itself")

    def shutdown(self, farewell: str = FAREWELL) -> str | None:
        """Leave the job. Operations under way fail here, and so do the operations on other ranks that need this rank.

        Operations queued on the GPU complete before, unless something is wrong there.

        Args:
            farewell: the reason that the other ranks get.

        Returns:
            The error that no call has raised yet, or None.
        """
        state, local_group = self._state, self.local_group
        self._failing.farewell = farewell
        state.is_leaving = True
        local_group.stop_reason = local_group.stop_reason or SHUT_DOWN
        state.fail(SHUT_DOWN)
        self._service_bell.force()
        local_group.bell.force()
        if state.is_ours():
            # In a signal handler. The thread that it interrupted continues, finds the failure, and ends its turn.
            local_group.announce(LEFT, farewell)
            return None
        is_hurried = farewell != FAREWELL
        self._progress_thread.join(DRAIN_TIMEOUT if is_hurried else JOIN_TIMEOUT)
        if self._progress_thread.is_alive():
            self._gpu_monitor.abort("distrun.shutdown() was called while an operation was being queued")
            self._progress_thread.join()
        state.take_at_last()
        self._failing.abort(state.failure or "")
        state.give_back()
        self._gpu_monitor.close(is_hurried)
        self._groups.close()
        self._negotiator.close()
        local_group.close(is_hurried)
        return self._unreported_error.text
