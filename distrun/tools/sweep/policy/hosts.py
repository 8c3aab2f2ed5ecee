"""The hosts of a sweep: as in an elastic job, and with their free slots, of which trials get some."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from distrun.runner.decisions.elastic import hosts

_RETRY = (1.0, 600.0)  # seconds until a host is tried again: the first time, and at most
Slots = list[tuple[str, int]]
"""The hosts and slots of ranks, in rank order."""


class Hosts(hosts.Hosts):
    """All hosts that the user has listed. Each is being connected to, ready, or away until it is tried again."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        """Args: the number of slots of each host."""
        super().__init__(slots, math.inf, _RETRY)
        self.free: dict[str, set[int]] = {}
        """The free slots of the hosts that are ready."""

    @property
    def usable(self) -> int:
        """The number of slots of all hosts that are ready, free or not."""
        return sum(self.slots[host] for host in self.free)

    @property
    def free_slots(self) -> dict[str, list[int]]:
        """The free slots, with the hosts in the user's order."""
        return {host: sorted(self.free[host]) for host in self.slots if host in self.free}

    @property
    def next_try(self) -> float | None:
        """The time when the next host is tried again. None: no host waits."""
        waiting = (away for host, away in self.away.items() if host not in self.ready and host not in self.connecting)
        return min((away.retry for away in waiting if away.retry is not None), default=None)

    def is_ready(self, host: str) -> None:
        """Note that a host has an agent, so that all its slots are free."""
        super().is_ready(host)
        self.free[host] = set(range(self.slots[host]))

    def left(self, host: str) -> None:
        """Note that a host has no agent."""
        super().left(host)
        if self.free.pop(host, None) is not None and host in self.away:
            self.away[host] = self.away.pop(host)  # messages list the hosts that were lost last at the end

    def take(self, places: Slots) -> None:
        """Take slots for a trial."""
        for host, slot in places:
            self.free[host].discard(slot)

    def give_back(self, places: Iterable[tuple[str, int]]) -> None:
        """Note that slots are free again, except on hosts that are lost."""
        for host, slot in places:
            if host in self.free:
                self.free[host].add(slot)


def place(free: Mapping[str, Sequence[int]], ranks: int) -> Slots | None:
    """Return the slots for a trial: on the host that it fills best, or on several hosts if none has room for it.

    None: there are too few. `free` has the free slots of each host.
    """
    fitting = [host for host, slots in free.items() if len(slots) >= ranks]
    if fitting:
        best = min(fitting, key=lambda host: len(free[host]))
        return [(best, slot) for slot in sorted(free[best])[:ranks]]
    emptiest = sorted(free, key=lambda host: -len(free[host]))  # so that the trial is on few hosts
    places = [(host, slot) for host in emptiest for slot in sorted(free[host])]
    return places[:ranks] if len(places) >= ranks else None
