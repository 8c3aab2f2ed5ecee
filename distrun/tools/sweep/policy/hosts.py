"""The hosts of a sweep: their free slots, and when a lost one is tried again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distrun.runner.decisions.backoff import backoff
from distrun.tools.sweep.policy.placement import Slots

_RETRY = (1.0, 600.0)  # seconds until a host is tried again: the first time, and at most


class Hosts:
    """All hosts that the user has listed. Each is being connected to, usable, or lost until it is tried again."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        """Args: the number of slots of each host."""
        self.slots = dict(slots)
        self.connecting = set(slots)
        self.free: dict[str, set[int]] = {}
        """The free slots of the usable hosts."""
        self.refusals: dict[str, str] = {}
        """host -> why it cannot be used, a sentence that does not name it"""
        self._retries: dict[str, float] = {}  # host -> the time of the next try
        self._failures: dict[str, int] = {}  # host -> failures in a row

    @property
    def usable(self) -> int:
        """The number of slots of all usable hosts, free or not."""
        return sum(self.slots[host] for host in self.free)

    @property
    def free_slots(self) -> dict[str, list[int]]:
        """The free slots, with the hosts in the user's order."""
        return {host: sorted(self.free[host]) for host in self.slots if host in self.free}

    @property
    def next_try(self) -> float | None:
        """The time when the next host is tried again. None: no host waits."""
        return min(self._retries.values(), default=None)

    def ready(self, host: str) -> None:
        """Note that a host can be used."""
        self.connecting.discard(host)
        self.refusals.pop(host, None)
        self.free[host] = set(range(self.slots[host]))

    def away(self, host: str, reason: str, now: float) -> float:
        """Note that a host cannot be used now, and return the seconds until it is tried again."""
        self.connecting.discard(host)
        self.free.pop(host, None)
        self.refusals[host] = reason
        self._failures[host] = self._failures.get(host, 0) + 1
        delay = backoff(*_RETRY, self._failures[host])
        self._retries[host] = now + delay
        return delay

    def proved(self, hosts: Iterable[str]) -> None:
        """Note that a trial has ended on these hosts, so that their failures in a row are forgotten."""
        for host in hosts:
            self._failures.pop(host, None)

    def due(self, now: float) -> frozenset[str]:
        """Return the hosts to try again now, and note that they are being connected to."""
        due = frozenset(host for host, retry in self._retries.items() if now >= retry)
        for host in due:
            del self._retries[host]
        self.connecting.update(due)
        return due

    def take(self, places: Slots) -> None:
        """Take slots for a trial."""
        for host, slot in places:
            self.free[host].discard(slot)

    def give_back(self, places: Iterable[tuple[str, int]]) -> None:
        """Note that slots are free again, except on hosts that are lost."""
        for host, slot in places:
            if host in self.free:
                self.free[host].add(slot)
