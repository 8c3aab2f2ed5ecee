"""Barring: slots and hosts that failed again and again are not used for a while, and never for ever.

A bar is a preference: it gives way when the job cannot reach --min-np otherwise, since waiting would help nobody and
the budget ends what is hopeless. It does not give way where newcomers fail before they are of any use. What they lack,
such as a file server, may come back, so there the job waits.
"""

from __future__ import annotations

from collections import defaultdict, deque

WINDOW = 3600.0  # seconds after which a failure is forgotten
SLOT_FAILURES = 2  # within the window, from which on a slot is barred: what failed once is used again at once
HOST_FAILURES = 3  # of its slots or its agent, from which on a host is barred


class Barring:
    """The failures of slots and hosts, and until when each is barred."""

    def __init__(self, cooldown: tuple[float, float]) -> None:
        """Args: seconds for which something is barred the first time, which double each time, and at most."""
        self._first, self._longest = cooldown
        self._failures: defaultdict[tuple[str, int | None], deque[float]] = defaultdict(deque)
        self._until: dict[tuple[str, int | None], float] = {}
        self._firm: set[tuple[str, int | None]] = set()
        """Slots that failed at the start when they failed last."""

    def failed(self, host: str, slot: int | None, now: float, *, at_start: bool = False) -> None:
        """Note the failure of a slot, or of a host's agent if there is no slot.

        Args:
            host, slot: where.
            now: when.
            at_start: whether it failed before it was of any use: then its bar does not give way.
        """
        if slot is not None:
            self._count(host, slot, SLOT_FAILURES, now)
            self._firm.discard((host, slot))
            if at_start:
                self._firm.add((host, slot))
        self._count(host, None, HOST_FAILURES, now)

    def gives_way(self, host: str, slot: int) -> bool:
        """Whether a slot that is barred may be used if the job cannot go on without."""
        return (host, slot) not in self._firm

    def bar(self, host: str, now: float) -> None:
        """Bar a host at once, however often it has failed."""
        for _ in range(max(1, HOST_FAILURES - len(self._failures[host, None]))):
            self._count(host, None, HOST_FAILURES, now)

    def until(self, host: str, slot: int | None = None) -> float:
        """Return the time until which a slot, or a whole host, is barred; it has passed if it is not."""
        past = float("-inf")
        return max(self._until.get((host, None), past), self._until.get((host, slot), past))

    def next_end(self, now: float) -> float | None:
        """Return the time at which the next of what is barred comes free, None if nothing is."""
        for key in [key for key, until in self._until.items() if until <= now]:
            del self._until[key]
        return min(self._until.values(), default=None)

    def _count(self, host: str, slot: int | None, limit: int, now: float) -> None:
        failures = self._failures[host, slot]
        failures.append(now)
        while failures[0] <= now - WINDOW:
            failures.popleft()
        times = len(failures) - limit
        if times >= 0:
            self._until[host, slot] = now + min(self._longest, self._first * 2 ** min(times, 60))
