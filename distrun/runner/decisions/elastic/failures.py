"""The consequences of failures: of hosts, of processes, of links, and of what does not happen in time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from distrun.contract.elastic import messages
from distrun.runner.decisions import events
from distrun.runner.decisions.elastic import wording
from distrun.runner.decisions.elastic.actions import EndProcesses, Say
from distrun.runner.decisions.elastic.decisions import Decisions
from distrun.runner.decisions.elastic.processes import Process, Role
from distrun.runner.decisions.elastic.regrouping import is_by_itself
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.policy import KILL_TIMEOUT, ROOT_CAUSE_TIMEOUT, State
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.keepalive import PER_TIMEOUT

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action

_Key = TypeVar("_Key", str, int)

UNKNOWN_TIMEOUT = 30.0  # seconds after which an agent without keepalives has surely noticed that its connection is cut


class Failures(Decisions):
    """Notes failures, and draws their consequences."""

    def _refused(self, host: str, reason: str, now: float, is_final: bool = False) -> list[Action]:
        said = (self._places.over, self._places.away[host].reason if host in self._places.away else "")
        if is_final:
            self._places.over = reason
        retry = self._places.refused(host, reason, now)
        self._changed = True
        if reason in said or (self.state is State.CONNECTING and not self._options.discovers):
            return []  # the second: either it is why the job ends, or it is told when the job begins without the host
        if is_final:
            return [Say(f"no host can be used any more: {reason}")]
        return [Say(f"host {host} cannot be used now: {reason} (next try in {retry - now:g} s)")]

    def _host_lost(self, event: events.AgentLost, now: float) -> list[Action]:
        """Give up the processes of a host. Until it is certain that they are dead, there is no new generation."""
        host = event.host
        if host not in self._places.ready and host not in self._places.connecting:
            return []
        was_released = host in self._places.releasing
        processes = [self._processes.gone(number) for number in list(self._processes.on_host[host])]
        members = [process for process in processes if process and process.generation == self._generation.number > 0]
        timeout = self._options.keepalive
        # The agent kills its ranks after `keepalive` seconds without us; what it heard last may be younger than what we
        # know of.
        margin = UNKNOWN_TIMEOUT if timeout is None else timeout + timeout / PER_TIMEOUT + 0.5
        self._places.lost(host, event.reason, now + margin if processes and not event.was_silent else now, now)
        self._changed = True
        if was_released:
            return []
        self._workforce.barring.failed(host, None, now)
        if members:
            self._rounds.failed(None)
            self._unswept.add(host)
            failure = Failure(None, event.status, event.reason)
            return self._broken(failure, event.reason, members, now)
        self._history.add(event.reason, self._generation.number, now)
        return [] if self.state is State.CONNECTING else [Say(event.reason)]

    def _gone(self, number: int, failure: Failure, lost_peer: bool, now: float) -> list[Action]:
        process = self._processes.gone(number)
        self._changed |= not self._processes.leaving  # of thousands that are ended, the last one counts
        return [] if process is None else self._failed(process, process.role, failure, lost_peer, now)

    def _failed(self, process: Process, role: Role, failure: Failure, lost_peer: bool, now: float) -> list[Action]:
        """Draw the consequences of the end of a process that had this role."""
        if role is Role.LEAVING:
            # Some end well before they hear that they are to end, for a rank that was lost when the work was done.
            has_ended_well = failure.exit is not None and failure.exit.unasked and failure.status == 0
            is_recent = process.generation == self._generation.number and self.state is State.REGROUPING
            return self._ended_well(process, now) if has_ended_well and is_recent else []
        sentence = f"{wording.described(process)} {failure.what}"
        if role is Role.MEMBER:
            return self._member_gone(process, failure, lost_peer, sentence, now)
        slot = self._workforce.SPARE_SLOT if process.slot is None else process.slot
        self._workforce.barring.failed(process.host, slot, now, at_start=True)
        self._history.add(sentence, self._generation.number, now)
        if role is Role.NEWCOMER and self.state is State.REGROUPING:
            return self._charged(failure, sentence, [process], now)
        return [Say(sentence)]

    def _member_gone(
        self, process: Process, failure: Failure, lost_peer: bool, sentence: str, now: float
    ) -> list[Action]:
        if failure.status == 0:
            return self._ended_well(process, now)
        if lost_peer and self.state in (State.RUNNING, State.SETTLING):
            self._lost_peer = self._lost_peer or failure
            self._complain(process, sentence, now)
            return []
        if not lost_peer:
            assert process.slot is not None
            self._rounds.failed(failure.place if is_by_itself(failure) else None)
            self._workforce.barring.failed(process.host, process.slot, now)
        return self._broken(failure, sentence, [process], now)

    def _raised(self, process: Process, ending: messages.Ending, now: float) -> list[Action]:
        """Go on without a member whose script has raised an exception, before it has exited.

        Where the job would end by that, the exit is waited for: until then the process may save what it has.
        """
        at = f" at {ending.site}" if ending.site else ""
        place = f"{ending.error.partition(':')[0]}{at}, after {wording.count(ending.step, 'step')}" if at else ""
        failure = Failure(process.number, 1, f"raised {ending.error}{at}", RankExit(1), place)
        sentence = f"{wording.described(process)} {failure.what}"
        if self._budget.left(now) > 0:
            self._processes.fail(process.number, now + self._grace)
            return self._member_gone(process, failure, False, sentence, now)
        if self.state in (State.RUNNING, State.SETTLING):
            self._lost_peer = failure
            self._complain(process, sentence, now)
            self._settle_by = now + self._grace
        return []

    def _complain(self, process: Process, why: str, now: float) -> None:
        """Note that a member has left, and wait for a while to learn whose failure it was."""
        assert process.rank is not None
        self._complaints.setdefault(process.rank, why)
        if self.state is State.RUNNING:
            self.state, self._settle_by = State.SETTLING, now + ROOT_CAUSE_TIMEOUT
            # We may notice that a host is cut off two keepalives later than its peers do.
            if self._options.keepalive is not None and len(self._places.ready) > 1:
                self._settle_by += 2 * self._options.keepalive / PER_TIMEOUT

    def _ended_well(self, process: Process, now: float) -> list[Action]:
        """End the job as any job ends: a rank that has done its work is never replaced. Others must not wait for it."""
        if self.state in (State.RUNNING, State.PREPARING) and not self._processes.waiting:
            return self._close(now)
        if self._cause is not None:
            return self._at_the_end_already(process, now)
        why = "has ended well, while others wait for the next generation"
        failure = self._lost_peer or Failure(process.number, 1, why)
        if self.state is State.SETTLING:
            return self._close(now, failure)
        return self._failed_as_a_whole(failure, now)

    def _give_up_on_the_late(self, now: float) -> list[Action]:
        places, processes = self._places, self._processes
        actions: list[Action] = []
        for host in [host for host, until in places.uncertain.items() if until <= now]:
            places.certain(host, now)
            self._changed = True
        for host in _late(places.connecting, now):
            step, limit = places.steps.get(host, "connecting"), f"the {self._start_timeout:g} s of --start-timeout"
            actions += self._refused(host, f"{step} took longer than {limit}", now)
        for number in _late(processes.failing, now):
            del processes.failing[number]
            processes.leaving[number] = now + self._grace + KILL_TIMEOUT
            actions.append(EndProcesses(frozenset({number}), self._grace))
        for number in _late(processes.leaving, now):
            del processes.leaving[number]
            actions.append(Say(f"{wording.described(processes.alive[number])} does not end, not even by SIGKILL"))
        for number in _late(processes.starting, now):
            del processes.starting[number]
            actions += self._too_late(number, f"did not start within {self._start_timeout:g} s", now)
        timeout = self._options.elastic_timeout
        for number in _late({number: p.born + timeout for number, p in processes.arriving.items()}, now):
            where = f"did not come to distrun.init() or elastic.run within the {timeout:g} s of --elastic-timeout"
            actions += self._too_late(number, where, now)
        return actions

    def _too_late(self, number: int, what: str, now: float) -> list[Action]:
        """End a process that is late, and treat it as one that failed."""
        if self._ends_as_any_job or (process := self._processes.alive.get(number)) is None:
            return []
        role = process.role
        ended = self._end_processes({number}, 0.0, now)
        return [*ended, *self._failed(process, role, Failure(number, 1, what), False, now)] if ended else []


def _late(deadlines: Mapping[_Key, float], now: float) -> list[_Key]:
    """Return those whose deadlines have passed; the deadlines are in order."""
    return [key for key, _ in takewhile(lambda item: item[1] <= now, deadlines.items())]
