"""Which hosts have spares: processes that have imported what the script imports, for the next trial."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_QUIET = 3.0  # seconds that the first trial of a host has for its own imports, before spares compete with it
_MOST_DEATHS = 3  # of spares of one host, after which there are none there: the command may not suit them


class Spares:
    """Keeps some spares on each host while there are more trials to come."""

    def __init__(self, per_host: int, new_process: Callable[[], int]) -> None:
        """
        Args:
            per_host: their number.
            new_process: returns the number of a new process.
        """
        self._per_host = per_host
        self._new_process = new_process
        self._waiting: dict[str, list[int]] = {}
        self._hosts: dict[int, str] = {}
        self._begin: dict[str, float] = {}
        self._settle_at: dict[str, float] = {}
        self._deaths: dict[str, int] = {}

    @property
    def deadline(self) -> float | None:
        """When `start` has something to do next."""
        return min(self._begin.values(), default=None)

    def trial_began(self, hosts: Iterable[str], now: float) -> None:
        """Note that a trial has begun on hosts."""
        if self._per_host:
            for host in hosts:
                self._waiting.setdefault(host, [])
                self._begin[host] = max(now, self._settle_at.setdefault(host, now + _QUIET))

    def trial_advanced(self, hosts: Iterable[str], now: float) -> None:
        """Note that a trial on hosts has done its imports: it has reported something, or ended."""
        for host in hosts:
            self._settle_at[host] = now
            if host in self._begin:
                self._begin[host] = now

    def start(self, now: float, usable: Iterable[str]) -> dict[int, str]:
        """Return the hosts of the spares to start now, by their new numbers."""
        begun: dict[int, str] = {}
        for host in [host for host, begin in self._begin.items() if now >= begin]:
            del self._begin[host]
            if host not in set(usable) or self._deaths.get(host, 0) >= _MOST_DEATHS:
                continue
            for _ in range(self._per_host - len(self._waiting[host])):
                begun[number := self._new_process()] = host
                self._waiting[host].append(number)
        self._hosts |= begun
        return begun

    def take(self, host: str) -> int | None:
        """Return a spare of a host that becomes a rank; None: there is none."""
        waiting = self._waiting.get(host)
        if not waiting:
            return None
        number = waiting.pop(0)
        del self._hosts[number]
        return number

    def died(self, process: int) -> bool:
        """Note that a process has died; return whether it was a spare."""
        host = self._hosts.pop(process, None)
        if host is None:
            return False
        self._waiting[host].remove(process)
        self.died_unseen(host)
        return True

    def died_unseen(self, host: str) -> None:
        """Note that a spare of a host had died when it was taken."""
        self._deaths[host] = self._deaths.get(host, 0) + 1

    def host_lost(self, host: str) -> None:
        """Forget the spares of a host that is gone."""
        self._begin.pop(host, None)
        self._settle_at.pop(host, None)
        for process in self._waiting.pop(host, []):
            del self._hosts[process]

    def dismiss(self) -> frozenset[int]:
        """Return all spares, which are not needed any more: there is no trial to come."""
        self._per_host = 0
        self._begin.clear()
        left = frozenset(self._hosts)
        self._hosts.clear()
        self._waiting.clear()
        return left
