"""Barring: slots and hosts that failed repeatedly are not used for a while, but never excluded for good.

A bar is a preference: it gives way when the job cannot reach --min-np otherwise, since waiting would help nobody and
the budget ends what is hopeless. It does not give way where newcomers fail before they are of any use. What they lack,
such as a file server, may come back, so there the job waits.
"""

from __future__ import annotations

from collections import defaultdict, deque

from distrun.runner.decisions.backoff import backoff

WINDOW = 3600.0  # seconds after which a failure is forgotten
SLOT_FAILURES = 2  # within the window: a slot that has failed only once is used again at once
HOST_FAILURES = 3  # of its slots or its agent, within the window


class Barring:
    """The failures of slots and hosts, and until when each is barred."""

    def __init__(self, cooldown: tuple[float, float]) -> None:
        """Args: how many seconds something is barred the first time, and at most. They double each time."""
        self._first, self._longest = cooldown
        self._failures: defaultdict[tuple[str, int | None], deque[float]] = defaultdict(deque)
        self._until: dict[tuple[str, int | None], float] = {}
        self._firm: set[tuple[str, int | None]] = set()
        """Slots whose last failure was at the start of a process."""

    def failed(self, host: str, slot: int | None, now: float, *, at_start: bool = False) -> None:
        """Note the failure of a slot, or of a host's agent if there is no slot.

        Args:
            host, slot: where.
            now: when.
            at_start: whether a process failed there before it was of any use. Then the slot is not used while barred.
        """
        if slot is not None:
            self._count(host, slot, SLOT_FAILURES, now)
            self._firm.discard((host, slot))
            if at_start:
                self._firm.add((host, slot))
        self._count(host, None, HOST_FAILURES, now)

    def gives_way(self, host: str, slot: int) -> bool:
        """Whether a slot may be used although it is barred, if the job cannot go on without it."""
        return (host, slot) not in self._firm

    def bar(self, host: str, now: float) -> None:
        """Bar a host at once, even if it has failed less often than `HOST_FAILURES`."""
        for _ in range(max(1, HOST_FAILURES - len(self._failures[host, None]))):
            self._count(host, None, HOST_FAILURES, now)

    def until(self, host: str, slot: int | None = None) -> float:
        """Return the time until which a slot, or a whole host, is barred. A time in the past = it is not."""
        past = float("-inf")
        return max(self._until.get((host, None), past), self._until.get((host, slot), past))

    def next_end(self, now: float) -> float | None:
        """Return the earliest time when something barred may be used again, None if nothing is barred."""
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
            self._until[host, slot] = now + backoff(self._first, self._longest, times + 1)
