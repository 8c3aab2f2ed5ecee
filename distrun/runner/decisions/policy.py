"""The launcher's decisions, without any effect: events and the time go in, actions come out.

The states of a job:

    CONNECTING -> RUNNING   every remote host is ready
               -> FINISHING one of them cannot be used, or a signal came; no rank was started
    RUNNING   -> SETTLING   a rank says that it lost a peer, and the root cause is not known yet
              -> ENDING     a rank failed, an agent was lost, or a signal came; the ranks get a signal
              -> FINISHING  every rank has exited
    SETTLING  -> ENDING     the peer that failed has exited too, or did not within `ROOT_CAUSE_TIMEOUT` seconds
    ENDING    -> FINISHING  every rank has exited, if need be by SIGKILL after the grace
    FINISHING -> OVER       every agent is gone

Only the first failure is reported: later ones are consequences, of it or of our own signals.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from distrun.runner.decisions import events
from distrun.runner.decisions.actions import (
    CleanUpAfter,
    FinishAgents,
    KillAgents,
    MoveServer,
    RestartServer,
    SignalRanks,
    StartRanks,
    TellDeparture,
)
from distrun.runner.decisions.connecting import Connecting
from distrun.runner.decisions.failure import Failure

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action

# Seconds for which the failure of a rank that lost a peer is held back until that peer, whose interpreter may still be
# shutting down, has exited too.
ROOT_CAUSE_TIMEOUT = 1.0
KILL_TIMEOUT = 10.0  # seconds after SIGKILL until we stop waiting for a rank that the kernel does not end
TIMED_OUT = 124  # the exit status of a job that took too long; `timeout` has the same
LEAVE_TIMEOUT = 10.0  # seconds beyond the grace in which an agent may leave

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class State(Enum):
    """The state of a job."""

    CONNECTING = "connecting"
    RUNNING = "running"
    SETTLING = "settling"
    PREPARING = "preparing"
    """The members of an elastic job leave their generation at the next step boundary."""
    REGROUPING = "regrouping"
    """The generation of an elastic job is over, and the next is not begun yet."""
    ENDING = "ending"
    FINISHING = "finishing"
    OVER = "over"


_LIVE = (State.RUNNING, State.SETTLING, State.PREPARING, State.REGROUPING)  # there are ranks, and the job goes on


class Policy:
    """The state machine of one job. Feed it events with `handle` and the passing of time with `tick`."""

    def __init__(
        self,
        hosts: Mapping[int, str],
        grace: float,
        start_timeout: float,
        now: float,
        remote: Collection[str] = (),
        servers: Collection[int] = (),
        server_restarts: int = 0,
        refuges: Collection[str] = (),
    ) -> None:
        """
        Args:
            hosts: rank -> host.
            grace: seconds between SIGTERM and SIGKILL.
            start_timeout: seconds for all ranks to start.
            now: the time, as everywhere here in seconds of one monotonic clock.
            remote: the hosts that are yet to be connected to.
            servers: the ranks that never end by themselves.
            server_restarts: how often those of them that fail are started again, in all.
            refuges: the hosts to which servers of a host that is lost may go.
        """
        self.state = State.CONNECTING if remote else State.RUNNING
        self.failure: Failure | None = None
        self.interrupted_by: int | None = None
        """The signal that ended the job, when it was one sent to the launcher."""
        self.deadline: float | None = now + start_timeout
        """The time at which `tick` is to be called if nothing else happens before; None = never."""
        self._hosts = dict(hosts)
        self._alive = set(hosts)
        self._servers = frozenset(servers)
        self._server_restarts, self._restarted = server_restarts, 0
        self._refuges = frozenset(refuges)
        self._starting = set(hosts)
        self._agents = set(hosts.values())
        self._connecting = Connecting(remote, start_timeout)
        self._grace = grace
        self._start_timeout = start_timeout
        self._killing = False
        self._heard_of_signal = False
        """Whether another launcher's signal has ended the job, and ours, which is likely to come too, has not come."""
        self._lost_peer_failure: Failure | None = None
        self._has_told_departure = False

    @property
    def status(self) -> int:
        """The exit status of the job."""
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return 0 if self.failure is None else self.failure.status

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Note an event; return what is to be done."""
        match event:
            case events.HostStep():
                self._connecting.note_step(event.host, event.step)
                return []
            case events.HostReady() | events.HostRefused():
                return self._host_settled(event, now)
            case events.RankStarted():
                return self._started(event.rank)
            case events.RankNotStarted():
                failure = Failure(event.rank, event.status, f"could not be started: {event.reason}")
                return self._rank_gone(event.rank, failure, False, now)
            case events.RankExited():
                return self._exited(event, now)
            case events.AgentGone():
                return self._agents_gone({event.host})
            case events.AgentLost():
                return self._agent_lost(event, now)
            case events.SignalReceived():
                return self._signalled(event.signum, now, event.host)
            case events.OutputClosed():
                return self._signalled(signal.SIGPIPE, now)
            case events.Printed():
                # The printer is asked to end only after the job, so it has ended by an error: nothing is printed now.
                return self.fail_as_a_whole(Failure(None, 1, "the launcher cannot print any more"), now)
            case events.TimeUp():
                text = f"the job took longer than the {event.seconds:g} s of --timeout"
                return self.fail_as_a_whole(Failure(None, TIMED_OUT, text), now)
            case events.ProcessSaid() | events.HostsFound() | events.HostCleaned():
                return []  # of elastic jobs only

    def tick(self, now: float) -> list[Action]:
        """Note the time; return what is to be done if the deadline has passed."""
        if self.deadline is None or now < self.deadline:
            return []
        self.deadline = None
        match self.state:
            case State.CONNECTING:
                self._connecting.time_out()
                return self._give_up(self._connecting.failure, now)
            case State.RUNNING:
                late = ", ".join(map(str, sorted(self._starting)))
                return self._fail(Failure(None, 1, f"ranks {late} did not start within {self._start_timeout:g} s"), now)
            case State.SETTLING:
                assert self._lost_peer_failure is not None
                return self._fail(self._lost_peer_failure, now)
            case State.ENDING if not self._killing:
                return self._kill(now)
            case State.ENDING:
                return self._finish(0.0, now)  # what SIGKILL does not end, waiting does not either
            case State.FINISHING:
                return [KillAgents(), *self._agents_gone(set(self._agents))]
            case State.OVER | State.PREPARING | State.REGROUPING:
                return []

    def _host_settled(self, event: events.HostReady | events.HostRefused, now: float) -> list[Action]:
        if not self._connecting.settle(event.host):
            return []
        if isinstance(event, events.HostRefused):
            self._connecting.refuse(event.host, event.reason, event.status)
            self._agents.discard(event.host)
        return self._start_when_connected(now)

    def _start_when_connected(self, now: float) -> list[Action]:
        """Start the ranks, or give up, if no host is waited for any more."""
        if self.state is not State.CONNECTING or self._connecting.hosts:
            return []
        if (failure := self._connecting.failure) is not None:
            return self._give_up(failure, now)
        self.state = State.RUNNING
        return [StartRanks()]

    def _give_up(self, failure: Failure | None, now: float) -> list[Action]:
        """End before any rank has been started: the agents that are ready leave, the others are not waited for."""
        self.failure = failure
        self._alive.clear()
        self._starting.clear()
        self._agents.difference_update(self._connecting.hosts)
        return self._finish(0.0, now)

    def fail_as_a_whole(self, failure: Failure, now: float) -> list[Action]:
        """Fail because of something that is no rank's doing."""
        if self.state is State.CONNECTING:
            return self._give_up(failure, now)
        if self.state in _LIVE:
            return self._fail(failure, now)
        return []

    def _started(self, rank: int) -> list[Action]:
        self._starting.discard(rank)
        if self.state is State.RUNNING and not self._starting:
            self.deadline = None
        return []

    def _exited(self, event: events.RankExited, now: float) -> list[Action]:
        failure = None
        if event.exit.failed:
            failure = Failure(event.rank, event.exit.status, str(event.exit), event.exit)
            if self._may_restart(event.rank):
                self._restarted += 1
                return [RestartServer(event.rank, failure.what, self._restarted)]
        told = self.tell_departure(event.rank) if event.exit.has_departed else []
        return [*told, *self._rank_gone(event.rank, failure, event.lost_peer, now)]

    def tell_departure(self, rank: int) -> list[Action]:
        """Tell the ranks that wait in init of the first that cannot join them any more."""
        has_told, self._has_told_departure = self._has_told_departure, True
        return [] if has_told else [TellDeparture(rank)]

    def _may_restart(self, rank: int) -> bool:
        """Whether a process that has failed is a server that is to be started again."""
        is_early_enough = self.state is State.RUNNING and self._restarted < self._server_restarts
        return rank in self._servers and is_early_enough

    def _rank_gone(self, rank: int, failure: Failure | None, lost_peer: bool, now: float) -> list[Action]:
        self._alive.discard(rank)
        self._started(rank)
        actions: list[Action] = []
        if failure is not None and self.state in (State.RUNNING, State.SETTLING):
            actions = self._await_root_cause(failure, now) if lost_peer else self._fail(failure, now)
        if not self._alive and self.state in (State.RUNNING, State.SETTLING, State.ENDING):
            return self._all_exited(now)
        if self.state is State.RUNNING and self._alive <= self._servers:
            return self._end(signal.SIGTERM, now)
        return actions

    def _await_root_cause(self, failure: Failure, now: float) -> list[Action]:
        if self.state is State.RUNNING:
            self.state, self._lost_peer_failure, self.deadline = State.SETTLING, failure, now + ROOT_CAUSE_TIMEOUT
        return []

    def _fail(self, failure: Failure, now: float) -> list[Action]:
        self.failure = failure
        return self._end(signal.SIGTERM, now)

    def _end(self, signum: int, now: float) -> list[Action]:
        """Have the ranks end, or the agents when no rank is left."""
        self.state, self.deadline = State.ENDING, now + self._grace
        if not self._alive:
            return self._all_exited(now)
        if self._grace <= 0:
            return self._kill(now)
        return [SignalRanks(signum)]

    def _kill(self, now: float) -> list[Action]:
        self._killing, self.deadline = True, now + KILL_TIMEOUT
        return [SignalRanks(signal.SIGKILL)]

    def _all_exited(self, now: float) -> list[Action]:
        if self.state is State.SETTLING:
            self.failure = self._lost_peer_failure
        if self.state is State.ENDING:
            # Processes that the ranks left behind get the rest of the grace.
            return self._finish(0.0 if self._killing else max(0.0, (self.deadline or now) - now), now)
        return self._finish(self._grace, now)

    def _finish(self, grace: float, now: float) -> list[Action]:
        self.state, self.deadline = State.FINISHING, now + grace + LEAVE_TIMEOUT
        return [FinishAgents(grace), *self._agents_gone(set())]

    def _agents_gone(self, hosts: Iterable[str]) -> list[Action]:
        self._agents.difference_update(hosts)
        if not self._agents and self.state is State.FINISHING:
            self.state, self.deadline = State.OVER, None
        return []

    def _agent_lost(self, event: events.AgentLost, now: float) -> list[Action]:
        """Give up the ranks of that host; those of the other hosts end as after any failure. Servers may move."""
        if (moves := self._moves(event)) is not None:
            return [CleanUpAfter(event.host), *moves]
        self._alive = {rank for rank in self._alive if self._hosts[rank] != event.host}
        self._agents.discard(event.host)
        actions: list[Action] = [CleanUpAfter(event.host)]
        if self.state is State.CONNECTING:
            self._connecting.refuse(event.host, event.reason, event.status)
            actions += self._start_when_connected(now)
        elif self.state in (State.RUNNING, State.SETTLING):
            actions += self._fail(Failure(None, event.status, event.reason), now)
        elif self.state is State.ENDING and not self._alive:
            actions += self._all_exited(now)
        else:
            actions += self._agents_gone(set())
        return actions

    def _moves(self, event: events.AgentLost) -> list[Action] | None:
        """Have the servers of a host that is lost start on others; None: it cannot be, or there were ranks."""
        lost = sorted(rank for rank in self._alive if self._hosts[rank] == event.host)
        others = (self._agents & self._refuges) - {event.host}
        is_possible = self.state is State.RUNNING and self._servers.issuperset(lost)
        if not (lost and others and is_possible and self._restarted + len(lost) <= self._server_restarts):
            return None
        self._agents.discard(event.host)
        moves: list[Action] = []
        for number in lost:
            self._restarted += 1
            self._hosts[number] = host = min(others, key=self._burden)
            moves.append(MoveServer(number, host, event.reason, self._restarted))
        return moves

    def _burden(self, host: str) -> tuple[bool, int, str]:
        """Return by what hosts are compared where a server is to go: first to those without ranks."""
        here = {rank for rank in self._alive if self._hosts[rank] == host}
        return not self._servers.issuperset(here), len(self._servers & here), host

    def _signalled(self, signum: int, now: float, host: str = "") -> list[Action]:
        """Obey a signal, or end as the launcher on another host does that has received one."""
        if signum in (signal.SIGUSR1, signal.SIGUSR2):
            return [] if self.state is State.CONNECTING else [SignalRanks(signum)]
        if host:
            if self.state not in _LIVE:
                return []
            self._heard_of_signal = True
        elif self._heard_of_signal:  # who ends the launchers of all hosts at once does not ask us to hurry
            self._heard_of_signal = False
            return []
        match self.state:
            case State.CONNECTING:
                self.interrupted_by = signum
                return self._give_up(None, now)
            case state if state in _LIVE:
                self.interrupted_by = signum
                return self._end(signum if signum in _ENDING_SIGNALS else signal.SIGTERM, now)
            case State.ENDING if not self._killing:
                return self._kill(now)  # a second Ctrl-C: the user does not want to wait for the grace
            case State.FINISHING:
                return [FinishAgents(0.0)]
            case _:
                return []
