"""The state machine of a sweep, without any effect: events and the time go in, actions come out.

The phases of a sweep:

    RUNNING   -> FINISHING  all trials have ended, too many failed, no host can be used, a signal came, or time is up
    FINISHING -> OVER       every agent is gone, or did not leave in time

A trial whose host is lost goes back to the trials to come, `_ATTEMPTS` times at most.
"""

from __future__ import annotations

import itertools
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from distrun.contract.elastic.messages import Activated, Report
from distrun.runner.decisions import events
from distrun.runner.decisions.actions import CleanUpAfter, FinishAgents, KillAgents
from distrun.runner.decisions.elastic.actions import ConnectHosts, EndProcesses, Say
from distrun.runner.decisions.failure import Failure
from distrun.runner.planning.request import GRACE
from distrun.runner.protocol.exits import RankExit
from distrun.tools.sweep.policy.actions import (
    Action,
    ReleaseProcesses,
    StartSpares,
    StartTrial,
    TrialEnded,
)
from distrun.tools.sweep.policy.halving import Halving
from distrun.tools.sweep.policy.hosts import Hosts, Slots, place
from distrun.tools.sweep.policy.running import Running, end_ranks
from distrun.tools.sweep.policy.spares import Spares
from distrun.tools.sweep.policy.trials import Member, State, Trial, judge, too_many
from distrun.tools.sweep.policy.upcoming import Source, Upcoming

_LEAVE_TIMEOUT = 5.0  # seconds that agents have to leave when everything below them has been killed
_ATTEMPTS = 3  # to run a trial whose hosts are lost
_NOT_PRUNED = (
    "trial {} has ended without a call of distrun.report, so --prune could not end it early: what is printed does not "
    "count for that"
)


@dataclass(frozen=True)
class Limits:
    """The user's options that the decisions depend on."""

    ranks: int
    """The number of ranks of each trial."""
    grace: float = GRACE
    """Seconds between SIGTERM and SIGKILL."""
    start_timeout: float = 60.0
    """Seconds that a sweep waits when too few hosts are left for a trial."""
    max_failures: int | None = None
    """The number of failed trials that the sweep survives. None = any, unless the first three all fail alike."""
    spares: int = 0
    """The number of processes on each host that wait for the next trial."""


class Phase(Enum):
    """The phases of a sweep."""

    RUNNING = "running"
    FINISHING = "finishing"
    """No trial begins. The agents end what is left, and leave."""
    OVER = "over"


class Policy:
    """The state machine of one sweep. Call `begin` first, then `handle` with events and `tick` as time passes."""

    def __init__(
        self,
        slots: Mapping[str, int],
        limits: Limits,
        source: Source,
        halving: Halving | None = None,
        earlier: Sequence[Trial] = (),
    ) -> None:
        """Args: the slots of each host, and the rest as in `SweepPlan`."""
        self.phase = Phase.RUNNING
        self._upcoming = Upcoming(source, earlier)
        self.trials: Mapping[int, Trial] = self._upcoming.trials
        self.failure: str | None = None
        """Why the sweep ended early, a sentence. None: it did not."""
        self.status = 0
        """The exit status, when the sweep is over."""
        self.interrupted_by: int | None = None
        self._limits = limits
        self._source = source
        self._halving = halving
        self._hosts = Hosts(slots)
        self._agents: set[str] = set()
        self._new_process: Callable[[], int] = partial(next, itertools.count())
        self._spares = Spares(limits.spares, self._new_process)
        self._running = Running(limits.grace, halving)
        self._stranded_at: float | None = None
        self._ended = 0  # trials, in this run
        self._has_begun = False  # whether any trial has, in this run
        self._has_said_not_pruned = False
        self._leave_by: float | None = None

    # --- what comes in

    @property
    def deadline(self) -> float | None:
        """The time to call `tick` if no event comes before. None = never."""
        if self.phase is not Phase.RUNNING:
            return self._leave_by
        stranded = None if self._stranded_at is None else self._stranded_at + self._limits.start_timeout
        due = [self._running.deadline, self._spares.deadline, self._hosts.next_try, stranded]
        return min((time for time in due if time is not None), default=None)

    def begin(self, now: float) -> list[Action]:
        """Begin: connect to all hosts."""
        return [ConnectHosts(frozenset(self._hosts.to_connect(math.inf, now)))]

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Note an event, and return what to do."""
        match event:
            case events.HostReady(host):
                return self._host_ready(host, now)
            case events.HostRefused(host, reason):
                return self._host_refused(host, reason, now)
            case events.AgentLost(host, reason):
                return [CleanUpAfter(host), *self._host_lost(host, reason, now)]
            case events.AgentGone(host):
                return self._host_lost(host, f"the agent on {host} has left", now)
            case events.RankNotStarted(process, status, reason):
                return self._exited(process, Failure(process, status, f"could not be started: {reason}"), False, now)
            case events.RankExited(process, end, lost_peer):
                failure = Failure(process, end.status, str(end), end) if end.failed else None
                return self._exited(process, failure, lost_peer and end == RankExit(1, unasked=end.unasked), now)
            case events.ProcessSaid(process, Activated()):
                self._running.activated(process)
                return []
            case events.ProcessSaid(process, Report() as report):
                return self._reported(process, report, now)
            case events.SignalReceived(signum) if signum not in (signal.SIGUSR1, signal.SIGUSR2):
                return self._interrupted(signum, now)
            case events.OutputClosed(reason) if reason:
                return [Say(reason), *self._finish(now)]
            case events.OutputClosed():
                return self._interrupted(signal.SIGPIPE, now)
            case events.TimeUp(seconds):
                return [Say(f"the {seconds:g} s of --timeout are over"), *self._finish(now)]
            case _:
                return []

    def tick(self, now: float) -> list[Action]:
        """Note the time, and return what is due."""
        if self.phase is Phase.FINISHING and self._leave_by is not None and now >= self._leave_by:
            self.phase = Phase.OVER
            return [KillAgents()]
        if self.phase is not Phase.RUNNING:
            return []
        actions = self._running.due(now)
        if again := self._hosts.to_connect(math.inf, now):
            actions.append(ConnectHosts(frozenset(again)))
        if begun := self._spares.start(now, self._hosts.free):
            actions.append(StartSpares(begun))
        if self._stranded_at is not None and now >= self._stranded_at + self._limits.start_timeout:
            reasons = "; ".join(f"{host}: {reason}" for host, reason in self._hosts.missing().items())
            actions += self._give_up(f"there are not enough hosts left for a trial: {reasons}", now)
        return actions

    # --- hosts

    def _host_ready(self, host: str, now: float) -> list[Action]:
        self._agents.add(host)
        if self.phase is not Phase.RUNNING:
            return [FinishAgents(0.0)]
        self._hosts.is_ready(host)
        return self._fill(now)

    def _host_refused(self, host: str, reason: str, now: float) -> list[Action]:
        self._agents.discard(host)
        delay = self._hosts.refused(host, reason, now) - now
        if self.phase is not Phase.RUNNING:
            return self._agents_left()
        if not self._hosts.free and not self._hosts.connecting and not self._has_begun:
            reasons = "".join(f"\n    {name}: {why}" for name, why in self._hosts.missing().items())
            return self._give_up(f"no host can be used, so no trial was started:{reasons}", now, status=2)
        said = Say(f"host {host} cannot be used and is tried again in {delay:g} s: {reason}")
        return [said, *self._fill(now)]

    def _host_lost(self, host: str, reason: str, now: float) -> list[Action]:
        self._agents.discard(host)
        if self.phase is not Phase.RUNNING:
            return self._agents_left()
        delay = self._hosts.refused(host, reason, now) - now
        self._spares.host_lost(host)
        lost_trials = self._running.host_lost(host, reason)
        also = (
            f"; its trials are tried again: {', '.join(str(trial.number) for trial in lost_trials)}"
            if lost_trials
            else ""
        )
        actions: list[Action] = [Say(f"host {host} is lost and is tried again in {delay:g} s: {reason}{also}")]
        for trial in lost_trials:
            actions += [end_ranks(trial, 0.0)] if trial.alive else self._conclude(trial, now)
        return [*actions, *self._fill(now)]

    # --- ranks

    def _exited(self, process: int, failure: Failure | None, lost_peer: bool, now: float) -> list[Action]:
        found = None if self._spares.died(process) else self._running.pop(process)
        if found is None:
            return [ReleaseProcesses((process,))]
        trial, member = found
        is_expected = trial.failure or trial.lost or trial.is_pruned or self.phase is not Phase.RUNNING
        if process in trial.unconfirmed and not is_expected:
            actions = self._had_died(trial, member)
        else:
            actions = self._running.rank_ended(trial, member, failure, lost_peer, now)
        return actions if trial.alive else [*actions, *self._conclude(trial, now), *self._fill(now)]

    def _had_died(self, trial: Trial, spare: Member) -> list[Action]:
        """Start a trial again that never ran, because a spare had died before it became a rank. It costs no attempt."""
        self._spares.count_death(spare.host)
        trial.attempts -= 1
        trial.needs_new_processes = True
        trial.lost = f"the process on {spare.host} that waited for it had died"
        said = Say(f"trial {trial.number} is started again: {trial.lost}")
        return [said, end_ranks(trial, 0.0)] if trial.alive else [said]

    def _reported(self, process: int, report: Report, now: float) -> list[Action]:
        trial = self._running.led_by(process)
        if trial is None:
            return []
        if report.number:
            self._spares.trial_advanced(trial.hosts, now)
        return self._running.reported(trial, report)

    def _conclude(self, trial: Trial, now: float) -> list[Action]:
        """End a trial without ranks: it is tried again, or its result is recorded."""
        self._running.remove(trial)
        trial.seconds = now - trial.began
        trial.end_at = None
        kept = (member for member in trial.members if member.host not in trial.lost_hosts)
        self._hosts.give_back((member.host, member.slot) for member in kept)
        done: list[Action] = [ReleaseProcesses(tuple(member.process for member in trial.members))]
        if self.phase is not Phase.RUNNING:
            trial.state = State.WAITING
            return done
        self._spares.trial_advanced(trial.hosts, now)
        if trial.lost and not trial.is_pruned:
            if trial.attempts < _ATTEMPTS:
                self._upcoming.put_back(trial)
                if self._halving is not None:
                    self._halving.forget(trial.number)
                return done
            trial.failure = Failure(None, 1, f"was started {trial.attempts} times, and a host was lost each time")
        judge(trial, self._source.needs_values)
        self._source.tell(trial)
        self._ended += 1
        if not trial.lost:
            for host in trial.hosts:
                self._hosts.works(host)
        done += [TrialEnded(trial), *self._not_pruned(trial)]
        problem = too_many(self.trials.values(), self._ended, self._limits.max_failures)
        return done if problem is None else [*done, *self._give_up(problem, now)]

    def _not_pruned(self, trial: Trial) -> list[Action]:
        """Report, once, that trials without reports cannot be pruned."""
        if self._halving is None or self._has_said_not_pruned or trial.state is not State.COMPLETE or trial.reports:
            return []
        self._has_said_not_pruned = True
        return [Say(_NOT_PRUNED.format(trial.number))]

    # --- starting trials

    def _fill(self, now: float) -> list[Action]:
        """Start as many trials as there is room for. Finish if none is left."""
        actions: list[Action] = []
        while self.phase is Phase.RUNNING and (places := place(self._hosts.free_slots, self._limits.ranks)):
            trial = self._upcoming.next()
            if trial is None:
                break
            actions.append(self._start(trial, places, now))
        if self.phase is not Phase.RUNNING:
            return actions
        if self._upcoming.is_over:
            if not self._running:
                return [*actions, *self._finish(now, 0.0)]
            if spares := self._spares.dismiss():
                actions.append(EndProcesses(spares, 0.0))
        is_stranded = not self._running and not self._hosts.connecting and self._hosts.usable < self._limits.ranks
        if not is_stranded:
            self._stranded_at = None
        elif self._stranded_at is None:
            self._stranded_at = now
        return actions

    def _start(self, trial: Trial, places: Slots, now: float) -> Action:
        self._has_begun = True
        self._hosts.take(places)
        hosts = {host for host, _ in places}
        members = []
        for rank, (host, slot) in enumerate(places):
            # On several hosts, ranks need variables for other frameworks' networks, which a spare started without.
            spare = self._spares.take(host) if len(hosts) == 1 and not trial.needs_new_processes else None
            process = self._new_process() if spare is None else spare
            members.append(Member(rank, process, host, slot, spare is not None))
        trial.begin(tuple(members), now)
        self._running.add(trial)
        self._spares.trial_began(hosts, now)
        return StartTrial(trial)

    # --- the end

    def _interrupted(self, signum: int, now: float) -> list[Action]:
        if self.phase is Phase.FINISHING:
            self._leave_by = now + _LEAVE_TIMEOUT
            return [FinishAgents(0.0)]  # a second Ctrl-C: the user does not want to wait for the grace
        self.interrupted_by, self.status = signum, 128 + signum
        return self._finish(now)

    def _give_up(self, why: str, now: float, status: int = 1) -> list[Action]:
        self.failure, self.status = why, status
        return self._finish(now)

    def _finish(self, now: float, grace: float | None = None) -> list[Action]:
        grace = self._limits.grace if grace is None else grace
        if self.phase is not Phase.RUNNING:
            return []
        self.phase, self._leave_by = Phase.FINISHING, now + grace + _LEAVE_TIMEOUT
        ends = [trial.state in (State.COMPLETE, State.PRUNED) for trial in self.trials.values()]
        if not self.status and not any(ends):
            self.status = 1
        return [FinishAgents(grace), *self._agents_left()]

    def _agents_left(self) -> list[Action]:
        if self.phase is Phase.FINISHING and not self._agents:
            self.phase, self._leave_by = Phase.OVER, None
        return []
