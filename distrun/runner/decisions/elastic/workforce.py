"""The hosts and processes that an elastic job keeps: which are started, and which are let go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distrun.runner.decisions.elastic.actions import ConnectHosts, EndProcesses, ReleaseHost, StartSpares
from distrun.runner.decisions.elastic.barring import Barring
from distrun.runner.decisions.elastic.hosts import Hosts
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.processes import Process, Processes


class Workforce:
    """Hosts, processes and barring, and the rules for having enough of the first two."""

    SPARE_SLOT = -1
    """Under which the failures of a host's spares are counted."""

    def __init__(self, slots: Mapping[str, int], options: ElasticOptions, start_timeout: float) -> None:
        """Args: host -> slots; the limits; seconds in which a host must be ready, and a process started."""
        self.hosts = Hosts(slots, start_timeout)
        self.processes = Processes()
        self.barring = Barring(options.cooldown)
        self.modules: tuple[str, ...] | None = None
        """The modules that spares are to import; None = not known yet."""
        self._options = options
        self._start_timeout = start_timeout

    def free_places(self, limit: int, needed: int, now: float) -> list[tuple[str, int]]:
        """Return free slots as pairs of host and slot, those of hosts with spares first, else in the hosts' order.

        Args:
            limit: how many at most.
            needed: how many the job cannot go on without: if there are not enough others, what is barred is used all
                the same, what comes free next first, but for what failed at its start.
            now: the time.
        """
        free: list[tuple[str, int]] = []
        barred: list[tuple[float, str, int]] = []
        usable = [host for host in self.hosts.slots if self.hosts.is_usable(host)]
        for host in sorted(usable, key=lambda host: not self.processes.spares[host]):
            if len(free) >= limit:
                break
            if self.processes.taken(host) >= self.hosts.slots[host]:
                continue
            for slot in range(self.hosts.slots[host]):
                if self.processes.is_free(host, slot):
                    until = self.barring.until(host, slot)
                    if until <= now:
                        free.append((host, slot))
                    elif self.barring.gives_way(host, slot):
                        barred.append((until, host, slot))
        free += [(host, slot) for _, host, slot in sorted(barred)[: max(0, needed - len(free))]]
        return free[:limit]

    def start(self, places: list[tuple[str, int]], now: float) -> tuple[list[Process], frozenset[int]]:
        """Return newcomers for these places, and which of them were spares so far."""
        newcomers = []
        spares = set()
        for host, slot in places:
            known = len(self.processes.known)
            newcomers.append(process := self.processes.start(host, slot, now, now + self._start_timeout))
            if process.number < known:
                spares.add(process.number)
        return newcomers, frozenset(spares)

    def in_order(self, processes: Iterable[Process]) -> list[Process]:
        """Return processes in the order of their places."""
        order = {host: index for index, host in enumerate(self.hosts.slots)}
        return sorted(processes, key=lambda process: (order.get(process.host, len(order)), process.host, process.slot))

    def barred(self, now: float) -> dict[str, int]:
        """Return how many slots are barred on each host that is ready, where there are any."""
        if self.barring.next_end(now) is None:
            return {}
        slots = {host: range(self.hosts.slots.get(host, 0)) for host in self.hosts.ready}
        counts = {host: sum(self.barring.until(host, slot) > now for slot in own) for host, own in slots.items()}
        return {host: count for host, count in counts.items() if count}

    def connect(self, now: float) -> list[ConnectHosts]:
        """Return the action that connects to more hosts if there are too few slots."""
        chosen = self.hosts.to_connect(self._options.max_np + sum(self.barred(now).values()), now)
        return [ConnectHosts(frozenset(chosen))] if chosen else []

    def keep_spares(self, now: float) -> list[StartSpares]:
        """Return the action that starts the spares that hosts lack."""
        if not self._options.spares or self.modules is None:
            return []
        started: dict[int, str] = {}
        for host in self.hosts.slots:
            if self.hosts.is_usable(host) and self.barring.until(host, self.SPARE_SLOT) <= now:
                for _ in range(self._options.spares - len(self.processes.spares[host])):
                    spare = self.processes.start_spare(host, now, now + self._start_timeout)
                    started[spare.number] = host
        return [StartSpares(started, self.modules)] if started else []

    def let_go(self, now: float) -> list[EndProcesses | ReleaseHost]:
        """Return the actions that end what is left on hosts that are not listed any more, but for their members."""
        actions: list[EndProcesses | ReleaseHost] = []
        for host in list(self.hosts.ready):
            if host in self.hosts.slots or host in self.hosts.releasing:
                continue
            processes = self.processes.on_host[host].values()
            others = [process.number for process in processes if process.number not in self.processes.members]
            if ended := self.processes.end(others, now):
                actions.append(EndProcesses(ended, 0.0))
            if not processes:
                self.hosts.releasing.add(host)
                actions.append(ReleaseHost(host))
        return actions

    def leavers(self) -> list[Process]:
        """Return the members whose host, or slot, is not listed any more."""
        if not self.hosts.has_shrunk:
            return []
        slots = self.hosts.slots
        return [p for p in self.processes.members.values() if p.slot is None or p.slot >= slots.get(p.host, 0)]
