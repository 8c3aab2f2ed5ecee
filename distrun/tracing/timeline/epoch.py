"""The clock of timelines: that of traces of torch.profiler, which can be opened beside them.

torch.profiler writes microseconds since a moment that it names as `baseTimeNanoseconds`, the last multiple of three
months since 1970: of times since 1970 themselves, a double has no room for fractions of a microsecond.
"""

from __future__ import annotations

import time

_THREE_MONTHS = 7_889_238 * 1_000_000_000
"""A quarter of a year, in nanoseconds, as torch.profiler has it."""


def base_time(now: int) -> int:
    """Return the moment from which a trace counts, in nanoseconds since 1970 as `now`."""
    return now - now % _THREE_MONTHS


def monotonic_epoch() -> int:
    """Return the time since 1970 at which the monotonic clock of this machine was 0, in nanoseconds.

    Of several readings it is the one that was interrupted least, good to some tenths of a microsecond.
    """
    readings = []
    for _ in range(20):
        before = time.monotonic_ns()
        there = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, there - (before + after) // 2))
    return min(readings)[1]
