"""The thread that completes futures.

A future runs its callbacks where it is completed. They are other people's code, which may take long or wait for further
operations; so it is not the thread that makes an operation's progress that completes its future, but this one. It
starts with the first future, and lives as long as the process. Where a callback may wait for something, another thread
takes its place, and it ends with the callback.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from distrun.runtime.operations import waking_clock

if TYPE_CHECKING:
    from torch.futures import Future


class Dated(Protocol):
    """A work, whose time is limited."""

    deadline: float


@dataclass
class _Expected:
    """A future that is to be completed."""

    future: Future[Any]
    assist: Callable[[], None] | None
    """Called once at the time `assisted_at`, if the future is not completed by then."""
    assisted_at: float = math.inf

    def due(self, work: Dated) -> float:
        """Return when to look at it, by the waking clock."""
        return min(work.deadline, self.assisted_at)


_done: SimpleQueue[Dated | None] = SimpleQueue()
_expected: dict[Dated, _Expected] = {}
_next_look = math.inf  # by the waking clock; when the first of what is expected is due, or earlier
_thread: threading.Thread | None = None
_starting = threading.Lock()


class _Thread(threading.Thread):
    """The thread, or one in whose place another has come."""

    def __init__(self) -> None:
        super().__init__(name="distrun futures", daemon=True)

    def run(self) -> None:
        """Complete futures until another thread does."""
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
    """Let another thread complete futures from now on, if this is the one: a callback is about to wait, or may be."""
    if threading.current_thread() is _thread:
        _start()


def _start() -> None:
    global _thread
    _thread = _Thread()
    _thread.start()


def expect(
    work: Dated, future: Future[Any], assist: Callable[[], None] | None = None, assist_after: float = math.inf
) -> None:
    """Note that a future is to be completed when `complete` is called for its work, or the work's deadline is over.

    `assist` is called after `assist_after` seconds if it is not completed by then; it must not wait.
    """
    expected = _Expected(future, assist, math.inf if assist is None else waking_clock.now() + assist_after)
    _expected[work] = expected
    if _thread is None:
        with _starting:
            if _thread is None:
                _start()
    if expected.due(work) < _next_look:
        _done.put(None)


def complete(work: Dated) -> None:
    """Have the future of a work completed, whose operations are done. Any thread may call this, and more than once."""
    _done.put(work)


def complete_here(work: Dated) -> None:
    """Complete the future of a work in this thread, if that has not been done."""
    expected = _expected.pop(work, None)
    if expected is not None:
        expected.future.set_result(None)


def _time_left() -> float | None:
    if _next_look == math.inf:
        return None
    return min(max(_next_look - waking_clock.now(), 0.0), threading.TIMEOUT_MAX)


def _look() -> None:
    """Help what needs it, complete what has taken too long, with an error, and note when to look again."""
    global _next_look
    _next_look = math.inf  # threads that expect something meanwhile ring
    now = waking_clock.now()
    for work, expected in list(_expected.items()):
        if expected.assisted_at <= now:
            assist, expected.assist, expected.assisted_at = expected.assist, None, math.inf
            if assist is not None:
                assist()
        if work.deadline <= now:
            complete_here(work)
            if threading.current_thread() is not _thread:  # which looks itself
                return
        else:
            _next_look = min(_next_look, expected.due(work))


def _forget() -> None:
    """This is a forked child of a rank: the thread is the parent's, and so are its futures."""
    global _done, _expected, _next_look, _thread, _starting
    _done, _expected, _next_look, _thread, _starting = SimpleQueue(), {}, math.inf, None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
