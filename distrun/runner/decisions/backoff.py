"""Waits that double with each failure in a row, up to a limit."""

from __future__ import annotations

_MOST_DOUBLINGS = 60  # beyond any limit, and 2 ** 60 still is an exact float


def backoff(first: float, longest: float, failures: int) -> float:
    """Return the seconds to wait after `failures` in a row: `first` after one, at most `longest`."""
    return min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
