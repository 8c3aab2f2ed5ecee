"""The decision after a generation is over: to begin the next one, to wait, or to end the job."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from distrun.host.ranks import count
from distrun.runner.decisions.elastic import wording
from distrun.runner.decisions.elastic.actions import Say
from distrun.runner.decisions.elastic.failure_record import FailureRecord
from distrun.runner.decisions.elastic.generation import Begin, CurrentGeneration
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.workforce import Workforce
from distrun.runner.decisions.failure import Failure, refused

if TYPE_CHECKING:
    from distrun.runner.decisions.elastic.generation import Step

BATCH_TIMEOUT = 5.0  # seconds that a change waits for hosts and newcomers on their way, to be one change


@dataclass(eq=False)
class Regrouping:
    """Decides when the next generation begins, and which processes it has. No decision = it waits for more events."""

    options: ElasticOptions
    current: CurrentGeneration
    workforce: Workforce
    record: FailureRecord

    def first(self, now: float) -> list[Step]:
        """Begin the first generation when all hosts have answered once and have slots enough."""
        hosts, options = self.workforce.hosts, self.options
        if hosts.connecting.keys() - hosts.away.keys():
            return []
        missing = hosts.missing()
        have = len(self.workforce.free_places(options.max_np, 0, now))
        can_come = options.discovers and not self._has_lacked_for_long(now)
        needed = options.np if can_come else options.min_np
        if have >= needed:
            cannot = [] if options.discovers else missing.items()  # with a script it was reported at once
            return [*(Say(f"host {host} cannot be used: {why}") for host, why in cannot), self._start_all(now)]
        if options.discovers:
            return self._await_capacity(have, needed, now)
        few = f"the hosts have {count(have, 'slot')}, fewer than the {options.min_np} ranks of --min-np"
        return [refused(missing) if missing else Failure(None, 2, few)]

    def planned(self, now: float) -> list[Step]:
        """Begin the next generation after one that its members have left at a step boundary."""
        budget = self.record.budget
        if self.options.counts_changes and not budget.charge(now):
            return [Failure(None, 1, f"{self.current.reason}; {budget.exhausted}")]
        staying, joining = self.workforce.planned_members()
        return [Begin(list(staying), joining)]

    def after_failure(self, now: float) -> list[Step]:
        """Begin the next generation when no process is left in the old one, and there are ranks enough."""
        processes, options = self.workforce.processes, self.options
        if processes.leaving or self.current.unswept & self.workforce.hosts.uncertain.keys():
            return []
        for number in islice(processes.ending, 1):
            # Its exit status decides: 0 ends the job. If it takes long, it may be saving its results: 0 is assumed.
            is_late = now >= self.current.regroup_at + BATCH_TIMEOUT
            return [self.current.nothing_again(processes.members[number])] if is_late else []
        if not processes.members:
            return self._all_again(now)
        members, arrived = list(processes.members.values()), list(processes.arrived.values())
        joining = arrived[: options.max_np - len(members)]
        if len(members) + len(joining) >= options.min_np:
            return [Begin(members, joining)]
        return self._await_capacity(len(members) + len(joining), options.min_np, now)

    def _all_again(self, now: float) -> list[Step]:
        """Start all ranks again, after a pause if they fail in a row. End the job if they always fail in one place."""
        workforce, options, rounds = self.workforce, self.options, self.record.rounds
        if workforce.processes.failing:
            return []
        is_first_look, start_at = rounds.start_at is None, rounds.close(self.current.begun)
        if is_first_look and self.current.cause is not None and options.gives_up_early and rounds.futility:
            return [self.current.cause.explained(rounds.futility)]
        if is_first_look and start_at >= now + 1.0:
            pause = f"{start_at - now:.0f} s, after {rounds.count} failures in a row"
            return [self.current.report(f"all ranks start again in {pause}")]
        if now < start_at:
            return []
        have = len(workforce.processes.newcomers) + len(workforce.free_places(*workforce.room(), now))
        if have < options.min_np:
            return self._await_capacity(have, options.min_np, now)
        # Newcomers can join only ranks that enrol. So hosts that are being connected to are awaited for a while.
        can_grow = have < options.max_np and workforce.hosts.connecting
        return [] if can_grow and now < self.current.regroup_at + BATCH_TIMEOUT else [self._start_all(now)]

    def _start_all(self, now: float) -> Begin:
        start = self.workforce.start(*self.workforce.room(), now)
        return Begin([], self.workforce.processes.newcomers, start)

    def _await_capacity(self, have: int, needed: int, now: float) -> list[Step]:
        """Wait for more ranks. End the job if none can come, or if too few came within the timeout."""
        over, current = self.workforce.hosts.over, self.current
        status = 1 if current.cause is None else current.cause.status
        if over:
            return [Failure(None, status, f"{over}, so no rank can be started any more")]
        if current.lacking_since is None:
            current.lacking_since = now
        # A wait after a failure is reported at once, a wait for the first hosts only if it takes a while.
        if not current.is_reported and (current.reason or now >= current.lacking_since + BATCH_TIMEOUT):
            return [current.report(f"waiting for {count(needed - have, 'more rank')}")]
        if not self._has_lacked_for_long(now):
            return []
        return [Failure(None, status, wording.lack(have, self.options, self.workforce, now))]

    def _has_lacked_for_long(self, now: float) -> bool:
        since = self.current.lacking_since
        return since is not None and now >= since + self.options.elastic_timeout
