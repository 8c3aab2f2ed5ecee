"""The decisions about an elastic job, without any effect: events and the time go in, actions come out.

The states of an elastic job. From its end on they are as in any job:

    CONNECTING -> RUNNING     there are slots enough: the first generation begins
    RUNNING    -> SETTLING    a rank has lost a peer, and it is not known yet which process failed
               -> PREPARING   newcomers wait, or a host is no longer listed: members leave at their next step boundary
               -> REGROUPING  a member died, or an agent was lost
    SETTLING   -> REGROUPING  the failed process is known, or none has failed, so it was a link
    PREPARING  -> RUNNING     all members wait: the next generation begins
               -> REGROUPING  a member died meanwhile
    REGROUPING -> RUNNING     every member of the old generation is dead or in the next one, and there are ranks enough
    all        -> ENDING      no restart is left, or there were too few ranks for too long, or a signal came

When a member has ended well, the job ends as any job does: nothing is regrouped then, and `Ending` decides.

`ElasticPolicy` alone begins generations and ends the job. Its collaborators return decisions, and are handed what they
need: `Failures` decides what a failure means, `Regrouping` when the next generation begins and which processes it has,
and `Staffing` which hosts and processes to start or to release. They share `CurrentGeneration`, which has the state,
`Workforce`, which has the hosts and processes, and `FailureRecord`.

An event only changes what is known. What to do is then decided from all that is known and the time, so events may come
in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from distrun.contract.elastic import messages
from distrun.runner.decisions import events
from distrun.runner.decisions.actions import CleanUpAfter, TellDeparture
from distrun.runner.decisions.elastic import wording
from distrun.runner.decisions.elastic.actions import BeginGeneration, PrepareMembers, Say
from distrun.runner.decisions.elastic.ending import Ending
from distrun.runner.decisions.elastic.failure_record import FailureRecord
from distrun.runner.decisions.elastic.failures import Failures
from distrun.runner.decisions.elastic.generation import Begin, CurrentGeneration, Finish
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.processes import Process, Role
from distrun.runner.decisions.elastic.regrouping import BATCH_TIMEOUT, Regrouping
from distrun.runner.decisions.elastic.staffing import Staffing
from distrun.runner.decisions.elastic.workforce import Workforce
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.policy import State

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action
    from distrun.runner.decisions.elastic.generation import Step

REMINDER = 60.0  # seconds after which members that have not reached a step boundary are reported


class ElasticPolicy:
    """The state machine of one elastic job, with the interface of `decisions.policy.Policy`.

    What differs for the code that executes its actions:

    - Where events, actions of any job (`SignalRanks`) and `Failure` have a rank, the number is a process's. Processes
      are numbered as they are started, so a spare has its number before it has a rank.
    - No host is connected to before the first `tick`, which is due at once and returns `ConnectHosts`. Every host, this
      machine too, is then reported as `HostReady` or `HostRefused`. `ConnectHosts` may name a host again that takes too
      long and is still being connected to. That changes nothing.
    - `BeginGeneration` starts the ranks, also of the first generation, so there is no `StartRanks`. A process in its
      `start` that is a spare is activated instead, with its final rank.
    - `CleanUpAfter` sweeps a host without blocking. The result is always posted as `HostCleaned`.
    - A host that is released leaves with `AgentGone`, as at the end.
    """

    def __init__(
        self, hosts: Mapping[str, int], options: ElasticOptions, grace: float, start_timeout: float, now: float
    ) -> None:
        """
        Args:
            hosts: host -> slots, in the user's order. May be empty if a script lists the hosts.
            options: the limits.
            grace: seconds between SIGTERM and SIGKILL.
            start_timeout: seconds until a host must be ready, and a process started.
            now: the time, in seconds of one monotonic clock.
        """
        self._options = options
        self._grace = grace
        self._deadline: float | None = now
        self._current = CurrentGeneration(now)
        self._workforce = Workforce(hosts, options, grace, start_timeout, now)
        self._processes = self._workforce.processes
        self._record = FailureRecord(options, now)
        self._failures = Failures(options, grace, self._current, self._workforce, self._record)
        self._regrouping = Regrouping(options, self._current, self._workforce, self._record)
        self._staffing = Staffing(options, self._current, self._workforce, now)
        self._ending: Ending | None = None
        """The policy of the end, when nothing is regrouped. None until then."""

    @property
    def state(self) -> State:
        """The state of the job."""
        return self._current.state if self._ending is None else self._ending.state

    @property
    def deadline(self) -> float | None:
        """The time to call `tick` if no event comes before. None = never."""
        return self._deadline if self._ending is None else self._ending.deadline

    @property
    def failure(self) -> Failure | None:
        """The failure that has ended the job."""
        return None if self._ending is None else self._ending.failure

    @property
    def interrupted_by(self) -> int | None:
        """The signal that ended the job, when it was one sent to the launcher."""
        return None if self._ending is None else self._ending.interrupted_by

    @property
    def status(self) -> int:
        """The exit status of the job."""
        return 0 if self._ending is None else self._ending.status

    @property
    def accepts_hosts(self) -> bool:
        """Whether the job takes hosts that become ready now. If not, their agents are to be ended."""
        return self._ending is None

    @property
    def alive(self) -> frozenset[int]:
        """The numbers of the processes that are not known to be dead."""
        return frozenset(self._processes.alive)

    @property
    def failure_history(self) -> list[str]:
        """One line for each failure so far, or for the last ones if there are many."""
        return self._record.history.lines

    def name(self, process: int) -> str:
        """Return what to call a process: `rank 1 on h2`, `a newcomer on h2`, `a spare on h2`."""
        return str(self._processes.known[process])

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Note an event, and return what to do."""
        if self._ending is not None:
            return self._ending.handle(event, now)
        return [*self._execute(self._note(event, now), now), *self._decide(now)]

    def tick(self, now: float) -> list[Action]:
        """Note the time, and return what to do if the deadline has passed."""
        if self._ending is not None:
            return self._ending.tick(now)
        if self._deadline is None or now < self._deadline:
            return []
        return [*self._give_up_on_the_late(now), *self._decide(now)]

    # --- events

    def _note(self, event: events.Event, now: float) -> list[Step]:
        failures = self._failures
        match event:
            case events.HostRefused(host, reason, is_final):
                return failures.host_refused(host, reason, now, is_final)
            case events.AgentGone(host) if host not in self._workforce.hosts.releasing:
                lost = events.AgentLost(host, f"the agent on {host} has left", was_silent=True)
                return failures.host_lost(lost, now)
            case events.AgentLost(host):
                return [CleanUpAfter(host), *failures.host_lost(event, now)]
            case events.RankNotStarted():
                return failures.not_started(event, now)
            case events.RankExited(number, end):
                # A member that ends well is not replaced, so others that wait to meet it must not wait for ever.
                is_missed = number in self._processes.unjoined and not end.failed
                steps = failures.exited(event, now)
                return [*steps, TellDeparture(number)] if is_missed else steps
            case events.ProcessSaid(number, message):
                process = self._processes.alive.get(number)
                return [] if process is None else self._said(process, message, now)
            case events.SignalReceived() | events.OutputClosed() | events.Printed() | events.TimeUp():
                return self._handle_as_any_job(event, now)
            case _:
                self._workforce.note(event, now)
                return []

    def _said(self, process: Process, message: messages.Message, now: float) -> list[Step]:
        self._workforce.note_message(process, message, now)
        if process.role is not Role.MEMBER:
            return []
        match message:
            case messages.Imported(is_training=True):
                self._current.is_training = True
            case messages.Joined(generation) if generation == process.generation:
                self._current.has_joined = True
                self._record.confirmed(process.number)
            case messages.Waiting(generation, reason) if generation == process.generation:
                self._record.confirmed(process.number)
                self._failures.left(process, reason, now)
            case messages.Ending(error) if error:
                return self._failures.raised(process, message, now)
            case messages.Finished():
                return self._failures.ended_well(process)
        return []

    def _handle_as_any_job(self, event: events.Event, now: float) -> list[Step]:
        ending = self._make_ending(self._processes.alive, now)
        actions = ending.handle(event, now)
        if ending.has_begun:  # a signal that is only passed on to the ranks changes nothing
            self._ending = ending
        return [*actions]

    def _give_up_on_the_late(self, now: float) -> list[Action]:
        steps: list[Step] = []
        for host, reason in self._workforce.late_hosts(now):
            steps += self._failures.host_refused(host, reason, now)
        actions = self._execute([*steps, *self._workforce.end_overdue(now)], now)
        for number, what in self._workforce.late_processes(now):
            if self._ending is None:
                actions += self._execute(self._failures.too_late(number, what, now), now)
        return actions

    # --- decisions

    def _decide(self, now: float) -> list[Action]:
        """Return what to do now, and set the deadline."""
        actions: list[Action] = []
        for decide in (self._staffing.act, self._advance, self._staffing.act):
            if self._ending is None:
                actions += self._execute(decide(now), now)
        if self._ending is None:
            self._deadline = self._next_deadline(now)
        return actions

    def _advance(self, now: float) -> list[Step]:
        """Return what leads to the next state, if it is time."""
        current, processes = self._current, self._processes
        all_wait = len(processes.waiting) == len(processes.members)
        match current.state:
            case State.CONNECTING:
                return self._regrouping.first(now)
            case State.RUNNING if not processes.unjoined and not processes.unenrolled:
                return self._plan(now)
            case State.SETTLING if now >= current.settle_by or all_wait:
                return self._failures.blame_link(now)
            case State.PREPARING if all_wait:
                return self._regrouping.planned(now)
            case State.PREPARING if now >= current.remind_at:
                current.remind_at = float("inf")  # only once: the wait itself costs nothing, and has no limit
                late = [member for number, member in processes.members.items() if number not in processes.waiting]
                return [Say(wording.no_boundary(late, current.reason, REMINDER))]
            case State.REGROUPING if now >= current.regroup_at:
                return self._regrouping.after_failure(now)
            case _:
                return []

    def _plan(self, now: float) -> list[Step]:
        """Ask the members to leave at a step boundary if newcomers wait, or if hosts are to be released."""
        processes, current = self._processes, self._current
        staying, joining = self._workforce.planned_members()
        if len(staying) == len(processes.members) and not joining:
            current.planned_since = None
            return []
        if current.planned_since is None:
            current.planned_since = now
        if processes.arriving and now < current.planned_since + BATCH_TIMEOUT:
            return []
        leavers = [process for process in processes.members.values() if process not in staying]
        current.leave(State.PREPARING, wording.change(len(joining), leavers))
        current.remind_at = now + REMINDER
        return [PrepareMembers(current.plan.number, frozenset(processes.members), current.reason)]

    def _next_deadline(self, now: float) -> float | None:
        """Return the next time to decide something although no event has come, None if there is none."""
        current = self._current
        times: list[float] = [self._staffing.deadline()]
        waits: list[float] = []
        if current.lacking_since is not None:
            times.append(current.lacking_since + self._options.elastic_timeout)
            waits += [] if current.is_reported else [current.lacking_since + BATCH_TIMEOUT]
        if current.planned_since is not None:
            waits.append(current.planned_since + BATCH_TIMEOUT)
        match current.state:
            case State.SETTLING:
                times.append(current.settle_by)
            case State.PREPARING:
                times.append(current.remind_at)
            case State.REGROUPING:
                waits.append(current.regroup_at)
                if self._workforce.hosts.connecting or self._processes.ending:
                    waits.append(current.regroup_at + BATCH_TIMEOUT)
                if self._record.rounds.start_at is not None:
                    waits.append(self._record.rounds.start_at)
        # A deadline in the past has yet to be handled, so it counts. A wait that is over has nothing left to trigger.
        nearest = min(chain(times, (time for time in waits if time > now)))
        return None if nearest == float("inf") else nearest

    # --- executing decisions

    def _execute(self, steps: Iterable[Step], now: float) -> list[Action]:
        """Execute decisions that begin a generation or end the job, and return the actions for this and the others."""
        actions: list[Action] = []
        for step in steps:
            match step:
                case Begin():
                    actions += self._begin(step, now)
                case Failure():
                    self._ending = self._make_ending(self._processes.alive, now)
                    actions += self._ending.fail_as_a_whole(step, now)
                case Finish():
                    actions += self._finish(step, now)
                case TellDeparture(number) if self._ending is not None:
                    actions += self._ending.tell_departure(number)
                case _:
                    actions.append(step)
        return actions

    def _begin(self, begin: Begin, now: float) -> list[Action]:
        """Begin the next generation, and report it from the second one on."""
        current, processes, workforce = self._current, self._processes, self._workforce
        generation = workforce.next_generation(current, begin.survivors, begin.newcomers)
        has_survivors = bool(begin.survivors)
        dropped = processes.members.keys() - {process.number for process in begin.survivors}
        ended = workforce.end(dropped, self._grace, now)
        said: list[Action] = []
        if generation.number > 1:
            lost = current.plan.members if processes.have_state and not has_survivors else ()
            budget = "" if current.cause is None else f"; {self._record.budget.describe(now)}"
            said = [current.report(wording.begun(generation, has_survivors, lost) + budget)]
        processes.begin(generation.number, [processes.alive[member.process] for member in generation.members])
        self._record.rounds.begin(has_survivors)
        current.begin(generation, now, has_survivors)
        workforce.has_changed = True
        return [BeginGeneration(generation, begin.start), *ended, *said]

    def _finish(self, finish: Finish, now: float) -> list[Action]:
        """End when all members have exited. Newcomers and spares are ended at once."""
        processes = self._processes
        others = [*processes.arriving, *processes.arrived, *chain(*processes.spares.values())]
        ended = self._workforce.end(others, 0.0, now)
        self._ending = self._make_ending(processes.members, now)
        return [*ended, *self._ending.await_exits(finish.lost_peer, now)]

    def _make_ending(self, processes: Mapping[int, Process], now: float) -> Ending:
        agents, generation = self._workforce.hosts.ready, self._current.plan.number
        return Ending(processes.values(), agents, generation, self._grace, now)
