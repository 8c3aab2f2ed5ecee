"""The thread that completes futures.

A future runs its callbacks in the thread that completes it. They are users' code, which may take long or wait for
further operations, so a future is completed by this thread and not by the thread that makes the operation's progress.
The thread starts with the first future, and runs until the process ends. If a callback may wait for something, another
thread takes over, and this one ends with the callback.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from distrun.runtime.operations import waking_clock

if TYPE_CHECKING:
    from torch.futures import Future

    from distrun.torch_distributed.interface.native_work import PythonWork


@dataclass
class _Expected:
    """A future that is to be completed."""

    future: Future[Any]
    assist: Callable[[], None] | None
    """Called once at the time `assisted_at`, if the future is not completed by then."""
    assisted_at: float = math.inf

    def due(self, work: PythonWork) -> float:
        """Return the time of the next check, by the waking clock."""
        return min(work.deadline, self.assisted_at)


_done: SimpleQueue[PythonWork | None] = SimpleQueue()
_expected: dict[PythonWork, _Expected] = {}
_next_look = math.inf  # by the waking clock: not later than the first of `_expected` is due
_thread: threading.Thread | None = None
_starting = threading.Lock()


class _Thread(threading.Thread):
    """The thread that completes futures, or a former one that still runs a callback."""

    def __init__(self) -> None:
        super().__init__(name="distrun futures", daemon=True)

    def run(self) -> None:
        """Complete futures until another thread takes over."""
        _look()
        while self is _thread:
            try:
                work = _done.get(timeout=_time_left())
            except Empty:
                work = None
            if work is None:
                _look()
            else:
                complete_here(work)


def is_here() -> bool:
    """Return whether this is a thread that completes futures."""
    return isinstance(threading.current_thread(), _Thread)


def before_waiting() -> None:
    """Start another thread to complete futures, if this is the present one: one of its callbacks may wait next."""
    if threading.current_thread() is _thread:
        _start()


def _start() -> None:
    global _thread
    _thread = _Thread()
    _thread.start()


def expect(
    work: PythonWork, future: Future[Any], assist: Callable[[], None] | None = None, assist_after: float = math.inf
) -> None:
    """Arrange for `future` to be completed when `complete` is called for its work, or after the work's deadline.

    `assist` is called after `assist_after` seconds if the future is not completed by then. It must not wait.
    """
    expected = _Expected(future, assist, math.inf if assist is None else waking_clock.now() + assist_after)
    _expected[work] = expected
    if _thread is None:
        with _starting:
            if _thread is None:
                _start()
    if expected.due(work) < _next_look:
        _done.put(None)


def complete(work: PythonWork) -> None:
    """Queue the future of a work whose operations are done for completion. Any thread may call this, more than once."""
    _done.put(work)


def complete_here(work: PythonWork) -> None:
    """Complete the future of a work in this thread, if that has not been done."""
    expected = _expected.pop(work, None)
    if expected is not None:
        expected.future.set_result(None)


def _time_left() -> float | None:
    if _next_look == math.inf:
        return None
    return min(max(_next_look - waking_clock.now(), 0.0), threading.TIMEOUT_MAX)


def _look() -> None:
    """Call `assist` for futures that are late, complete those past their deadline with an error, and set the time of
    the
    next check."""
    global _next_look
    _next_look = math.inf  # threads that add a future meanwhile wake this one
    now = waking_clock.now()
    for work, expected in list(_expected.items()):
        if expected.assisted_at <= now:
            assist, expected.assist, expected.assisted_at = expected.assist, None, math.inf
            if assist is not None:
                assist()
        if work.deadline <= now:
            complete_here(work)
            if threading.current_thread() is not _thread:  # another thread has taken over, and checks the rest
                return
        else:
            _next_look = min(_next_look, expected.due(work))


def _forget() -> None:
    """Reset the state in a forked child of a rank: the thread and its futures belong to the parent."""
    global _done, _expected, _next_look, _thread, _starting
    _done, _expected, _next_look, _thread, _starting = SimpleQueue(), {}, math.inf, None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
