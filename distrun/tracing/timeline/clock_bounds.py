"""Bounds on the differences between the clocks of hosts, from the operations of their ranks.

No rank completes an operation before the last rank has submitted it. So each operation of ranks on two hosts bounds the
difference of their clocks from both sides, as tightly as its duration.
"""

from __future__ import annotations

from collections import deque

from distrun.tracing.timeline.stragglers import Key

_REMEMBERED = 4096


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
        self._bounds: dict[str, tuple[int, int]] = {}
        self._at: dict[str, int] = {}  # when the bounds were valid, on the reference clock

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
                self._tighten(other, hosts[other], ours)

    def _tighten(self, host: str, theirs: tuple[int, int], ours: tuple[int, int]) -> None:
        least, most = theirs[0] - ours[1], theirs[1] - ours[0]
        low, high = self._bounds.get(host, (least, most))
        now = ours[1]
        drift = int(self._drift * max(0, now - self._at.setdefault(host, now)))
        self._at[host] = max(now, self._at[host])
        self._bounds[host] = max(low - drift, least), min(high + drift, most)
        if self._drift and self._bounds[host][0] > self._bounds[host][1]:
            self._bounds[host] = least, most  # one of the clocks was stopped, so the old bounds are void

    def bounds(self, host: str) -> tuple[int, int] | None:
        """Return the least and the most that a host's clock can be ahead of the reference, or None if not known."""
        return self._bounds.get(host)

    def offset(self, host: str, otherwise: int) -> int:
        """Return by how many nanoseconds a host's clock is ahead of the reference: the middle of its bounds.

        Args:
            host: the host.
            otherwise: the result if there are no bounds, or if the clocks have drifted so that the bounds contradict.
        """
        low, high = self._bounds.get(host, (1, 0))
        return (low + high) // 2 if low <= high else otherwise
