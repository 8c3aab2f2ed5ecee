"""Keepalive messages, by which both ends of a connection notice that the other is gone without closing it."""

from __future__ import annotations

import time

PER_TIMEOUT = 10  # messages that each end sends within the timeout


class Keepalive:
    """The timers of one end of a connection: when to send, and when the other end counts as lost."""

    def __init__(self, timeout: float) -> None:
        """Args: `timeout` is the number of seconds without a message after which the other end counts as lost."""
        self._timeout = timeout
        self._interval = timeout / PER_TIMEOUT
        self._last_heard = self._last_sent = time.monotonic()
        self._is_excused = False

    def heard(self) -> None:
        """Record that something has come from the other end."""
        self._last_heard = time.monotonic()

    def excuse(self) -> None:
        """Allow the other end to send nothing until `expect` is called. Messages may still arrive before."""
        self._is_excused = True

    def expect(self) -> None:
        """Start the timeout again, from this moment."""
        self._is_excused = False
        self.heard()

    def is_lost(self) -> bool:
        """Whether the other end has sent nothing for longer than the timeout."""
        return not self._is_excused and time.monotonic() >= self._last_heard + self._timeout

    def is_due(self) -> bool:
        """Whether it is time to send a message. True also restarts the interval, so the caller has to send one."""
        now = time.monotonic()
        if now < self._last_sent + self._interval:
            return False
        self._last_sent = now
        return True

    def seconds_left(self) -> float:
        """Return the seconds until `is_lost` or `is_due` changes its answer."""
        lost_at = float("inf") if self._is_excused else self._last_heard + self._timeout
        nearest = min(lost_at, self._last_sent + self._interval)
        return max(0.0, nearest - time.monotonic())
