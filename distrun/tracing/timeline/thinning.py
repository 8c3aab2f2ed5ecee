"""Keeping a timeline within its limit: when much of it is used up, only some seconds are shown in full.

A quarter of the limit is used without asking. Then one second in 2, 4, 8, ... is kept, so many that what is left would
last for an hour, or for twice as long as the job has been running already: however long a job is, it has something
left for what comes.
"""

from __future__ import annotations

FREE = 0.25
"""The share of the limit within which everything is shown."""
RESERVE = 0.05
"""The share that is kept for the end of the file and for counters."""
_HORIZON = 3600.0
_GREATEST = 1 << 20


class Thinning:
    """Decides which seconds are shown."""

    def __init__(self, limit: int) -> None:
        """Args: the bytes that the file may have."""
        self._limit = limit
        self._rate = 0.0  # bytes per second in full

    def note(self, added: int) -> None:
        """A second, shown in full, has taken so many bytes."""
        self._rate += (added - self._rate) * (0.5 if added > self._rate else 0.1)

    def every(self, written: int, elapsed: float) -> int:
        """Return how many seconds there are to each that is shown, a power of 2; 0: none is.

        Args:
            written: bytes of the file so far.
            elapsed: seconds since it was begun.
        """
        left = self.left(written)
        if self._rate * 1.5 > left:
            return 0
        if written + self._rate < FREE * self._limit:
            return 1
        allowance = left / max(_HORIZON, 2 * elapsed)
        every = 1
        while self._rate / every > allowance and every < _GREATEST:
            every *= 2
        return every

    def may_show_slow(self, written: int) -> bool:
        """Whether a second in which something was slow is shown whatever its turn."""
        return self._rate * 20 < self.left(written)

    def left(self, written: int) -> float:
        """Return the bytes that may still be used."""
        return self._limit * (1 - RESERVE) - written
