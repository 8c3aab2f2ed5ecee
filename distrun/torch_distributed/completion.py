"""The thread that completes futures.

A future runs its callbacks where it is completed. They are other people's code, which may take long or wait for further
operations; so it is not the thread that makes an operation's progress that completes its future, but this one. It
starts with the first future, and lives as long as the process.
"""

from __future__ import annotations

import math
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


def is_here() -> bool:
    """Return whether this is the thread that completes futures."""
    return threading.current_thread() is _thread


def expect(
    work: Dated, future: Future[Any], assist: Callable[[], None] | None = None, patience: float = math.inf
) -> None:
    """Note that a future is to be completed when `complete` is called for its work, or the work's deadline is over.

    `assist` is called after `patience` seconds if it is not completed by then; it must not wait.
    """
    global _thread
    expected = _Expected(future, assist, math.inf if assist is None else waking_clock.now() + patience)
    _expected[work] = expected
    if _thread is None:
        with _starting:
            if _thread is None:
                _thread = threading.Thread(target=_serve, name="distrun futures", daemon=True)
                _thread.start()
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


def _serve() -> None:
    while True:
        try:
            work = _done.get(timeout=_time_left())
        except Empty:
            work = None
        if work is None:
            _look()
        else:
            complete_here(work)


def _time_left() -> float | None:
    if _next_look == math.inf:
        return None
    return min(max(_next_look - waking_clock.now(), 0.0), threading.TIMEOUT_MAX)


def _look() -> None:
    """Help what needs it, complete what has taken too long, with an error, and note when to look again."""
    global _next_look
    _next_look = math.inf  # whoever expects something meanwhile rings
    now = waking_clock.now()
    for work, expected in list(_expected.items()):
        if expected.assisted_at <= now:
            assist, expected.assist, expected.assisted_at = expected.assist, None, math.inf
            if assist is not None:
                assist()
        if work.deadline <= now:
            complete_here(work)
        else:
            _next_look = min(_next_look, expected.due(work))
