"""A histogram of durations in bounded memory: each bin is 1 % wider than the previous one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

_GROWTH = math.log(1.01)
_SHORTEST, _LONGEST = 1e-6, 1e6  # seconds, for some 2,800 bins at most


class Histogram:
    """A histogram of durations, accurate to half a percent."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0
        """The sum of all durations, in seconds."""

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self._counts[math.floor(math.log(min(max(seconds, _SHORTEST), _LONGEST)) / _GROWTH)] += 1
        self.count += 1
        self.total += seconds

    def quantile(self, share: float) -> float:
        """Return the quantile `share` of the durations, or 0.0 if there are none."""
        wanted, passed = share * self.count, 0
        for number in sorted(self._counts):
            passed += self._counts[number]
            if passed >= wanted:
                return math.exp((number + 0.5) * _GROWTH)
        return 0.0

    def bars(self, most: int) -> Iterator[tuple[float, float, int]]:
        """Yield begin, end and count of at most `most` bars with equal widths on a logarithmic axis, without gaps."""
        if not self._counts:
            return
        first, last = min(self._counts), max(self._counts)
        width = -(-(last - first + 1) // most)
        for begin in range(first, last + 1, width):
            count = sum(self._counts[number] for number in range(begin, begin + width) if number in self._counts)
            yield math.exp(begin * _GROWTH), math.exp((begin + width) * _GROWTH), count
