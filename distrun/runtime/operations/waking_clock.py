"""The waking clock: monotonic seconds, not counting the time while this process was stopped, as by Ctrl-Z.

A process gets no notice that it was stopped. It can only infer this from a sleep that ends long after its time, or from
a stretch of code that takes far longer than it possibly can. So code that sleeps for a limited time, or runs such a
stretch between two readings of this clock, calls `note_sleep`. Time while all ranks were stopped must not count as a
delay of the ranks that are waited for.
"""

from __future__ import annotations

import time

_TOLERANCE = 0.5  # seconds that a busy machine may wake a process late; a longer delay is taken for a stop, harmlessly
_stopped = 0.0


def now() -> float:
    """Return the time, in seconds from an arbitrary origin."""
    return time.monotonic() - _stopped


def note_sleep(began: float, seconds: float) -> float:
    """Note that a sleep, or a stretch of code, has ended, perhaps long after it should have.

    Args:
        began: when it began, as `time.monotonic()`.
        seconds: its longest duration. 0 for a stretch of code.

    Returns:
        When it ended, as `time.monotonic()`. If the next one begins at this time, no stop between them is missed.
    """
    global _stopped
    ended = time.monotonic()
    late = ended - began - seconds
    if late > _TOLERANCE:
        _stopped += late
    return ended
