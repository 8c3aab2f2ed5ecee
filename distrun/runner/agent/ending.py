"""When which signal is due to the processes that an agent still has to end."""

from __future__ import annotations

import signal

_KILL_INTERVAL = 0.05  # seconds between two rounds of SIGKILL: a process may fork between being listed and being killed
_KILL_TIMEOUT = 5.0  # seconds of such rounds after which a process counts as unkillable


class Termination:
    """SIGTERM once, SIGKILL again and again after the grace, at last giving up. Times are of one monotonic clock."""

    def __init__(self, grace: float, now: float) -> None:
        """Args: seconds between SIGTERM and SIGKILL, where 0 means no SIGTERM; the time."""
        self.ended: set[int] = set()
        """Process ids of those that were sent a signal."""
        self._next = now
        self._signal = signal.SIGTERM if grace > 0 else signal.SIGKILL
        self._kill_at = now + grace
        self._give_up_at = now + grace + _KILL_TIMEOUT

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next signal is due."""
        return max(0.0, self._next - now)

    def is_hopeless(self, now: float) -> bool:
        """Whether SIGKILL has not helped for so long that it will not."""
        return now > self._give_up_at

    def due_signal(self, now: float) -> int | None:
        """Return the signal to send now, None when none is due; the next call answers for the next signal."""
        if now < self._next or self.is_hopeless(now):
            return None
        due = self._signal
        self._next = self._kill_at if due == signal.SIGTERM else now + _KILL_INTERVAL
        self._signal = signal.SIGKILL
        return due

    def skip_grace(self, now: float) -> None:
        """Have SIGKILL due now."""
        self._signal = signal.SIGKILL
        self._next = min(self._next, now)
        self._give_up_at = min(self._give_up_at, now + _KILL_TIMEOUT)
