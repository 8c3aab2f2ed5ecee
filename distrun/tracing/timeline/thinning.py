"""Keeping a timeline within its limit: when much of the limit is used up, only some seconds are shown in full.

A quarter of the limit is used without restriction. After that, one second in 2, 4, 8, ... is kept. The number is chosen
so that the rest of the limit would last for an hour, or for twice the time that the job has been running. So however
long a job is, there is always room for later events.
"""

from __future__ import annotations

FREE = 0.25
"""The share of the limit up to which everything is shown."""
RESERVE = 0.05
"""The share that is reserved for the end of the file and for counters."""
_HORIZON = 3600.0
_GREATEST = 1 << 20


class Thinning:
    """Decides which seconds are shown."""

    def __init__(self, limit: int) -> None:
        """Args: the most bytes of the file."""
        self._limit = limit
        self._rate = 0.0  # bytes per second that is shown in full

    def note(self, added: int) -> None:
        """Note that a second shown in full took `added` bytes."""
        self._rate += (added - self._rate) * (0.5 if added > self._rate else 0.1)

    def every(self, written: int, elapsed: float) -> int:
        """Return n, a power of 2, if one second in n is shown, or 0: after `written` bytes and `elapsed` seconds."""
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
        """Whether a second with something slow in it may be shown out of turn."""
        return self._rate * 20 < self.left(written)

    def left(self, written: int) -> float:
        """Return the bytes that may still be used."""
        return self._limit * (1 - RESERVE) - written
