"""The thread that completes futures.

A future runs its callbacks where it is completed. They are other people's code, which may take long or wait for further
operations; so it is not the thread that makes an operation's progress that completes its future, but this one. It
starts with the first future, and lives as long as the process.
"""

from __future__ import annotations

import math
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from distrun.runtime.operations import waking_clock

if TYPE_CHECKING:
    from torch.futures import Future


class Dated(Protocol):
    """A work, whose time is limited."""

    deadline: float


_done: SimpleQueue[Dated | None] = SimpleQueue()
_expected: dict[Dated, Future[Any]] = {}
_next_look = math.inf  # by the waking clock; the earliest deadline of what is expected, or earlier
_thread: threading.Thread | None = None
_starting = threading.Lock()


def is_here() -> bool:
    """Return whether this is the thread that completes futures."""
    return threading.current_thread() is _thread


def expect(work: Dated, future: Future[Any]) -> None:
    """Note that a future is to be completed when `complete` is called for its work, or the work's deadline is over."""
    global _thread
    _expected[work] = future
    if _thread is None:
        with _starting:
            if _thread is None:
                _thread = threading.Thread(target=_serve, name="distrun futures", daemon=True)
                _thread.start()
    if work.deadline < _next_look:
        _done.put(None)


def complete(work: Dated) -> None:
    """Have the future of a work completed, whose operations are done. Any thread may call this, and more than once."""
    _done.put(work)


def _serve() -> None:
    while True:
        try:
            work = _done.get(timeout=_time_left())
        except Empty:
            work = None
        if work is None:
            _look()
        else:
            _complete(work)


def _time_left() -> float | None:
    if _next_look == math.inf:
        return None
    return min(max(_next_look - waking_clock.now(), 0.0), threading.TIMEOUT_MAX)


def _look() -> None:
    """Complete what has taken too long, with an error, and note when to look again."""
    global _next_look
    _next_look = math.inf  # whoever expects something meanwhile rings
    now = waking_clock.now()
    waiting = list(_expected)
    for work in waiting:
        if work.deadline <= now:
            _complete(work)
    _next_look = min((work.deadline for work in waiting if work.deadline > now), default=math.inf)


def _complete(work: Dated) -> None:
    future = _expected.pop(work, None)
    if future is not None:
        future.set_result(None)
