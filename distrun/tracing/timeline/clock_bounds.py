"""How far apart clocks of hosts can be, by the operations of their ranks.

No rank is done with an operation before the last has submitted it. Each operation that ranks of two hosts take part in
so bounds the difference of their clocks from both sides, by the time that it took.
"""

from __future__ import annotations

from collections import deque

from distrun.tracing.timeline.stragglers import Key

_REMEMBERED = 4096


class ClockBounds:
    """Bounds of the clocks of hosts against that of one of them."""

    def __init__(self, reference: str, drift: float = 0.0) -> None:
        """
        Args:
            reference: the host.
            drift: seconds per second by which bounds grow wider with their age; 0: they are told in no order of time.
        """
        self._reference = reference
        self._drift = drift
        self._operations: dict[Key, dict[str, tuple[int, int]]] = {}
        self._order: deque[Key] = deque()
        self._bounds: dict[str, tuple[int, int]] = {}
        self._at: dict[str, int] = {}  # when they were true, on the reference's clock

    def note(self, host: str, key: Key, submitted: int, done: int) -> None:
        """A rank of a host has submitted an operation then, and was done with it, both by its host's clock."""
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
                self._narrow(other, hosts[other], ours)

    def _narrow(self, host: str, theirs: tuple[int, int], ours: tuple[int, int]) -> None:
        least, most = theirs[0] - ours[1], theirs[1] - ours[0]
        low, high = self._bounds.get(host, (least, most))
        now = ours[1]
        drift = int(self._drift * max(0, now - self._at.setdefault(host, now)))
        self._at[host] = max(now, self._at[host])
        self._bounds[host] = max(low - drift, least), min(high + drift, most)
        if self._drift and self._bounds[host][0] > self._bounds[host][1]:
            self._bounds[host] = least, most  # one of the clocks has stood still

    def bounds(self, host: str) -> tuple[int, int] | None:
        """Return the least and the most by which a host's clock can be ahead of the reference; None: nobody knows."""
        return self._bounds.get(host)

    def offset(self, host: str, otherwise: int) -> int:
        """Return by how much a host's clock is ahead of the reference: in the middle of its bounds.

        Args:
            host: the host.
            otherwise: what is assumed where there are no bounds, or where clocks have drifted so that they contradict.
        """
        low, high = self._bounds.get(host, (1, 0))
        return (low + high) // 2 if low <= high else otherwise
