"""The queue of the coordinator's calls, in the order it schedules them, for any free worker. Server 0 holds it.

To the server, calls and results are bytes, which it does not interpret.
"""

from __future__ import annotations

import threading
from collections import deque


class CallQueue:
    """The pending calls, and the results that the coordinator has not taken yet. Several threads call its methods."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[tuple[int, bytes]] = deque()
        self._results: deque[tuple[int, bytes]] = deque()
        self._is_over = False

    def schedule(self, number: int, call: bytes) -> None:
        """Add the call with this `number`."""
        with self._changed:
            self._calls.append((number, call))
            self._changed.notify_all()  # all, since threads that wait for a result use the same condition

    def next_call(self) -> tuple[int, bytes] | None:
        """Wait for a call, and remove and return it. Return None if there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._is_over)
            return self._calls.popleft() if self._calls else None

    def report(self, number: int, result: bytes) -> None:
        """Add the result of the call with this `number`."""
        with self._changed:
            self._results.append((number, result))
            self._changed.notify_all()

    def next_result(self) -> tuple[int, bytes]:
        """Wait for a result, and remove and return the oldest."""
        with self._changed:
            self._changed.wait_for(lambda: self._results)
            return self._results.popleft()

    def end(self) -> None:
        """Accept no more calls. Pending ones are still executed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
