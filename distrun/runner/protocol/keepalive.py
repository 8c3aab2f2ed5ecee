"""Noticing that a connection is dead though nobody said so: both ends speak now and then, and count the silence."""

from __future__ import annotations

import time

PER_SILENCE = 3  # how often each end speaks within the time that counts as silence


class Keepalive:
    """One end's clock."""

    def __init__(self, silence: float) -> None:
        """Args: seconds without a word after which the other end counts as gone."""
        self._silence = silence
        self._interval = silence / PER_SILENCE
        self._last_heard = self._last_sent = time.monotonic()

    def heard(self) -> None:
        """Something has come from the other end."""
        self._last_heard = time.monotonic()

    def is_lost(self) -> bool:
        """Whether the other end has been silent for too long."""
        return time.monotonic() >= self._last_heard + self._silence

    def is_due(self) -> bool:
        """Whether it is time to speak; answering yes resets the clock."""
        now = time.monotonic()
        if now < self._last_sent + self._interval:
            return False
        self._last_sent = now
        return True

    def seconds_left(self) -> float:
        """Seconds until one of the two above changes its answer."""
        nearest = min(self._last_heard + self._silence, self._last_sent + self._interval)
        return max(0.0, nearest - time.monotonic())
