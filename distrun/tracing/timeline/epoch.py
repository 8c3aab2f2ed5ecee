"""The clock of timelines, the same as in traces of torch.profiler, so that both can be opened together.

torch.profiler writes microseconds since the time given as `baseTimeNanoseconds`, the last multiple of three months
since 1970. In times since 1970, a double would not have enough digits for fractions of a microsecond.
"""

from __future__ import annotations

import time

_THREE_MONTHS = 7_889_238 * 1_000_000_000
"""A quarter of a year in nanoseconds, as torch.profiler defines it."""


def base_time(now: int) -> int:
    """Return the time that a trace counts from, in nanoseconds since 1970, like `now`."""
    return now - now % _THREE_MONTHS


def monotonic_epoch() -> int:
    """Return the time since 1970 when this machine's monotonic clock was 0, in nanoseconds.

    Of several readings it uses the least interrupted one, which is accurate to some tenths of a microsecond.
    """
    readings = []
    for _ in range(20):
        before = time.monotonic_ns()
        there = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, there - (before + after) // 2))
    return min(readings)[1]
