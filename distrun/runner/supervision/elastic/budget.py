"""The budget of an elastic job: how many failures are made good."""

from __future__ import annotations

from collections import deque

INCIDENT = 2.0  # seconds within which the deaths of processes count as one failure: a host that is shut down, say


class Budget:
    """The failures that are made good within a window of time."""

    def __init__(self, limit: int, window: float | None) -> None:
        """
        Args:
            limit: how many within the window.
            window: seconds; None = the whole job.
        """
        self._limit = limit
        self._window = window
        self._charged: deque[float] = deque()

    def charge(self, now: float, born: float | None = None) -> bool:
        """Return whether one more failure is made good, and count it.

        It is not counted if it belongs to the same incident as the last one.

        Args:
            now: the time of the failure.
            born: the time at which what failed was started; None = it is an incident of its own.
        """
        last = self._charged[-1] if self._charged else None
        if last is not None and born is not None and born <= last and now < last + INCIDENT:
            return True
        if self.left(now) <= 0:
            return False
        self._charged.append(now)
        return True

    def left(self, now: float) -> int:
        """Return how many more failures would be made good now."""
        while self._window is not None and self._charged and self._charged[0] <= now - self._window:
            self._charged.popleft()
        return self._limit - len(self._charged)

    def describe(self, now: float) -> str:
        """Return a text such as `9 of 10 restarts are left within the hour`."""
        left = self.left(now)
        return f"{left} of {self._limit} restarts {'is' if left == 1 else 'are'} left{self._within}"

    @property
    def exhausted(self) -> str:
        """A text such as `all 10 restarts within the hour are used up`."""
        if self._limit == 0:
            return "no restart is allowed"
        return f"all {self._limit} restarts{self._within} are used up"

    @property
    def _within(self) -> str:
        if self._window is None:
            return ""
        return " within the hour" if self._window == 3600 else f" within {self._window:g} s"
