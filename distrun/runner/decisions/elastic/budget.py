"""The budget of an elastic job: how many failures it survives, and when ranks that all fail are started again."""

from __future__ import annotations

from collections import deque

from distrun.runner.decisions.backoff import backoff

INCIDENT = 2.0  # seconds: deaths of processes within them count as one failure, such as the shutdown of a host
LONGEST_PAUSE = 60.0  # seconds
SAME_FAILURES = 3  # in a row, after which the ranks are not started again


class Budget:
    """The number of restarts that are left within a window of time."""

    def __init__(self, limit: int, window: float | None) -> None:
        """`limit` restarts are allowed within `window` seconds, or in the whole job without a window."""
        self._limit = limit
        self._window = window
        self._charged: deque[float] = deque()

    def charge(self, now: float, born: float | None = None) -> bool:
        """Count a failure, and return whether there is a restart left for it.

        A failure that belongs to the same incident as the last one costs nothing. So a process that was started after
        that incident (`born`) is an incident of its own.

        Args:
            now: the time of the failure.
            born: the time when the failed process was started. None = this is an incident of its own.
        """
        last = self._charged[-1] if self._charged else None
        if last is not None and born is not None and born <= last and now < last + INCIDENT:
            return True
        if self.left(now) <= 0:
            return False
        self._charged.append(now)
        return True

    def left(self, now: float) -> int:
        """Return how many restarts are left at `now`."""
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


class Rounds:
    """Generations in a row that ended because their own ranks failed, and that had no survivors.

    After the first of them the ranks are started again at once. After the n-th, they are started again
    2 ** (n - 1) seconds after it began, at most `LONGEST_PAUSE` seconds.
    """

    def __init__(self) -> None:
        self._places: set[str | None] = set()
        """The places where members of the present generation have failed."""
        self.count = 0
        """The number of these generations in a row."""
        self._same = 0
        self._place = ""
        """The place where the last one failed. Empty: it is not known, or there are several."""
        self.start_at: float | None = None
        """The time when the ranks may be started again. None = the present generation may have survivors."""

    def failed(self, place: str | None) -> None:
        """Note that a member of the present generation has failed.

        Args:
            place: see `Failure.place`. None: the cause is outside the script.
        """
        self._places.add(place)

    def close(self, begun: float) -> float:
        """Note that the present generation, begun at `begun`, has no survivors, and return when the next may begin."""
        if self.start_at is not None:
            return self.start_at
        self.start_at = begun
        if not self._places or None in self._places:
            self._forget()
            return begun
        self.count += 1
        (place,) = self._places if len(self._places) == 1 else ("",)
        self._same = self._same + 1 if place and place == self._place else 1
        self._place = place or ""
        self._places.clear()
        if self.count > 1:
            self.start_at += backoff(2.0, LONGEST_PAUSE, self.count - 1)
        return self.start_at

    def begin(self, has_survivors: bool) -> None:
        """Note that the next generation begins. With survivors, the row of failures is over."""
        self.start_at = None
        if has_survivors:
            self._forget()

    def _forget(self) -> None:
        self.count, self._same, self._place = 0, 0, ""
        self._places.clear()

    @property
    def futility(self) -> str:
        """The clause that says why the ranks should not be started again. Empty: they may be."""
        if self._same < SAME_FAILURES:
            return ""
        return (
            f"the ranks of {self._same} generations in a row have failed so ({self._place}), and are not started again "
            "(--max-restarts N starts them N times all the same)"
        )
