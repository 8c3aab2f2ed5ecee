"""Noticing that a connection was cut without a word: both ends speak now and then, and time each other's silence."""

from __future__ import annotations

import time

PER_TIMEOUT = 10  # messages that each end sends within the time that counts as silence


class Keepalive:
    """The clock of one end."""

    def __init__(self, timeout: float) -> None:
        """Args: seconds without a word after which the other end counts as gone."""
        self._timeout = timeout
        self._interval = timeout / PER_TIMEOUT
        self._last_heard = self._last_sent = time.monotonic()
        self._is_excused = False

    def heard(self) -> None:
        """Note that something has come from the other end."""
        self._last_heard = time.monotonic()

    def excuse(self) -> None:
        """Allow the other end to be silent until `expect`, whatever it has still to say before."""
        self._is_excused = True

    def expect(self) -> None:
        """Count the other end's silence again, from now."""
        self._is_excused = False
        self.heard()

    def is_lost(self) -> bool:
        """Whether the other end has been silent for too long."""
        return not self._is_excused and time.monotonic() >= self._last_heard + self._timeout

    def is_due(self) -> bool:
        """Whether it is time to speak; the answer yes counts as having spoken."""
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
