"""Staffing: which hosts to connect to, which newcomers and spares to start, and what to release."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from distrun.runner.decisions.elastic.actions import ConnectHosts, ReleaseHost, StartNewcomers, StartSpares
from distrun.runner.decisions.elastic.generation import CurrentGeneration
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.workforce import SPARE_SLOT, Workforce
from distrun.runner.decisions.policy import State

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action

SPARES_TIMEOUT = 10.0  # seconds from the time when all have joined: ranks that have not enrolled by then never will


@dataclass(eq=False)
class Staffing:
    """Starts what is missing, and ends what is not needed."""

    options: ElasticOptions
    current: CurrentGeneration
    workforce: Workforce
    look_again: float
    """The time to look again although nothing has changed."""

    def act(self, now: float) -> list[Action]:
        """Return the actions that connect to hosts, start newcomers and spares, and release what is not needed.

        With thousands of processes this is the expensive part of a decision, so it does nothing unless something has
        changed.
        """
        workforce, processes = self.workforce, self.workforce.processes
        if not workforce.has_changed and now < self.look_again:
            return []
        workforce.has_changed = False
        actions = [*self._connect(now), *self._release(now)]
        if processes.members and not processes.unenrolled:
            actions += self._start_newcomers(now)
        # Ranks that enrol have imported what spares are to import. Ranks that never enrol get a while for it.
        spares_at = processes.met_at + SPARES_TIMEOUT if self.options.spares else now
        has_come_far = not processes.unjoined and (not processes.unenrolled or now >= spares_at)
        if self.current.state is State.RUNNING and (has_come_far or self.current.is_training):
            actions += self._keep_spares(now)
        times = (self.workforce.hosts.next_retry(now), workforce.barring.next_end(now), spares_at)
        self.look_again = min((time for time in times if time is not None and time > now), default=float("inf"))
        return actions

    def deadline(self) -> float:
        """Return the earliest time when a host or process is late, or when to look again."""
        processes, timeout = self.workforce.processes, self.options.elastic_timeout
        times = [*self.workforce.hosts.uncertain.values(), self.look_again]
        for deadlines in (self.workforce.hosts.connecting, processes.starting, processes.leaving, processes.failing):
            times += islice(deadlines.values(), 1)  # the first is the earliest
        times += [newcomer.born + timeout for newcomer in islice(processes.arriving.values(), 1)]
        return min(times)

    def _connect(self, now: float) -> list[Action]:
        """Connect to more hosts if there are too few slots."""
        chosen = self.workforce.hosts.to_connect(self.options.max_np + sum(self.workforce.barred(now).values()), now)
        return [ConnectHosts(frozenset(chosen))] if chosen else []

    def _release(self, now: float) -> list[Action]:
        """End what is left on unlisted hosts, except members, which leave at a step boundary. Release empty hosts."""
        actions: list[Action] = []
        for host in list(self.workforce.hosts.ready):
            if host in self.workforce.hosts.slots or host in self.workforce.hosts.releasing:
                continue
            processes = self.workforce.processes.on_host[host]
            actions += self.workforce.end(processes.keys() - self.workforce.processes.members.keys(), 0.0, now)
            if not processes:
                self.workforce.hosts.releasing.add(host)
                actions.append(ReleaseHost(host))
        return actions

    def _start_newcomers(self, now: float) -> list[Action]:
        """Start as many newcomers as there is room for, or end surplus ones."""
        workforce, processes, options = self.workforce, self.workforce.processes, self.options
        staying = len(processes.members) - len(workforce.leavers())
        wanted = options.max_np - staying - len(processes.newcomers)
        if wanted <= 0:
            surplus = [*processes.arrived, *processes.arriving][wanted:] if wanted else []
            return workforce.end(surplus, 0.0, now)
        needed = 0  # a job that runs can do without them, so slots stay barred
        if self.current.state is State.REGROUPING:
            needed = options.min_np - len(processes.members) - len(processes.newcomers)
        started = workforce.start(wanted, needed, now)
        if not started:
            return []
        expected = workforce.next_generation(self.current, processes.members.values(), processes.newcomers)
        return [StartNewcomers(expected, started)]

    def _keep_spares(self, now: float) -> list[Action]:
        """Start the spares that hosts lack."""
        workforce, per_host = self.workforce, self.options.spares
        if not per_host or workforce.modules is None:
            return []
        started: dict[int, str] = {}
        for host in self.workforce.hosts.slots:
            if self.workforce.hosts.is_usable(host) and workforce.barring.until(host, SPARE_SLOT) <= now:
                for _ in range(per_host - len(self.workforce.processes.spares[host])):
                    started[workforce.start_spare(host, now)] = host
        return [StartSpares(started, workforce.modules)] if started else []
