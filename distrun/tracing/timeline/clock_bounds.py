"""Bounds on the differences between the clocks of hosts, from the operations of their ranks.

No rank completes an operation before the last rank has submitted it. So each operation of ranks on two hosts bounds the
difference of their clocks from both sides, as tightly as its duration.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from distrun.tracing.timeline.travel import Key

_REMEMBERED = 4096


class Bounds(NamedTuple):
    """The least and the most that a clock can be ahead of another one, at a time of that one."""

    least: int = -1 << 62
    most: int = 1 << 62
    at: int = 0

    def tightened(self, least: int, most: int, at: int, drift: float) -> Bounds:
        """Return the bounds that follow from new ones and from these, which become wider by `drift` s per s."""
        age = int(drift * max(0, at - self.at))
        low, high = max(self.least - age, least), min(self.most + age, most)
        if drift and low > high:
            low, high = least, most  # one of the clocks was stopped, so the old bounds are void
        return Bounds(low, high, max(at, self.at))


class ClockBounds:
    """Bounds on the clocks of hosts, relative to the clock of one of them."""

    def __init__(self, reference: str, drift: float = 0.0) -> None:
        """
        Args:
            reference: the host with the reference clock.
            drift: seconds per second that bounds become wider with their age. 0: calls are not in order of time.
        """
        self._reference = reference
        self._drift = drift
        self._operations: dict[Key, dict[str, tuple[int, int]]] = {}
        self._order: deque[Key] = deque()
        self._bounds: dict[str, Bounds] = {}  # by host, at times of the reference clock

    def note(self, host: str, key: Key, submitted: int, done: int) -> None:
        """Note when a rank of a host submitted an operation, and when it was done with it, by the host's clock."""
        hosts = self._operations.get(key)
        if hosts is None:
            hosts = self._operations[key] = {}
            self._order.append(key)
            if len(self._order) > _REMEMBERED:
                del self._operations[self._order.popleft()]
        last, first = hosts.get(host, (submitted, done))
        hosts[host] = max(last, submitted), min(first, done)
        ours = hosts.get(self._reference)
        if ours is None:
            return
        for other in hosts if host == self._reference else (host,):
            if other != self._reference:
                last, first = hosts[other]
                self._bounds[other] = self.bounds(other).tightened(
                    last - ours[1], first - ours[0], ours[1], self._drift
                )

    def bounds(self, host: str) -> Bounds:
        """Return the least and the most that a host's clock can be ahead of the reference."""
        return self._bounds.get(host, Bounds())

    def offset(self, host: str, otherwise: int) -> int:
        """Return by how many nanoseconds a host's clock is ahead of the reference: the middle of its bounds.

        Args:
            host: the host.
            otherwise: the result if there are no bounds, or if the clocks have drifted so that the bounds contradict.
        """
        low, high, _ = self._bounds.get(host, Bounds(1, 0))
        return (low + high) // 2 if low <= high else otherwise
