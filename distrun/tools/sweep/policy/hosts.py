"""The hosts of a sweep: their free slots, and when one that was lost is tried again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distrun.runner.decisions.backoff import backoff
from distrun.tools.sweep.policy.placement import Slots

_AGAIN = (1.0, 600.0)  # seconds until a host is tried again: the first time, and at most


class Hosts:
    """All hosts that the user has listed. Each is being connected to, usable, or away until it is tried again."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        """Args: the number of slots of each host."""
        self.slots = dict(slots)
        self.connecting = set(slots)
        self.free: dict[str, set[int]] = {}
        """The free slots of the hosts that can be used."""
        self.refusals: dict[str, str] = {}
        """Why hosts cannot be used, in sentences that do not name them."""
        self._again: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # in a row

    @property
    def usable(self) -> int:
        """The number of slots of all hosts that can be used, free or not."""
        return sum(self.slots[host] for host in self.free)

    @property
    def free_slots(self) -> dict[str, list[int]]:
        """The free slots, in the order in which the user lists the hosts."""
        return {host: sorted(self.free[host]) for host in self.slots if host in self.free}

    @property
    def next_try(self) -> float | None:
        """When a host is tried again."""
        return min(self._again.values(), default=None)

    def ready(self, host: str) -> None:
        """Note that a host can be used."""
        self.connecting.discard(host)
        self.refusals.pop(host, None)
        self.free[host] = set(range(self.slots[host]))

    def away(self, host: str, reason: str, now: float) -> float:
        """Note that a host cannot be used at present; return the seconds until it is tried again."""
        self.connecting.discard(host)
        self.free.pop(host, None)
        self.refusals[host] = reason
        self._failures[host] = self._failures.get(host, 0) + 1
        delay = backoff(*_AGAIN, self._failures[host])
        self._again[host] = now + delay
        return delay

    def proved(self, hosts: Iterable[str]) -> None:
        """Note that a trial came to its end on hosts: one that is lost later is tried again soon."""
        for host in hosts:
            self._failures.pop(host, None)

    def due(self, now: float) -> frozenset[str]:
        """Return the hosts to try again now."""
        due = frozenset(host for host, again in self._again.items() if now >= again)
        for host in due:
            del self._again[host]
        self.connecting.update(due)
        return due

    def take(self, places: Slots) -> None:
        """Take slots for a trial."""
        for host, slot in places:
            self.free[host].discard(slot)

    def give_back(self, places: Iterable[tuple[str, int]]) -> None:
        """Note that slots are free again, as far as their hosts are still there."""
        for host, slot in places:
            if host in self.free:
                self.free[host].add(slot)
