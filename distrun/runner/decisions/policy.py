"""The launcher's decisions, without any effect: events and the time go in, actions come out.

The states of a job:

    CONNECTING -> RUNNING   every remote host is ready
               -> FINISHING one of them cannot be used, or a signal came, and no rank was started
    RUNNING   -> SETTLING   a rank says that it lost a peer, and the root cause is not known yet
              -> ENDING     a rank failed, an agent was lost, or a signal came, so the ranks get a signal
              -> FINISHING  every rank has exited
    SETTLING  -> ENDING     the peer that failed has exited too, or did not within `ROOT_CAUSE_TIMEOUT` seconds
    ENDING    -> FINISHING  every rank has exited, if necessary by SIGKILL after the grace period
    FINISHING -> OVER       every agent is gone

Only the first failure is reported. Later ones are consequences, of the first or of the launcher's own signals.
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
from distrun.runner.decisions.signals import ENDING

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action

# Seconds that the failure of a rank that lost a peer is held back. The peer has probably failed, and may still be
# shutting down its interpreter.
ROOT_CAUSE_TIMEOUT = 1.0
KILL_TIMEOUT = 10.0  # seconds after SIGKILL until a rank that the kernel does not end is no longer waited for
LEFTOVER_GRACE = 5.0  # the most seconds between SIGTERM and SIGKILL for processes that outlive all ranks
TIMED_OUT = 124  # the exit status of a job that took too long, as with `timeout`
LEAVE_TIMEOUT = 10.0  # seconds that an agent has to leave, beyond the grace period


class State(Enum):
    """The state of a job."""

    CONNECTING = "connecting"
    RUNNING = "running"
    SETTLING = "settling"
    PREPARING = "preparing"
    """The members of an elastic job leave their generation at the next step boundary."""
    REGROUPING = "regrouping"
    """The generation of an elastic job is over, and the next has not begun yet."""
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
            grace: the grace period, the seconds between SIGTERM and SIGKILL.
            start_timeout: seconds until all ranks must have started.
            now: the time, as everywhere here in seconds of one monotonic clock.
            remote: the hosts to connect to before ranks are started.
            servers: the ranks that never end by themselves.
            server_restarts: how many times servers that fail are started again, over all servers.
            refuges: the hosts where servers of a lost host may be started.
        """
        self.state = State.CONNECTING if remote else State.RUNNING
        self.failure: Failure | None = None
        self.interrupted_by: int | None = None
        """The signal that ended the job, when it was one sent to the launcher."""
        self.deadline: float | None = now + start_timeout
        """The time to call `tick` if no event comes before. None = never."""
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
        self._was_signalled_elsewhere = False
        """Whether a signal to the launcher on another host has ended the job. The same signal may still come here."""
        self._lost_peer_failure: Failure | None = None
        self._has_announced_departure = False

    @property
    def status(self) -> int:
        """The exit status of the job."""
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return 0 if self.failure is None else self.failure.status

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Note an event, and return what to do."""
        match event:
            case events.HostStep():
                self._connecting.note_step(event.host, event.step)
                return []
            case events.HostReady() | events.HostRefused():
                return self._host_answered(event, now)
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
            case events.OutputClosed(reason) if reason:
                if self.state is State.FINISHING and self.interrupted_by is None:
                    self.failure = self.failure or Failure(None, 1, reason)
                return self.fail_as_a_whole(Failure(None, 1, reason), now)
            case events.OutputClosed():
                return self._signalled(signal.SIGPIPE, now)
            case events.Printed():
                # The printer is asked to end only after the job. So it has ended by an error, and nothing is printed.
                return self.fail_as_a_whole(Failure(None, 1, "the launcher cannot print any more"), now)
            case events.TimeUp():
                text = f"the job took longer than the {event.seconds:g} s of --timeout"
                return self.fail_as_a_whole(Failure(None, TIMED_OUT, text), now)
            case events.ProcessSaid() | events.HostsFound() | events.HostCleaned():
                return []  # only elastic jobs have these

    def tick(self, now: float) -> list[Action]:
        """Note the time, and return what to do if the deadline has passed."""
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
                return self._kill(now, late=tuple(sorted(self._alive)))
            case State.ENDING:
                return self._finish(0.0, now)  # what SIGKILL does not end, waiting does not either
            case State.FINISHING:
                return [KillAgents(), *self._agents_gone(set(self._agents))]
            case State.OVER | State.PREPARING | State.REGROUPING:
                return []

    def _host_answered(self, event: events.HostReady | events.HostRefused, now: float) -> list[Action]:
        if not self._connecting.answered(event.host):
            return []
        if isinstance(event, events.HostRefused):
            self._connecting.refuse(event.host, event.reason, event.status)
            self._agents.discard(event.host)
        return self._start_when_connected(now)

    def _start_when_connected(self, now: float) -> list[Action]:
        """Start the ranks, or give up, if all hosts have answered."""
        if self.state is not State.CONNECTING or self._connecting.hosts:
            return []
        if (failure := self._connecting.failure) is not None:
            return self._give_up(failure, now)
        self.state = State.RUNNING
        return [StartRanks()]

    def _give_up(self, failure: Failure | None, now: float) -> list[Action]:
        """End before any rank has been started. The agents that are ready leave, and the others are not waited for."""
        self.failure = failure
        self._alive.clear()
        self._starting.clear()
        self._agents.difference_update(self._connecting.hosts)
        return self._finish(0.0, now)

    def fail_as_a_whole(self, failure: Failure, now: float) -> list[Action]:
        """End the job because of `failure`, which no rank has caused, unless it is ending already."""
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
        announced = self.tell_departure(event.rank) if event.exit.has_departed else []
        return [*announced, *self._rank_gone(event.rank, failure, event.lost_peer, now)]

    def tell_departure(self, rank: int) -> list[Action]:
        """Return the action that tells ranks that wait in init that `rank` cannot join them, for the first one."""
        was_announced, self._has_announced_departure = self._has_announced_departure, True
        return [] if was_announced else [TellDeparture(rank)]

    def _may_restart(self, rank: int) -> bool:
        """Whether `rank`, which has failed, is a server to start again."""
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
        """End the ranks by the signal `signum`, or the agents if no rank is left."""
        self.state, self.deadline = State.ENDING, now + self._grace
        if not self._alive:
            return self._all_exited(now)
        if self._grace <= 0:
            return self._kill(now)
        return [SignalRanks(signum)]

    def _kill(self, now: float, late: tuple[int, ...] = ()) -> list[Action]:
        self._killing, self.deadline = True, now + KILL_TIMEOUT
        return [SignalRanks(signal.SIGKILL, late)]

    def _all_exited(self, now: float) -> list[Action]:
        if self.state is State.SETTLING:
            self.failure = self._lost_peer_failure
        if self.state is State.ENDING:
            # Processes that the ranks left behind get the rest of the grace period.
            return self._finish(0.0 if self._killing else max(0.0, (self.deadline or now) - now), now)
        return self._finish(min(self._grace, LEFTOVER_GRACE), now)

    def _finish(self, grace: float, now: float) -> list[Action]:
        self.state, self.deadline = State.FINISHING, now + grace + LEAVE_TIMEOUT
        return [FinishAgents(grace), *self._agents_gone(set())]

    def _agents_gone(self, hosts: Iterable[str]) -> list[Action]:
        self._agents.difference_update(hosts)
        if not self._agents and self.state is State.FINISHING:
            self.state, self.deadline = State.OVER, None
        return []

    def _agent_lost(self, event: events.AgentLost, now: float) -> list[Action]:
        """Give up the ranks of a lost host. Ranks of other hosts end as after any failure, but servers may move."""
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
        """Return the actions that start the servers of a lost host on others. None: they cannot, or it had ranks."""
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
        """Return the sort key for hosts that a server may move to: those without ranks first, then by servers."""
        here = {rank for rank in self._alive if self._hosts[rank] == host}
        return not self._servers.issuperset(here), len(self._servers & here), host

    def _signalled(self, signum: int, now: float, host: str = "") -> list[Action]:
        """Obey a signal to this launcher or, with `host`, to the launcher on another host, which ends too."""
        if signum in (signal.SIGUSR1, signal.SIGUSR2):
            return [] if self.state is State.CONNECTING else [SignalRanks(signum)]
        if host:
            if self.state not in _LIVE:
                return []
            self._was_signalled_elsewhere = True
        elif self._was_signalled_elsewhere:
            # A scheduler signals the launchers of all hosts at once. That is one signal, not a second Ctrl-C.
            self._was_signalled_elsewhere = False
            return []
        match self.state:
            case State.CONNECTING:
                self.interrupted_by = signum
                return self._give_up(None, now)
            case state if state in _LIVE:
                self.interrupted_by = signum
                return self._end(signum if signum in ENDING else signal.SIGTERM, now)
            case State.ENDING if not self._killing:
                return self._kill(now)  # a second Ctrl-C: the user does not want to wait for the grace
            case State.FINISHING:
                return [FinishAgents(0.0)]
            case _:
                return []
