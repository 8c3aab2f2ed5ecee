"""Spares: processes on each host that have imported what the script imports, for the next trial."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable

_IMPORT_TIME = 3.0  # seconds that the first trial on a host has for its own imports, before spares compete with it
_MOST_DEATHS = 3  # of spares on one host, which then gets no others: the command may not work with spares


class Spares:
    """Keeps spares on each host while trials are to come."""

    def __init__(self, per_host: int, new_process: Callable[[], int]) -> None:
        """Args: the number of spares on each host, and what returns the number of a new process."""
        self._per_host = per_host
        self._new_process = new_process
        self._waiting: dict[str, list[int]] = {}  # host -> its spares
        self._start_at: dict[str, float] = {}  # host -> when to start the spares that it lacks
        self._imported_at: dict[str, float] = {}  # host -> when its first trial has done its imports
        self._deaths: Counter[str] = Counter()  # host -> dead spares

    @property
    def deadline(self) -> float | None:
        """The time when `start` has something to do next. None: it has not."""
        return min(self._start_at.values(), default=None)

    def trial_began(self, hosts: Iterable[str], now: float) -> None:
        """Note that a trial has begun on these hosts."""
        if self._per_host:
            for host in hosts:
                self._waiting.setdefault(host, [])
                self._start_at[host] = max(now, self._imported_at.setdefault(host, now + _IMPORT_TIME))

    def trial_advanced(self, hosts: Iterable[str], now: float) -> None:
        """Note that a trial on these hosts has done its imports: it has reported something, or ended."""
        for host in hosts:
            self._imported_at[host] = now
            if host in self._start_at:
                self._start_at[host] = now

    def start(self, now: float, usable: Iterable[str]) -> dict[int, str]:
        """Return the spares to start now: their new numbers -> hosts, which are among `usable`."""
        begun: dict[int, str] = {}
        for host in [host for host, start_at in self._start_at.items() if now >= start_at]:
            del self._start_at[host]
            if host not in set(usable) or self._deaths[host] >= _MOST_DEATHS:
                continue
            for _ in range(self._per_host - len(self._waiting[host])):
                begun[number := self._new_process()] = host
                self._waiting[host].append(number)
        return begun

    def take(self, host: str) -> int | None:
        """Remove a spare of a host, which becomes a rank, and return it. None: there is none."""
        waiting = self._waiting.get(host)
        return waiting.pop(0) if waiting else None

    def died(self, process: int) -> bool:
        """Note that a process has died, and return whether it was a spare."""
        for host, waiting in self._waiting.items():
            if process in waiting:
                waiting.remove(process)
                self.count_death(host)
                return True
        return False

    def count_death(self, host: str) -> None:
        """Count the death of a spare on a host, which may show only when the spare is taken."""
        self._deaths[host] += 1

    def host_lost(self, host: str) -> None:
        """Forget the spares of a lost host."""
        self._start_at.pop(host, None)
        self._imported_at.pop(host, None)
        self._waiting.pop(host, None)

    def dismiss(self) -> frozenset[int]:
        """Remove and return all spares, since no trial is to come."""
        self._per_host = 0
        self._start_at.clear()
        left = frozenset(itertools.chain(*self._waiting.values()))
        self._waiting.clear()
        return left
