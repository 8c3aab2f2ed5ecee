"""The consequences of failures: of hosts, processes and links, and of processes that are late."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distrun.contract.elastic import messages
from distrun.host.ranks import count
from distrun.runner.decisions import events
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

GATHER_TIME = 0.01  # seconds that a regroup waits, so that deaths that are reported together become one regroup
_WORKING = (State.RUNNING, State.SETTLING)


@dataclass(eq=False)
class Failures:
    """Decides what a failure means: nothing, the end of the present generation, or the end of the job."""

    options: ElasticOptions
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    current: CurrentGeneration
    workforce: Workforce
    record: FailureRecord

    # --- hosts

    def host_refused(self, host: str, reason: str, now: float, is_final: bool = False) -> list[Step]:
        """Note that a host cannot be used, and report it, once for the same reason."""
        hosts = self.workforce.hosts
        said = (hosts.over, hosts.away[host].reason if host in hosts.away else "")
        if is_final:
            hosts.over = reason
        retry = hosts.refused(host, reason, now)
        self.workforce.has_changed = True
        if reason in said or (self.current.state is State.CONNECTING and not self.options.discovers):
            # At the start the reason becomes part of the job's failure, or is reported when it begins without the host.
            return []
        if is_final:
            return [Say(f"no host can be used any more: {reason}")]
        return [Say(f"host {host} cannot be used now: {reason} (next try in {retry - now:g} s)")]

    def host_lost(self, event: events.AgentLost, now: float) -> list[Step]:
        """Give up the processes of a host. No generation begins until it is certain that they are dead."""
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
        """End the job if its first ranks cannot be started: others would fail, too. Later it is a process's failure."""
        failure = Failure(event.rank, event.status, f"was not started: {event.reason}")
        process = self.workforce.processes.alive.get(event.rank)
        if process is not None and process.generation == 1:
            return [failure]
        return self._gone(failure, False, now)

    def exited(self, event: events.RankExited, now: float) -> list[Step]:
        """Note the exit of a process, and decide what it means."""
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
        """Go on without a member whose script has raised an exception, although it has not exited yet.

        If no restart is left, its exit is awaited first, so that the process can save what it has.
        """
        at = f" at {ending.site}" if ending.site else ""
        place = f"{ending.error.partition(':')[0]}{at}, after {count(ending.step, 'step')}" if at else ""
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
        """Note why a member has left, and wait a while for the failure that explains it."""
        if self.current.state not in _WORKING:
            return
        assert process.rank is not None
        self.current.complaints.setdefault(process.rank, why)
        if self.current.state is State.RUNNING:
            self.current.state, self.current.settle_by = State.SETTLING, now + ROOT_CAUSE_TIMEOUT
            # The launcher may notice that a host is cut off two keepalives later than the host's peers do.
            if self.options.keepalive is not None and len(self.workforce.hosts.ready) > 1:
                self.current.settle_by += 2 * self.options.keepalive / PER_TIMEOUT

    def ended_well(self, process: Process) -> list[Step]:
        """End the job as any job ends, since a rank that has done its work is not replaced."""
        if self.current.state in (State.RUNNING, State.PREPARING) and not self.workforce.processes.waiting:
            return [Finish(None)]
        if self.current.cause is not None:
            return [self.current.nothing_again(process)]
        why = "has ended well, while others wait for the next generation"
        failure = self.current.lost_peer or Failure(process.number, 1, why)
        return [Finish(failure) if self.current.state is State.SETTLING else failure]

    # --- links

    def blame_link(self, now: float) -> list[Step]:
        """Regroup as after the failure of a link, since no process has failed."""
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
        # Staffing takes long with thousands of processes. If they are being ended, it is done after the last one.
        self.workforce.has_changed |= not self.workforce.processes.leaving
        return [] if process is None else self._failed(process, process.role, failure, lost_peer, now)

    def _failed(self, process: Process, role: Role, failure: Failure, lost_peer: bool, now: float) -> list[Step]:
        """Decide what the end of a process means that had this role."""
        is_regrouping = self.current.state is State.REGROUPING
        if role is Role.LEAVING:
            # A rank that ended well before the request to end arrived had done its work: the job was at its end.
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
        """End the present generation because of a failure, or the job if no restart is left.

        If no member is `dead`, a link has failed.
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
        """Count a failure, and end the job if it is one too many."""
        why = self.record.charge(dead, now)
        return [failure.explained(why)] if why else []
