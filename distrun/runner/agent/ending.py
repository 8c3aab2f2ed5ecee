"""The schedule of the signals that an agent sends to end its descendants."""

from __future__ import annotations

import signal

_KILL_INTERVAL = 0.05  # seconds between two rounds of SIGKILL: a process may fork between being listed and being killed
_KILL_TIMEOUT = 5.0  # seconds of such rounds after which a process counts as unkillable


class Termination:
    """SIGTERM once, SIGKILL repeatedly after the grace, and then giving up. All times come from one monotonic clock."""

    def __init__(self, grace: float, now: float, delay: float = 0.0) -> None:
        """
        Args:
            grace: the seconds between SIGTERM and SIGKILL. 0 means no SIGTERM.
            now: the time.
            delay: the seconds before the first signal.
        """
        self.ended: set[int] = set()
        """The ids of all processes that were sent a signal."""
        self._next = now + delay
        self._signal = signal.SIGTERM if grace > 0 else signal.SIGKILL
        self._kill_at = self._next + grace
        self._give_up_at = self._kill_at + _KILL_TIMEOUT

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next signal is due."""
        return max(0.0, self._next - now)

    def is_hopeless(self, now: float) -> bool:
        """Whether SIGKILL has had no effect for `_KILL_TIMEOUT`."""
        return now > self._give_up_at

    def due_signal(self, now: float) -> int | None:
        """Return the signal to send now, or None. A signal counts as sent: the next call returns the one after it."""
        if now < self._next or self.is_hopeless(now):
            return None
        due = self._signal
        self._next = self._kill_at if due == signal.SIGTERM else now + _KILL_INTERVAL
        self._signal = signal.SIGKILL
        return due

    def skip_grace(self, now: float) -> None:
        """Make SIGKILL due now."""
        self._signal = signal.SIGKILL
        self._next = min(self._next, now)
        self._give_up_at = min(self._give_up_at, now + _KILL_TIMEOUT)
