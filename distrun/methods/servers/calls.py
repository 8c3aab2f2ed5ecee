"""Calls of the coordinator, in the order in which it schedules them, for whichever worker is free. Held by server 0.

What is scheduled is bytes to the server, which never looks into them.
"""

from __future__ import annotations

import threading
from collections import deque


class CallQueue:
    """The calls that wait, and the results that the coordinator has not taken. Its methods are called by threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[tuple[int, bytes]] = deque()
        self._results: deque[tuple[int, bytes]] = deque()
        self._is_over = False

    def schedule(self, number: int, call: bytes) -> None:
        """Add a call."""
        with self._changed:
            self._calls.append((number, call))
            self._changed.notify_all()  # those who wait for a result wait here, too

    def next_call(self) -> tuple[int, bytes] | None:
        """Wait for a call that a worker is to execute; None: there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._is_over)
            return self._calls.popleft() if self._calls else None

    def report(self, number: int, result: bytes) -> None:
        """Keep the result of a call."""
        with self._changed:
            self._results.append((number, result))
            self._changed.notify_all()

    def next_result(self) -> tuple[int, bytes]:
        """Wait for a result that the coordinator has not seen; in the order in which they come."""
        with self._changed:
            self._changed.wait_for(lambda: self._results)
            return self._results.popleft()

    def end(self) -> None:
        """Have no more calls than those that wait."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
