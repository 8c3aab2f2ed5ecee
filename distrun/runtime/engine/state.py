"""The state of an engine: which thread has the turn to make progress, and why nothing can complete any longer."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrun.runtime.operations.engine import Awaited

RECHECK = 1.0
"""Seconds after which a thread that waits for the end of another thread's turn checks what else may be wrong."""


class Turn(enum.Enum):
    """The thread that makes progress now: none, one that waits for its operation, or the progress thread."""

    IDLE = "idle"
    CALLER = "caller"
    PROGRESS_THREAD = "progress thread"


# In Python 3.11 an attribute of an Enum costs as much as a call, and these are read several times per operation.
IDLE, CALLER, PROGRESS_THREAD = Turn.IDLE, Turn.CALLER, Turn.PROGRESS_THREAD


class ProgressState:
    """The turn, which one thread has at a time, and the failure, which is set once and stays.

    ::

                    wait(): a thread that waits for its operation takes the turn
               .---------------------------------------------------------------> CALLER
               |    it gives it back when its operation is done or the job fails ---'
        IDLE --+
               |    the progress thread finds work, and no thread that waits for it
               '---------------------------------------------------------------> PROGRESS_THREAD
                    it gives it back when nothing is under way or the job fails ----'

        failure: None ------------------------------------------------------------> why
                    by the thread that has the turn: a rank is gone, an exception, an interrupt
                    by the progress thread, which dies of an exception between two turns
                    by shutdown(), in any thread or signal handler; `is_leaving` is set just before
                    by a fork, in the child

    The two are independent, except for three rules:

    1. Any thread, and any signal handler, may enter an operation. Only the thread that has the turn takes one out.
    2. A thread that sets the failure, or enters an operation and then sees a failure, takes the turn to fail what is
       under way. If another thread has the turn, that thread does so once it has given the turn back.
    3. A signal handler that interrupted the thread with the turn does not get it, and must not wait for it. It may
       submit, and it may shut down, which the interrupted thread completes. A child that is forked there keeps the
       turn, and the failure ends it.
    """

    def __init__(self) -> None:
        self.turn = IDLE
        self.failure: str | None = None
        """Why nothing can complete any longer."""
        self.is_leaving = False
        """Whether the reason for the failure is that this rank leaves the job."""
        self.is_turn_due = False
        """Whether the progress thread has to take a turn though nothing is under way: another host sent an alarm."""
        # Re-entrant, so that a signal handler learns in one step, without a race, whether its own thread has the turn.
        self.lock = threading.RLock()
        """Held by the thread that has the turn."""
        self._changed = threading.Condition()
        self.on_failure: Callable[[], None] = lambda: None
        """Called once, by any thread, when the failure has been set. It must not block."""
        self.waiters = 0
        """The number of threads in `wait_for`. While it is not zero, `notify` has to be called."""

    def take(self, turn: Turn) -> bool:
        """Take the turn unless another thread has it, or the one that this signal handler interrupted. Never waits."""
        if not self.lock.acquire(False):
            return False
        if self.turn is not IDLE:
            self.lock.release()
            return False
        self.turn = turn
        return True

    def take_at_last(self) -> None:
        """Take the turn, waiting for the thread that has it. This thread must not have it already."""
        self.lock.acquire()
        self.turn = CALLER

    def give_back(self) -> None:
        """Give the turn back, and notify the threads that wait for it."""
        self.turn = IDLE
        self.lock.release()
        if self.waiters:
            self.notify()

    def is_ours(self) -> bool:
        """Whether this thread has the turn. If so, this is a signal handler that interrupted it."""
        if not self.lock.acquire(False):
            return False
        is_ours = self.turn is not IDLE
        self.lock.release()
        return is_ours

    def wait_for(self, handle: Awaited) -> bool:
        """Sleep until `handle` is done or the turn is free. Returns False if that takes longer than `RECHECK`."""
        with self._changed:
            self.waiters += 1
            try:
                # No wake-up is lost. The thread that has the turn sets `done`, or gives the turn back, before it reads
                # `waiters`. So either this thread sees that here, or the other one sees the waiter, and cannot notify
                # before this thread sleeps: `notify` needs `_changed`, which is held here until then.
                if handle.done or self.turn is IDLE:
                    return True
                return self._changed.wait(RECHECK)
            finally:
                self.waiters -= 1

    def notify(self) -> None:
        """Wake the threads in `wait_for`: an operation is done or the turn is free."""
        with self._changed:
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """Set the failure. The first reason stays."""
        if self.failure is None:
            self.failure = reason
            self.on_failure()

    def disown(self, reason: str) -> None:
        """In a forked child: fail, and replace the locks, which threads of the parent may have held at the fork."""
        is_ours = self.is_ours()
        self.fail(reason)
        self.lock, self._changed, self.waiters = threading.RLock(), threading.Condition(), 0
        if is_ours:
            # A signal handler forked: the code that it interrupted continues in the child, too, and will release this.
            self.lock.acquire()
        else:
            self.turn = IDLE
