"""The decisions in an elastic job, from all that is known and the time."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from distrun.runner.decisions.elastic import wording
from distrun.runner.decisions.elastic.actions import ActivateSpares, PrepareMembers, Say, StartNewcomers
from distrun.runner.decisions.elastic.links import suspected_host
from distrun.runner.decisions.elastic.processes import Process
from distrun.runner.decisions.elastic.regrouping import Regrouping
from distrun.runner.decisions.failure import Failure, refused
from distrun.runner.decisions.policy import State

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action

SPARES_TIMEOUT = 10.0  # seconds after which ranks that have joined and not enrolled are taken never to do so
REMINDER = 60.0  # seconds after which the user is told of members that come to no step boundary
SETTLE_TIMEOUT = 5.0  # seconds for which a change waits for what is on its way, so that all comes at once


class Decisions(Regrouping):
    """Decides: `_decide` is to be called whenever the facts have changed, and at the deadline."""

    def _decide(self, now: float) -> list[Action]:
        """Return what is to be done now, and set the deadline."""
        actions: list[Action] = []
        for step in (self._staff, self._advance, self._staff):
            if not self._ends_as_any_job:
                actions += step(now)
        if not self._ends_as_any_job:
            self.deadline = self._next_deadline(now)
        return actions

    def _next_deadline(self, now: float) -> float | None:
        """Return the time at which something is to be decided though nothing has happened."""
        processes, timeout = self._processes, self._options.elastic_timeout
        times = [*self._places.uncertain.values(), self._look_again]
        timers = [self._regroup_at] if self.state is State.REGROUPING else []
        for deadlines in (self._places.connecting, processes.starting, processes.leaving):
            times += list(islice(deadlines.values(), 1))  # the first is the earliest
        times += [newcomer.born + timeout for newcomer in islice(processes.arriving.values(), 1)]
        if self._lacking_since is not None:
            times.append(self._lacking_since + timeout)
            timers += [] if self._is_told else [self._lacking_since + SETTLE_TIMEOUT]
        if self.state is State.SETTLING:
            times.append(self._settle_by)
        if self.state is State.PREPARING:
            times.append(self._remind_at)
        times += islice(processes.failing.values(), 1)
        if self.state is State.REGROUPING and self._places.connecting:
            timers.append(self._regroup_at + SETTLE_TIMEOUT)
        if self.state is State.REGROUPING and processes.ending:
            timers.append(self._regroup_at + SETTLE_TIMEOUT)
        if self.state is State.REGROUPING and self._is_closed:
            timers.append(self._start_at)
        if self._planned_since is not None:
            timers.append(self._planned_since + SETTLE_TIMEOUT)
        times += [time for time in timers if time > now]
        nearest = min(times)
        return None if nearest == float("inf") else nearest

    # --- hosts and processes

    def _staff(self, now: float) -> list[Action]:
        """Connect to hosts, start newcomers and spares, and let go what is not needed, if anything has changed."""
        if not self._changed and now < self._look_again:
            return []
        self._changed = False
        actions: list[Action] = [*self._workforce.connect(now), *self._workforce.let_go(now)]
        if self._processes.members and not self._processes.unenrolled:
            actions += self._start_newcomers(now)
        timers = self._met + SPARES_TIMEOUT if self._options.spares else now
        has_come_far = self._has_met and (not self._processes.unenrolled or now >= timers)
        if has_come_far or (self._is_training and self.state is State.RUNNING):
            actions += self._workforce.keep_spares(now)
        times = (self._places.next_retry(now), self._workforce.barring.next_end(now), timers)
        self._look_again = min((time for time in times if time is not None and time > now), default=float("inf"))
        return actions

    def _start_newcomers(self, now: float) -> list[Action]:
        """Start as many newcomers as there is room for, or end those for which there is none any more."""
        processes, options = self._processes, self._options
        staying = len(processes.members) - len(self._workforce.leavers())
        wanted = options.max_np - staying - len(processes.newcomers)
        if wanted <= 0:
            surplus = [*processes.arrived, *processes.arriving][wanted:] if wanted else []
            return self._end_processes(surplus, 0.0, now)
        needed = 0
        if self.state is State.REGROUPING:
            needed = max(0, options.min_np - len(processes.members) - len(processes.newcomers))
        newcomers, spares = self._workforce.start(self._workforce.free_places(wanted, needed, now), now)
        if not newcomers:
            return []
        expected = self._next_generation(processes.members.values(), processes.newcomers)
        started = frozenset(process.number for process in newcomers) - spares
        return [
            *([ActivateSpares(expected, spares)] if spares else []),
            *([StartNewcomers(expected, started)] if started else []),
        ]

    # --- from state to state

    @property
    def _has_met(self) -> bool:
        """Whether all ranks of the present generation have met, and it is not to be left."""
        return self.state is State.RUNNING and not self._processes.unjoined

    @property
    def _all_wait(self) -> bool:
        return len(self._processes.waiting) == len(self._processes.members)

    def _advance(self, now: float) -> list[Action]:
        """Go on to another state if it is time."""
        processes = self._processes
        match self.state:
            case State.CONNECTING:
                return self._begin_first(now)
            case State.RUNNING if self._has_met and not self._processes.unenrolled:
                return self._plan(now)
            case State.SETTLING if now >= self._settle_by or self._all_wait:
                return self._settle(now)
            case State.PREPARING if self._all_wait:
                return self._begin_planned(now)
            case State.PREPARING if now >= self._remind_at:
                self._remind_at = float("inf")  # once: it goes on waiting, for nothing is lost by that
                late = [member for number, member in processes.members.items() if number not in processes.waiting]
                return [Say(wording.no_boundary(late, self._reason, REMINDER))]
            case State.REGROUPING if now >= self._regroup_at:
                return self._regroup(now)
            case _:
                return []

    def _begin_first(self, now: float) -> list[Action]:
        """Begin the first generation when no host is being connected to for the first time, and there is room."""
        if self._places.connecting.keys() - self._places.away.keys():
            return []
        options, missing = self._options, self._places.missing()
        have = len(self._workforce.free_places(options.max_np, 0, now))
        can_come = options.discovers and not self._has_lacked_for_long(now)
        needed = options.np if can_come else options.min_np
        if have >= needed:
            cannot = [] if options.discovers else missing.items()  # else it was told when it happened
            return [*(Say(f"host {host} cannot be used: {why}") for host, why in cannot), *self._begin_anew(now)]
        if options.discovers:
            return self._await_capacity(have, needed, now)
        few = f"the hosts have {wording.count(have, 'slot')}, fewer than the {options.min_np} ranks of --min-np"
        return self._failed_as_a_whole(refused(missing) if missing else Failure(None, 2, few), now)

    def _plan(self, now: float) -> list[Action]:
        """Have the members leave at a step boundary if newcomers wait, or if hosts are to be released."""
        processes = self._processes
        staying, joining = self._planned_members()
        if len(staying) == len(processes.members) and not joining:
            self._planned_since = None
            return []
        if self._planned_since is None:
            self._planned_since = now
        if processes.arriving and now < self._planned_since + SETTLE_TIMEOUT:
            return []
        leavers = [process for process in processes.members.values() if process not in staying]
        self.state, self._reason, self._is_told = State.PREPARING, wording.change(len(joining), leavers), False
        self._remind_at = now + REMINDER
        return [PrepareMembers(self._generation.number, frozenset(processes.members), self._reason)]

    def _planned_members(self) -> tuple[dict[Process, None], list[Process]]:
        """Return who would stay, and who would join, if the generation were left now."""
        members, arrived = self._processes.members.values(), list(self._processes.arrived.values())
        max_np = self._options.max_np
        leavers = set(self._workforce.leavers())
        # Somebody has to stay who knows what has been learnt: where all leave, the last one does so the next time.
        staying = dict.fromkeys(process for process in members if process not in leavers) or dict.fromkeys(
            islice(members, 1)
        )
        if len(staying) + len(arrived) < self._options.min_np:
            staying = dict.fromkeys(members)  # better on a host that may go than not at all
        return staying, arrived[: max_np - len(staying)]

    def _begin_planned(self, now: float) -> list[Action]:
        if self._options.counts_changes and not self._budget.charge(now):
            return self._failed_as_a_whole(Failure(None, 1, f"{self._reason}; {self._budget.exhausted}"), now)
        staying, joining = self._planned_members()
        return self._begin(list(staying), joining, frozenset(), now)

    def _settle(self, now: float) -> list[Action]:
        """Take it that a link has failed, since no process has."""
        hosts = {member.rank: member.host for member in self._generation.members}
        suspect, before = suspected_host(self._complaints, hosts), self._suspect
        rank, complaint = next(iter(self._complaints.items()))
        sentence = complaint if self._lost_peer else f"rank {rank} on {hosts[rank]} has lost its peers: {complaint}"
        actions = self._broken(self._lost_peer or Failure(None, 1, sentence), sentence, [], now)
        self._unheard = self._processes.members.keys() - self._processes.waiting
        self._link_failure = self._history.last
        self._suspect = suspect
        if suspect is not None and suspect == before and self.state is State.REGROUPING:
            actions += self._bar(suspect, now)
        return actions

    def _bar(self, host: str, now: float) -> list[Action]:
        """Do without a host whose links have failed twice in a row, if the job can."""
        self._workforce.barring.bar(host, now)
        self._changed = True
        there = [process.number for process in self._processes.members.values() if process.host == host]
        others = len(self._processes.members) - len(there)
        places = self._workforce.free_places(self._options.max_np, 0, now)
        if not others or others + len(self._processes.newcomers) + len(places) < self._options.min_np:
            return []
        text = f"host {host} is barred for a while: its links have failed twice in a row"
        return [Say(text), *self._end_processes(there, 0.0, now)]

    def _regroup(self, now: float) -> list[Action]:
        """Begin the next generation when nobody can go on in the old one, and there are ranks enough."""
        processes, options = self._processes, self._options
        if processes.leaving or self._unswept & self._places.uncertain.keys():
            return []
        for number in islice(processes.ending, 1):
            # Its status decides. If that takes long, it is saving its results, say.
            is_late = now >= self._regroup_at + SETTLE_TIMEOUT
            return self._at_the_end_already(processes.members[number], now) if is_late else []
        members, arrived = list(processes.members.values()), list(processes.arrived.values())
        if members:
            joining = arrived[: options.max_np - len(members)]
            if len(members) + len(joining) >= options.min_np:
                return self._begin(members, joining, frozenset(), now)
            return self._await_capacity(len(members) + len(joining), options.min_np, now)
        if processes.failing:
            return []
        if actions := self._pause(now):
            return actions
        if now < self._start_at:
            return []
        newcomers = len(processes.newcomers)
        room, needed = options.max_np - newcomers, options.min_np - newcomers
        have = newcomers + len(self._workforce.free_places(room, needed, now))
        if have >= options.min_np:
            if have < options.max_np and self._places.connecting and now < self._regroup_at + SETTLE_TIMEOUT:
                return []  # ranks that are all started again cannot be joined later unless they enrol
            return self._begin_anew(now)
        return self._await_capacity(have, options.min_np, now)

    def _pause(self, now: float) -> list[Action]:
        """Put the next start off if ranks have failed in a row; end the job if they always fail in the same place."""
        if self._is_closed:
            return []
        self._is_closed, self._start_at = True, self._rounds.close(self._begun)
        if self._cause is not None and self._options.gives_up_early and (why := self._rounds.futility):
            return self._fail_for_good(self._cause, why, now)
        if self._start_at < now + 1.0:
            return []
        text = f"all ranks start again in {self._start_at - now:.0f} s, after {self._rounds.count} failures in a row"
        said, self._is_told = self._is_told, True
        return [Say(text if said else f"{self._reason}: {text}")]

    # --- too few ranks

    def _await_capacity(self, have: int, needed: int, now: float) -> list[Action]:
        options = self._options
        status = 1 if self._cause is None else self._cause.status
        if self._places.over:
            text = f"{self._places.over}, so no rank can be started any more"
            return self._failed_as_a_whole(Failure(None, status, text), now)
        if self._lacking_since is None:
            self._lacking_since = now
        # At the start, nobody wonders yet.
        if not self._is_told and (self._reason or now >= self._lacking_since + SETTLE_TIMEOUT):
            self._is_told = True
            text = f"waiting for {wording.count(needed - have, 'more rank')}"
            return [Say(f"{self._reason}: {text}" if self._reason else text)]
        if not self._has_lacked_for_long(now):
            return []
        text = wording.lack(have, options, self._workforce, now)
        return self._failed_as_a_whole(Failure(None, status, text), now)

    def _has_lacked_for_long(self, now: float) -> bool:
        since = self._lacking_since
        return since is not None and now >= since + self._options.elastic_timeout
