"""The decisions about an elastic job, without any effect: events and the time go in, actions come out.

The states of an elastic job; those from its end on are any job's:

    CONNECTING -> RUNNING     there are slots enough: the first generation begins
    RUNNING    -> SETTLING    a rank has lost a peer, and it is not known yet who failed
               -> PREPARING   newcomers wait, or a host is not listed any more: members leave at their next boundary
               -> REGROUPING  a member died, or an agent was lost
    SETTLING   -> REGROUPING  it is known who failed; or nobody did, and it was a link
    PREPARING  -> RUNNING     all members wait: the next generation begins
               -> REGROUPING  a member died meanwhile
    REGROUPING -> RUNNING     every member of the old generation is dead or in the next one, and there are ranks enough
    all        -> ENDING      no restart is left, or there were too few ranks for too long, or a signal came

Once a member has ended well the job ends as any job does: nothing is regrouped any more.

An event only changes what is known; what is to be done is then decided from all that is known and the time. So events
may come in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from distrun.contract.elastic import messages
from distrun.runner.decisions import events
from distrun.runner.decisions.actions import CleanUpAfter
from distrun.runner.decisions.elastic.failures import Failures
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.processes import Process, Role
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.policy import State

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action


class ElasticPolicy(Failures):
    """The state machine of one elastic job, with the interface of any job's.

    What differs for the code that executes its actions:

    - Numbers are of processes, not of ranks, wherever events, actions of any job (`SignalRanks`) and `Failure` have a
      rank. Processes are numbered as they are started; a spare has its number before it has a rank.
    - Nothing is connected to before the first `tick`, which is due at once and asks for it (`ConnectHosts`). Every
      host, this machine too, is then reported as `HostReady` or `HostRefused`. A host that takes too long may be asked
      for again while it is still being connected to: that changes nothing.
    - `BeginGeneration` starts the ranks, from the first generation on; there is no `StartRanks`. A process in its
      `start` that is a spare is activated instead, with its firm place.
    - `CleanUpAfter` has a host swept, without blocking; the result is to be posted as `HostCleaned`, always.
    - A host that is to be released leaves with `AgentGone`, as at the end.
    """

    def __init__(
        self, hosts: Mapping[str, int], options: ElasticOptions, grace: float, start_timeout: float, now: float
    ) -> None:
        """
        Args:
            hosts: host -> slots, in the user's order; may be empty if a script lists the hosts.
            options: the limits.
            grace: seconds between SIGTERM and SIGKILL.
            start_timeout: seconds in which a host must be ready, and a process started.
            now: the time, in seconds of one monotonic clock.
        """
        super().__init__(hosts, options, grace, start_timeout, now)

    @property
    def accepts_hosts(self) -> bool:
        """Whether a host that is ready now is of use; else its agent is to be ended."""
        return not self._ends_as_any_job

    @property
    def alive(self) -> frozenset[int]:
        """The numbers of the processes that are alive, as far as is known."""
        return frozenset(self._processes.alive)

    @property
    def failure_history(self) -> list[str]:
        """One line for each failure so far, the last ones if there are many, for the report of a job that failed."""
        return self._history.lines

    def name(self, process: int) -> str:
        """Return what to call a process: `rank 1 on h2`, `a newcomer on h2`, `a spare on h2`."""
        return str(self._processes.known[process])

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Note an event; return what is to be done."""
        if self._ends_as_any_job:
            return self._handle_at_the_end(event, now)
        return [*self._note(event, now), *self._decide(now)]

    def tick(self, now: float) -> list[Action]:
        """Note the time; return what is to be done if the deadline has passed."""
        if self._ends_as_any_job:
            return super().tick(now)
        if self.deadline is None or now < self.deadline:
            return []
        return [*self._give_up_on_the_late(now), *self._decide(now)]

    # --- events

    def _note(self, event: events.Event, now: float) -> list[Action]:
        match event:
            case events.HostStep(host, step):
                self._places.steps[host] = step
            case events.HostReady(host):
                self._places.is_ready(host)
                self._changed = True
            case events.HostRefused(host, reason, is_final):
                return self._refused(host, reason, now, is_final)
            case events.HostsFound(slots):
                self._changed |= self._places.found(slots)
            case events.HostCleaned(host, is_certain):
                if is_certain:
                    self._places.certain(host, now)
                    self._changed = True
            case events.AgentGone(host):
                return self._agent_left(host, now)
            case events.AgentLost():
                return self._lost_agent(event, now)
            case events.RankStarted(number, pid):
                if (process := self._processes.alive.get(number)) is not None:
                    process.pid = pid
                    self._processes.starting.pop(number, None)
            case events.RankNotStarted(number, status, reason):
                return self._not_started(number, Failure(number, status, f"was not started: {reason}"), now)
            case events.RankExited():
                return self._process_exited(event, now)
            case events.ProcessSaid(number, message):
                if (process := self._processes.alive.get(number)) is not None:
                    return self._said(process, message, now)
            case _:
                return super().handle(event, now)
        return []

    def _agent_left(self, host: str, now: float) -> list[Action]:
        if host in self._places.releasing:
            self._places.left(host)
            self._changed = True
            return []
        return self._host_lost(events.AgentLost(host, f"the agent on {host} has left", was_silent=True), now)

    def _lost_agent(self, event: events.AgentLost, now: float) -> list[Action]:
        return [CleanUpAfter(event.host), *self._host_lost(event, now)]

    def _not_started(self, number: int, failure: Failure, now: float) -> list[Action]:
        """End the job if its first ranks cannot be started: it would be so everywhere, and again."""
        process = self._processes.alive.get(number)
        if process is not None and process.generation == 1:
            return self._failed_as_a_whole(failure, now)
        return self._gone(number, failure, False, now)

    def _process_exited(self, event: events.RankExited, now: float) -> list[Action]:
        failure = Failure(event.rank, event.exit.status, str(event.exit), event.exit)
        # No other process takes the place of a member that ends well: those that wait to meet it wait in vain.
        is_missed = event.rank in self._processes.unjoined and not event.exit.failed
        actions = self._gone(event.rank, failure, event.lost_peer, now)
        return [*actions, *self._tell_departure(event.rank)] if is_missed else actions

    def _said(self, process: Process, message: messages.Message, now: float) -> list[Action]:
        number, is_member = process.number, process.role is Role.MEMBER
        match message:
            case messages.Warm():
                process.is_warm = True
            case messages.Imported(modules, is_training) if is_member:
                if self._workforce.modules is None or (is_training and not self._processes.enrolled):
                    self._workforce.modules = tuple(modules)
                self._is_training |= is_training
                self._changed |= is_training
            case messages.Enrolled(modules):
                if not self._processes.enrolled:  # it has imported more than when it joined
                    self._workforce.modules = tuple(modules)
                self._processes.enroll(number)
                self._has_state = True
                self._changed |= not self._processes.unenrolled
            case messages.Joined(generation) if is_member and generation == process.generation:
                self._processes.unjoined.discard(number)
                self._unheard.discard(number)
                self._met = now
                self._has_joined = True
                self._places.works(process.host)
                self._changed |= not self._processes.unjoined
            case messages.Waiting(0):
                self._processes.arrive(number)
            case messages.Waiting(generation, reason) if is_member and generation == process.generation:
                self._processes.waiting.add(number)
                self._unheard.discard(number)
                if self.state in (State.RUNNING, State.SETTLING):
                    self._complain(process, reason, now)
            case messages.Ending(error="") if is_member:
                process.is_ending = True
                self._processes.ending.add(number)
            case messages.Ending() if is_member:
                return self._raised(process, message, now)
            case messages.Finished() if is_member:
                return self._ended_well(process, now)
        return []
