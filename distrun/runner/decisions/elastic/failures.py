"""The consequences of failures: of hosts, of processes, of links, and of what does not happen in time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distrun.contract.elastic import messages
from distrun.runner.decisions import events
from distrun.runner.decisions.elastic import wording
from distrun.runner.decisions.elastic.actions import Say
from distrun.runner.decisions.elastic.failure_record import FailureRecord, is_by_itself
from distrun.runner.decisions.elastic.generation import CurrentGeneration, Finish
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.processes import Process, Role
from distrun.runner.decisions.elastic.workforce import SPARE_SLOT, Workforce
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.policy import ROOT_CAUSE_TIMEOUT, State
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.keepalive import PER_TIMEOUT

if TYPE_CHECKING:
    from distrun.runner.decisions.elastic.generation import Step

GATHER_TIME = 0.01  # seconds in which the deaths of several processes, reported one after the other, become one regroup
_WORKING = (State.RUNNING, State.SETTLING)


@dataclass(eq=False)
class Failures:
    """Ends the present generation, or the job, if a failure is a reason for that."""

    options: ElasticOptions
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    current: CurrentGeneration
    workforce: Workforce
    record: FailureRecord

    # --- hosts

    def host_refused(self, host: str, reason: str, now: float, is_final: bool = False) -> list[Step]:
        """Note that a host cannot be used."""
        hosts = self.workforce.hosts
        said = (hosts.over, hosts.away[host].reason if host in hosts.away else "")
        if is_final:
            hosts.over = reason
        retry = hosts.refused(host, reason, now)
        self.workforce.has_changed = True
        if reason in said or (self.current.state is State.CONNECTING and not self.options.discovers):
            return []  # the second: either it is why the job ends, or it is told when the job begins without the host
        if is_final:
            return [Say(f"no host can be used any more: {reason}")]
        return [Say(f"host {host} cannot be used now: {reason} (next try in {retry - now:g} s)")]

    def host_lost(self, event: events.AgentLost, now: float) -> list[Step]:
        """Give up the processes of a host. Until it is certain that they are dead, there is no new generation."""
        host, hosts, number = event.host, self.workforce.hosts, self.current.plan.number
        if host not in hosts.ready and host not in hosts.connecting:
            return []
        was_released = host in hosts.releasing
        members = [process for process in self.workforce.host_lost(event, now) if process.generation == number > 0]
        if was_released:
            return []
        self.workforce.barring.failed(host, None, now)
        if members:
            self.record.rounds.failed(None)
            self.current.unswept.add(host)
            return self._break(Failure(None, event.status, event.reason), event.reason, members, now)
        self.record.history.add(event.reason, number, now)
        return [] if self.current.state is State.CONNECTING else [Say(event.reason)]

    # --- processes

    def not_started(self, event: events.RankNotStarted, now: float) -> list[Step]:
        """End the job if its first ranks cannot be started: it would be so everywhere, and again."""
        failure = Failure(event.rank, event.status, f"was not started: {event.reason}")
        process = self.workforce.processes.alive.get(event.rank)
        if process is not None and process.generation == 1:
            return [failure]
        return self._gone(failure, False, now)

    def exited(self, event: events.RankExited, now: float) -> list[Step]:
        """Note the exit of a process."""
        failure = Failure(event.rank, event.exit.status, str(event.exit), event.exit)
        return self._gone(failure, event.lost_peer, now)

    def too_late(self, number: int, what: str, now: float) -> list[Step]:
        """End a process that is late, and treat it as one that failed."""
        if (process := self.workforce.processes.alive.get(number)) is None:
            return []
        role = process.role
        ended = self.workforce.end({number}, 0.0, now)
        return [*ended, *self._failed(process, role, Failure(number, 1, what), False, now)] if ended else []

    def raised(self, process: Process, ending: messages.Ending, now: float) -> list[Step]:
        """Go on without a member whose script has raised an exception, before it has exited.

        Where the job would end by that, the exit is waited for: until then the process may save what it has.
        """
        at = f" at {ending.site}" if ending.site else ""
        place = f"{ending.error.partition(':')[0]}{at}, after {wording.count(ending.step, 'step')}" if at else ""
        failure = Failure(process.number, 1, f"raised {ending.error}{at}", RankExit(1), place)
        if self.record.budget.left(now) > 0:
            self.workforce.processes.fail(process.number, now + self.grace)
            return self._member_gone(process, failure, False, now)
        if self.current.state in _WORKING:
            self.current.lost_peer = failure
            self.left(process, f"{process.description} {failure.what}", now)
            self.current.settle_by = now + self.grace
        return []

    def left(self, process: Process, why: str, now: float) -> None:
        """Note that a member has left, and wait for a while to learn whose failure it was."""
        if self.current.state not in _WORKING:
            return
        assert process.rank is not None
        self.current.complaints.setdefault(process.rank, why)
        if self.current.state is State.RUNNING:
            self.current.state, self.current.settle_by = State.SETTLING, now + ROOT_CAUSE_TIMEOUT
            # We may notice that a host is cut off two keepalives later than its peers do.
            if self.options.keepalive is not None and len(self.workforce.hosts.ready) > 1:
                self.current.settle_by += 2 * self.options.keepalive / PER_TIMEOUT

    def ended_well(self, process: Process) -> list[Step]:
        """End the job as any job ends: a rank that has done its work is never replaced. Others must not wait for it."""
        if self.current.state in (State.RUNNING, State.PREPARING) and not self.workforce.processes.waiting:
            return [Finish(None)]
        if self.current.cause is not None:
            return [self.current.nothing_again(process)]
        why = "has ended well, while others wait for the next generation"
        failure = self.current.lost_peer or Failure(process.number, 1, why)
        return [Finish(failure) if self.current.state is State.SETTLING else failure]

    # --- links

    def settle(self, now: float) -> list[Step]:
        """Take it that a link has failed, since no process has."""
        suspect, again = self.record.suspect(self.current)
        rank, complaint = next(iter(self.current.complaints.items()))
        host = self.current.plan.members[rank].host
        sentence = complaint if self.current.lost_peer else f"rank {rank} on {host} has lost its peers: {complaint}"
        steps = self._break(self.current.lost_peer or Failure(None, 1, sentence), sentence, [], now)
        processes = self.workforce.processes
        self.record.link_failed(suspect, processes.members.keys() - processes.waiting)
        if suspect is None or not again or any(isinstance(step, Failure) for step in steps):
            return steps
        ended = self.workforce.bar(suspect, now)
        text = f"host {suspect} is barred for a while: its links have failed twice in a row"
        return steps if ended is None else [*steps, Say(text), *ended]

    # --- the consequences

    def _gone(self, failure: Failure, lost_peer: bool, now: float) -> list[Step]:
        assert failure.rank is not None
        process = self.workforce.processes.gone(failure.rank)
        # Where thousands are ended, staffing would be much work after each: it is done after the last.
        self.workforce.has_changed |= not self.workforce.processes.leaving
        return [] if process is None else self._failed(process, process.role, failure, lost_peer, now)

    def _failed(self, process: Process, role: Role, failure: Failure, lost_peer: bool, now: float) -> list[Step]:
        """Draw the consequences of the end of a process that had this role."""
        is_regrouping = self.current.state is State.REGROUPING
        if role is Role.LEAVING:
            # Some end well before they hear that they are to end, for a rank that was lost when the work was done.
            has_ended_well = failure.exit is not None and failure.exit.unasked and failure.status == 0
            is_recent = process.generation == self.current.plan.number and is_regrouping
            return self.ended_well(process) if has_ended_well and is_recent else []
        if role is Role.MEMBER:
            return self._member_gone(process, failure, lost_peer, now)
        sentence = f"{process.description} {failure.what}"
        slot = SPARE_SLOT if process.slot is None else process.slot
        self.workforce.barring.failed(process.host, slot, now, at_start=True)
        self.record.history.add(sentence, self.current.plan.number, now)
        charged = self._charge(failure, [process], now) if role is Role.NEWCOMER and is_regrouping else []
        return charged or [Say(sentence)]

    def _member_gone(self, process: Process, failure: Failure, lost_peer: bool, now: float) -> list[Step]:
        if failure.status == 0:
            return self.ended_well(process)
        sentence = f"{process.description} {failure.what}"
        if lost_peer and self.current.state in _WORKING:
            self.current.lost_peer = self.current.lost_peer or failure
            self.left(process, sentence, now)
            return []
        if not lost_peer:
            assert process.slot is not None
            self.record.rounds.failed(failure.place if is_by_itself(failure) else None)
            self.workforce.barring.failed(process.host, process.slot, now)
        return self._break(failure, sentence, [process], now)

    def _break(self, failure: Failure, sentence: str, dead: Collection[Process], now: float) -> list[Step]:
        """End the present generation because of a failure, if it is made good; else the job.

        Args:
            failure: for the end of the job.
            sentence: what has happened, for the user.
            dead: the members that have failed; none: a link has.
            now: the time.
        """
        record, processes, was_broken = self.record, self.workforce.processes, self.current.state is State.REGROUPING
        record.note(sentence, dead, self.current.plan.number, now)
        self.workforce.has_changed = True
        self.current.regroup_at = now + GATHER_TIME
        if was_broken and not record.explains(dead):
            return self._charge(failure, dead, now) or [Say(sentence)]
        if not was_broken and (why := record.futility(failure, self.current, now)):
            return [failure.explained(why)]
        self.current.leave(State.REGROUPING, sentence, failure)
        if (steps := self._charge(failure, dead, now)) or was_broken:
            return steps
        if is_by_itself(failure) and failure.rank is not None and processes.known[failure.rank].is_ending:
            processes.ending.clear()  # a script that ends itself with a status does so on all ranks
        return [*self.workforce.end(processes.unenrolled - processes.ending, self.grace, now)]

    def _charge(self, failure: Failure, dead: Collection[Process], now: float) -> list[Step]:
        """End the job if a failure is one too many."""
        why = self.record.charge(dead, now)
        return [failure.explained(why)] if why else []
