"""The hosts and processes of an elastic job together: where there is room, and who makes up the next generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from distrun.contract.elastic import messages
from distrun.runner.decisions import events
from distrun.runner.decisions.elastic.actions import EndProcesses, Generation, Member, Say
from distrun.runner.decisions.elastic.barring import Barring
from distrun.runner.decisions.elastic.generation import CurrentGeneration, in_rank_order
from distrun.runner.decisions.elastic.hosts import Hosts
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.processes import Process, Processes, Role, late
from distrun.runner.decisions.policy import KILL_TIMEOUT
from distrun.runner.protocol.keepalive import PER_TIMEOUT

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action

SPARE_SLOT = -1  # the slot that stands for a host's spares where failures are counted
UNKNOWN_TIMEOUT = 30.0  # seconds until an agent without keepalives has noticed for certain that its connection is cut


class Workforce:
    """The hosts and processes of a job, and which slots are barred."""

    def __init__(
        self, slots: Mapping[str, int], options: ElasticOptions, grace: float, start_timeout: float, now: float
    ) -> None:
        self.hosts = Hosts(slots, start_timeout)
        self.processes = Processes(now)
        self.barring = Barring(options.cooldown)
        self.modules: tuple[str, ...] | None = None
        """The modules that spares are to import. None = not known yet."""
        self.has_changed = True
        """Whether there may be something to start or to release."""
        self._options = options
        self._grace = grace
        self._start_timeout = start_timeout

    # --- what is known

    def note(self, event: events.Event, now: float) -> None:
        """Note an event that concerns only one host or process. Others are ignored."""
        match event:
            case events.HostStep(host, step):
                self.hosts.steps[host] = step
            case events.HostReady(host):
                self.hosts.is_ready(host)
                self.has_changed = True
            case events.HostsFound(slots):
                self.has_changed |= self.hosts.found(slots)
            case events.HostCleaned(host, is_certain=True):
                self.hosts.certain(host, now)
                self.has_changed = True
            case events.AgentGone(host):
                self.hosts.left(host)
                self.has_changed = True
            case events.RankStarted(number, pid) if number in self.processes.alive:
                self.processes.alive[number].pid = pid
                self.processes.starting.pop(number, None)

    def note_message(self, process: Process, message: messages.Message, now: float) -> None:
        """Note what a message says about `process`, which has sent it."""
        processes, is_member = self.processes, process.role is Role.MEMBER
        match message:
            case messages.Warm():
                process.is_warm = True
            case messages.Imported(modules, is_training) if is_member:
                if self.modules is None or (is_training and not processes.enrolled):
                    self.modules = tuple(modules)
                self.has_changed |= is_training
            case messages.Enrolled(modules):
                if not processes.enrolled:  # the first one: it has imported more than when it joined
                    self.modules = tuple(modules)
                processes.enroll(process.number)
                self.has_changed |= not processes.unenrolled
            case messages.Joined(generation) if is_member and generation == process.generation:
                processes.join(process.number, now)
                self.hosts.works(process.host)
                self.has_changed |= not processes.unjoined
            case messages.Waiting(0):
                processes.arrive(process.number)
            case messages.Waiting(generation) if is_member and generation == process.generation:
                processes.waiting.add(process.number)
            case messages.Ending(error="") if is_member:
                process.is_ending = True
                processes.ending.add(process.number)

    # --- starting and ending

    def start(self, limit: int, needed: int, now: float) -> frozenset[int]:
        """Start newcomers in free slots, as in `free_places`, and return their numbers."""
        places, start_by = self.free_places(limit, needed, now), now + self._start_timeout
        return frozenset(self.processes.start(host, slot, now, start_by).number for host, slot in places)

    def start_spare(self, host: str, now: float) -> int:
        """Start a spare on a host, and return its number."""
        return self.processes.start_spare(host, now, now + self._start_timeout).number

    def end(self, numbers: Iterable[int], grace: float, now: float) -> list[Action]:
        """Return the action that ends processes, unless all of them are being ended already."""
        ended = self.processes.end(numbers, now + self._grace + KILL_TIMEOUT)
        return [EndProcesses(ended, grace)] if ended else []

    def end_overdue(self, now: float) -> list[Action]:
        """End or give up processes that do not exit in time. Note which lost hosts are empty by now, for certain."""
        hosts, processes = self.hosts, self.processes
        actions: list[Action] = []
        for host in [host for host, until in hosts.uncertain.items() if until <= now]:
            hosts.certain(host, now)
            self.has_changed = True
        for number in late(processes.failing, now):
            del processes.failing[number]
            processes.leaving[number] = now + self._grace + KILL_TIMEOUT
            actions.append(EndProcesses(frozenset({number}), self._grace))
        for number in late(processes.leaving, now):
            del processes.leaving[number]
            actions.append(Say(f"{processes.alive[number].description} does not end, not even by SIGKILL"))
        return actions

    def late_hosts(self, now: float) -> list[tuple[str, str]]:
        """Return the hosts that are not ready in time, each with a text that names the step that took too long."""
        limit, steps = f"the {self._start_timeout:g} s of --start-timeout", self.hosts.steps
        return [
            (host, f"{steps.get(host, 'connecting')} took longer than {limit}")
            for host in late(self.hosts.connecting, now)
        ]

    def late_processes(self, now: float) -> list[tuple[int, str]]:
        """Return the processes that did not start, or arrive, in time, each with a text that says so."""
        processes, timeout = self.processes, self._options.elastic_timeout
        unstarted = late(processes.starting, now)
        for number in unstarted:
            del processes.starting[number]
        found = [(number, f"did not start within {self._start_timeout:g} s") for number in unstarted]
        limit = f"the {timeout:g} s of --elastic-timeout"
        arrive_by = {number: process.born + timeout for number, process in processes.arriving.items()}
        for number in late(arrive_by, now):
            found.append((number, f"did not come to distrun.init() or elastic.run within {limit}"))
        return found

    # --- what the next generation is made of

    def next_generation(
        self, current: CurrentGeneration, survivors: Iterable[Process], newcomers: Iterable[Process]
    ) -> Generation:
        """Return the generation after `current`, of `survivors` and `newcomers`."""
        ranks = {process.number: process.rank for process in survivors if process.rank is not None}
        order = in_rank_order(ranks, [process.number for process in self._in_order(newcomers)])
        alive = self.processes.alive
        members = (
            Member(number, rank, alive[number].host, slot)
            for rank, number in enumerate(order)
            if (slot := alive[number].slot) is not None
        )
        return Generation(current.plan.number + 1, tuple(members), current.reason)

    def room(self) -> tuple[int, int]:
        """Return how many more ranks the job may have, and how many it needs, if only newcomers are left."""
        newcomers = len(self.processes.newcomers)
        return self._options.max_np - newcomers, self._options.min_np - newcomers

    def leavers(self) -> list[Process]:
        """Return the members whose host, or slot, is no longer listed."""
        if not self.hosts.has_shrunk:
            return []
        slots = self.hosts.slots
        return [p for p in self.processes.members.values() if p.slot is None or p.slot >= slots.get(p.host, 0)]

    def planned_members(self) -> tuple[dict[Process, None], list[Process]]:
        """Return the members that would stay, and the newcomers that would join, if the generation were left now."""
        members, arrived = self.processes.members.values(), list(self.processes.arrived.values())
        leavers = set(self.leavers())
        # One member has to stay, because it has the training state. If all are to leave, it does so the next time.
        staying = dict.fromkeys(process for process in members if process not in leavers) or dict.fromkeys(
            islice(members, 1)
        )
        if len(staying) + len(arrived) < self._options.min_np:
            staying = dict.fromkeys(members)  # better on a host that is not listed than not at all
        return staying, arrived[: self._options.max_np - len(staying)]

    def free_places(self, limit: int, needed: int, now: float) -> list[tuple[str, int]]:
        """Return free slots as pairs of host and slot: hosts with spares first, else in the order of the hosts.

        Args:
            limit: how many at most.
            needed: how many the job cannot go on without. If there are not enough others, barred slots are used all the
                same, the next to come free first. Slots where a process failed at the start are not.
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

    # --- hosts that fail

    def host_lost(self, event: events.AgentLost, now: float) -> list[Process]:
        """Note that an agent is lost, and return the processes on its host, which are given up, too."""
        host, keepalive = event.host, self._options.keepalive
        processes = [self.processes.alive[number] for number in self.processes.on_host[host]]
        for process in processes:
            self.processes.gone(process.number)
        # An agent that is cut off ends its processes after the keepalive timeout. It checks that only now and then.
        margin = UNKNOWN_TIMEOUT if keepalive is None else keepalive + keepalive / PER_TIMEOUT + 0.5
        self.hosts.lost(host, event.reason, now + margin if processes and not event.was_silent else now, now)
        self.has_changed = True
        return processes

    def bar(self, host: str, now: float) -> list[Action] | None:
        """Bar a host, and return what ends its members, None if the job cannot do without them."""
        self.barring.bar(host, now)
        self.has_changed = True
        there = [process.number for process in self.processes.members.values() if process.host == host]
        others = len(self.processes.members) - len(there)
        places = self.free_places(self._options.max_np, 0, now)
        if not others or others + len(self.processes.newcomers) + len(places) < self._options.min_np:
            return None
        return self.end(there, 0.0, now)

    def barred(self, now: float) -> dict[str, int]:
        """Return how many slots are barred on each host that is ready, where there are any."""
        if self.barring.next_end(now) is None:
            return {}
        slots = {host: range(self.hosts.slots.get(host, 0)) for host in self.hosts.ready}
        counts = {host: sum(self.barring.until(host, slot) > now for slot in own) for host, own in slots.items()}
        return {host: count for host, count in counts.items() if count}

    def _in_order(self, processes: Iterable[Process]) -> list[Process]:
        """Return processes in the order of the hosts, as the user lists them, and of their slots."""
        order = {host: index for index, host in enumerate(self.hosts.slots)}
        return sorted(processes, key=lambda process: (order.get(process.host, len(order)), process.host, process.slot))
