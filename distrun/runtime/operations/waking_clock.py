"""The waking clock: monotonic seconds, without those in which this process was stopped, as by Ctrl-Z.

Nothing tells a process that it was stopped. But a sleep that ends long after its time tells, and a stretch of code that
takes far longer than it can; so code that sleeps for a limited time, or goes through such a stretch between two
readings of this clock, says so here. What was waited for while everybody was stopped must not count as late.
"""

from __future__ import annotations

import time

_TOLERANCE = 0.5  # seconds by which a busy machine may wake a process too late; if it is later still, no harm is done
_stopped = 0.0


def now() -> float:
    """Return the time, in seconds from an arbitrary moment."""
    return time.monotonic() - _stopped


def note_sleep(began: float, seconds: float) -> float:
    """Note that a sleep, or a stretch of code, is over, perhaps long after it was to end.

    Args:
        began: when it began, as `time.monotonic()`.
        seconds: how long it was to last at most; 0 for a stretch of code.

    Returns:
        When it has ended, as `time.monotonic()`: if the next one begins there, no stop falls in between.
    """
    global _stopped
    ended = time.monotonic()
    late = ended - began - seconds
    if late > _TOLERANCE:
        _stopped += late
    return ended
