"""Timeouts: how long a rank waits before it warns or fails, and the timer of one wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from distrun.errors import StallError

log = logging.getLogger("distrun")

NUDGE_AFTER = 0.001
"""Seconds of waiting, times the ranks per core, after which peers that share cores are nudged to make progress."""


@dataclass(frozen=True)
class Timeouts:
    """The time limits of a wait, in seconds. 0: none."""

    warning: float = 60.0
    """The time after which a wait is reported. It is reported again each time it has doubled."""
    timeout: float = 0.0
    """The time after which a wait fails."""


FOREVER = Timeouts(0.0, 0.0)


class WaitTimer:
    """The timer of one wait: it nudges, warns, and finally raises an error."""

    def __init__(
        self,
        timeouts: Timeouts,
        what: Callable[[], str],
        nudge: Callable[[], None] | None,
        clock: Callable[[], float] = time.monotonic,
        nudge_after: float = NUDGE_AFTER,
    ) -> None:
        """The wait begins at the time of this call. `what` returns what is waited for, for messages. `nudge` is called
        once, after `nudge_after` seconds, if given."""
        self._nudge_after = nudge_after
        self._started = clock()
        self._what = what
        self._limit = timeouts.timeout or float("inf")
        self._next_warning = timeouts.warning or float("inf")
        self._nudge = nudge

    def look(self, now: float) -> float:
        """Do what is due at the time `now`. Returns when something is due next.

        Raises:
            StallError: the wait has exceeded the stall timeout.
        """
        waited = now - self._started
        if waited >= self._limit:
            raise StallError(f"gave up after {waited:.0f} s: {self._what()}")
        if waited >= self._next_warning:
            log.warning("waiting for %.0f s: %s", waited, self._what())
            self._next_warning *= 2
        if self._nudge is not None and waited >= self._nudge_after:
            self._nudge()
            self._nudge = None
        return self._started + min(
            self._limit, self._next_warning, float("inf") if self._nudge is None else self._nudge_after
        )
