"""The job's thread: takes events from one queue, passes them to the policy, and executes the policy's actions."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from distrun.errors import LaunchError
from distrun.host.ranks import list_ranks
from distrun.runner.decisions import actions, events, signals
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.failure_report import (
    gpu_number_remedy,
    limit_remedy,
    missing_horovod_remedy,
    missing_module_remedy,
)
from distrun.runner.decisions.policy import Policy, State
from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.hosts.connector import Connector, Starter
from distrun.runner.job.agents import Agents, usual_starter
from distrun.runner.job.observing import Observing
from distrun.runner.job.options import JobOptions, Outcome
from distrun.runner.job.reporter import Reporter
from distrun.runner.job.suspension import Suspension
from distrun.runner.output.recent import Recent
from distrun.runner.output.sinks import RankFiles, Sink
from distrun.runner.planning import endpoints
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.planning.variables import servers
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.system import descendants
from distrun.tracing.activity import ActivityDescription

if TYPE_CHECKING:
    from distrun.runner.decisions.elastic.policy import ElasticPolicy
    from distrun.runner.hosts.nodes.messages import Notification
    from distrun.runner.hosts.nodes.peers import Peers
    from distrun.runner.observation.consumer import JobEnd

_SERVE_AFTER = 0.5  # seconds until viewers can connect, so that a short job does not pay for the server
_PRINT_TIMEOUT = 2.0  # seconds that a blocked terminal may delay the end of a job that a signal ended


class Job:
    """Executes a plan. It is also the observer of the agents, whose threads call the methods marked "an agent's
    thread".
    """

    def __init__(
        self,
        plan: LaunchPlan,
        options: JobOptions,
        stdout: Sink,
        stderr: Sink,
        starter: Starter | None = None,
        peers: Peers | None = None,
    ) -> None:
        """
        Args:
            plan: the plan.
            options: the options that are not part of the plan.
            stdout, stderr: the sinks for the ranks' output.
            starter: starts agents on other hosts. None = SSH, or srun if the plan says so.
            peers: the launchers of the other nodes, if each node has one that starts its own ranks. `run` closes them.

        Raises:
            UsageError: the output directory cannot be written.
        """
        self._plan = plan
        self._options = options
        self._queue: SimpleQueue[tuple[events.Event, bool]] = SimpleQueue()  # (event, whether it happened on this node)
        self._peers = peers
        # The parts of the plan that this launcher executes.
        self._parts = {part.host: part for part in plan.agents if peers is None or part.host == peers.here}
        self._host_of = plan.host_of_each
        files = self._rank_files(Path(options.output_dir)) if options.output_dir else None
        recent = Recent(plan.size)
        self._reporter = Reporter(options, stdout, stderr, files, self._rank, self._name, self.post, recent)
        self._stderr = stderr
        self._results: dict[int, bytearray] = {}
        self._observing = Observing(plan, options, self._rank, self._reporter.say, recent, self._parts)
        self._agents = Agents(self, self._reporter.log, self._observing.add)
        # mpirun stops its ranks itself when it gets SIGTSTP. After SIGSTOP it could not.
        self._suspension = Suspension(self._agents, signal.SIGTSTP if plan.by_mpirun else signal.SIGSTOP)
        self._time_limit = float("inf")
        self._serve_at = self._suspension.now() + _SERVE_AFTER
        self._starter = starter
        self._connector: Connector | None = None
        self._policy = self._make_policy()

    # --- overridden by an elastic job, where frames and events carry numbers of processes

    def _make_policy(self) -> Policy | ElasticPolicy:
        options, now = self._options, self._suspension.now()
        remote = [part.host for part in self._parts.values() if part.remote]
        plan = self._plan
        supervised = plan.servers, plan.server_restarts, plan.refuges
        return Policy(self._host_of, options.grace, options.start_timeout, now, remote, *supervised)

    def _rank_files(self, directory: Path) -> RankFiles:
        processes = [item.rank for part in self._parts.values() for item in (*part.ranks, *part.servers)]
        return RankFiles(directory, self._plan.size, processes, self._options.style.first_server)

    def _rank(self, process: int) -> int:
        """Return the current rank of a process."""
        return process

    def _name(self, process: int) -> str:
        return "mpirun" if self._plan.by_mpirun else f"{self._plan.name_of(process)} on {self._host_of[process]}"

    def _is_remote(self, host: str) -> bool:
        """Whether `host` is not this machine."""
        return host in self._plan.routes

    def control(self, agent: AgentClient, frame: Frame) -> None:
        """Handle a message that a process has sent on its control channel."""
        raise LaunchError(f"{frame.kind!r} is not for a job that is not elastic")

    # --- observing the agents

    def output(self, agent: AgentClient, frame: Frame) -> None:
        """Print output of a rank (an agent's thread)."""
        if frame.process not in self._plan.servers:
            self._observing.output(self._rank(frame.process), frame.payload)
        self._reporter.output(agent, frame)

    def result(self, frame: Frame) -> None:
        """Keep a piece of a rank's result (an agent's thread)."""
        self._results.setdefault(frame.process, bytearray()).extend(frame.payload)

    def observed(self, agent: AgentClient, frame: Frame) -> None:
        """Take an agent's observation of its ranks (an agent's thread)."""
        match frame.kind:
            case FrameKind.ACTIVITY:
                self._reporter.activities[self._rank(frame.process)] = ActivityDescription.from_json(frame.payload)
            case FrameKind.GRADIENTS:
                self._reporter.tell_same_samples(self._plan, frame.process, frame.as_int())
            case _:
                self._observing.hear(agent, frame)

    def reports_lost_peer(self, rank: int) -> bool:
        """Whether the stderr of a rank that is gone reports a lost peer (an agent's thread)."""
        return self._reporter.stderr_tails.reports_lost_peer(rank)

    def post(self, event: events.Event) -> None:
        """Queue an event of this node, for this launcher and the launchers of other nodes (any thread, and signal
        handlers).
        """
        self._queue.put((event, True))

    def on_notification(self, notification: Notification) -> None:
        """Queue an event of another node (the thread of `peers`)."""
        event = notification.event
        if isinstance(event, events.RankExited) and notification.stderr_tail:
            self._reporter.stderr_tails.record(event.rank, notification.stderr_tail)
        self._queue.put((event, False))

    # --- the job's thread

    def run(self) -> Outcome:
        """Start the ranks, and return when they and all processes that they started are gone.

        Raises:
            LaunchError: an agent could not be started.
        """
        descendants.set_subreaper()
        try:
            with signals.posted(self.post):
                try:
                    if self._peers is not None:
                        self._peers.start(self.on_notification)
                    if self._options.timeout is not None:
                        self._time_limit = self._suspension.now() + self._options.timeout
                    self._start()
                    self._decide()
                finally:
                    self._release_agents()
                return self._conclude()
        finally:
            if self._options.is_embedded:
                descendants.set_subreaper(False)

    def _start(self) -> None:
        self._reporter.start()
        self._observing.start()
        if self._plan.by_mpirun:
            self._reporter.log(self._plan.by_mpirun)
        for text in (*self._plan.warnings, *(self._plan.notes if self._options.notes else ())):
            self._reporter.say(text)
        self._connect()

    def _connect(self) -> None:
        """Start agents on all hosts. If all of them are local, start the ranks, too."""
        # Children of this process that do not descend from its local agent must survive the job.
        has_others = self._options.is_embedded or self._plan.launcher == "srun"
        marker = f"DISTRUN_JOB={self._plan.job}" if has_others else None
        for part in self._parts.values():
            if not part.remote:
                self._agents.start_here(part, marker)
        remote = [part for part in self._parts.values() if part.remote]
        if not remote:
            self._start_ranks()
            return
        starter = self._starter or usual_starter(self._plan, self._options, self._plan.routes)
        self._connector = Connector(remote, starter, self.post)
        self._connector.start()

    def _start_ranks(self) -> None:
        if self._plan.needs_host_info and self._peers is None:  # nodes exchange it in their rendezvous
            self._parts = endpoints.completed(self._plan, lambda host: self._agents[host].process.host_info)
        for host, part in self._parts.items():
            self._agents[host].start_ranks(part, self._options.function)
        if self._options.stdin is not None:
            self._agents[self._host_of[self._options.stdin]].forward_stdin(self._options.stdin)

    def _decide(self) -> None:
        while self._policy.state is not State.OVER:
            due = min(self._time_limit, self._serve_at)
            if self._policy.deadline is not None:
                due = min(due, self._policy.deadline)
            event = self._judged(self._next_event(due, self._suspension.now))
            if event is not None:
                self._note(event)
                if not self._suspend_or_resume(event):
                    self._act(self._policy.handle(event, self._suspension.now()))
            now = self._suspension.now()
            if now >= self._serve_at:
                self._serve_at = float("inf")
                self._observing.serve()
            if now >= self._time_limit:
                self._act(self._policy.handle(events.TimeUp(self._options.timeout or 0.0), now))
                self._time_limit = float("inf")
            self._act(self._policy.tick(now))

    def _next_event(self, deadline: float, clock: Callable[[], float] = time.monotonic) -> events.Event | None:
        """Return the next event, or None if `deadline`, a time of `clock`, comes first."""
        try:
            event, is_ours = self._queue.get(timeout=None if deadline == float("inf") else max(0.0, deadline - clock()))
        except Empty:
            return None
        # Not before it is taken here: its consequences on other nodes come back as events, which must be queued behind
        # it.
        if is_ours and self._peers is not None:
            failed = event.rank if isinstance(event, events.RankExited) and event.exit.failed else None
            stderr_tail = [] if failed is None else self._reporter.stderr_tails.lines(failed)
            self._peers.notify(event, b"\n".join(stderr_tail))
        return event

    def _judged(self, event: events.Event | None) -> events.Event | None:
        """Return the event, turning the exit status 0 of an mpirun that lost a host into a failure."""
        match event:
            case events.RankExited(rank, RankExit(0)) if self._plan.by_mpirun:
                has_lost_host = self._reporter.stderr_tails.reports_lost_host(rank)
                return replace(event, exit=RankExit(1)) if has_lost_host else event
            case _:
                return event

    def _note(self, event: events.Event) -> None:
        """Adopt the agent of a host that is ready, and report the event to the user, before the policy handles it."""
        if isinstance(event, events.HostReady):
            if self._connector is None or self._policy.state is not State.CONNECTING:
                return  # too late: the connector releases the agent
            self._agents.adopt(event.host, self._connector.take(event.host))
        self._reporter.note(event)

    def _suspend_or_resume(self, event: events.Event) -> bool:
        """Suspend or resume the job on SIGTSTP and SIGCONT. Returns whether the event was one of these."""
        match event:
            case events.SignalReceived(signal.SIGTSTP, ""):
                if self._peers is not None:
                    self._peers.flush()  # because its thread stops with this process
                self._suspension.stop()
                if self._peers is not None:
                    self._peers.notify(events.SignalReceived(signal.SIGCONT))
            case events.SignalReceived(signal.SIGTSTP):
                self._suspension.pause()
            case events.SignalReceived(signal.SIGCONT):
                self._suspension.resume()
            case _:
                return False
        return True

    def _act(self, decided: list[actions.Action]) -> None:
        for action in decided:
            self._perform(action)

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.StartRanks():
                self._start_ranks()
            case actions.RestartServer(number, what, restart):
                self._restart_server(number, what, restart)
            case actions.MoveServer():
                self._move_server(action)
            case actions.SignalRanks(signum, late):
                if late and self._options.notes:
                    who = list_ranks([*map(self._rank, late)]) if len(late) > 1 else self._reporter.name_with_pid(*late)
                    self._reporter.say(
                        f"{who} had not ended {self._options.grace:g} s after being asked to (--grace): killed"
                    )
                self._agents.broadcast(Frame.number(FrameKind.SIGNAL, signum))
            case actions.TellDeparture(rank):
                text = f"{self._reporter.name_with_pid(rank)} exited with code 0 before it joined the others in init()"
                self._agents.broadcast(Frame(FrameKind.DEPARTED, payload=text.encode()))
            case actions.FinishAgents(grace):
                self._agents.broadcast(Frame.number(FrameKind.FINISH, grace))
            case actions.CleanUpAfter(host):
                if host in self._agents:  # on another node, its own launcher cleans up
                    self._agents[host].clean_up()
            case actions.KillAgents():
                self._agents.kill()

    def _restart_server(self, number: int, what: str, restart: int) -> None:
        told = f"restart {restart} of {self._plan.server_restarts}"
        self._reporter.say(
            f"{self._reporter.name_with_pid(number)} {what}; it is restarted with its parameters ({told})"
        )
        host = self._host_of[number]
        (server,) = (server for server in self._parts[host].servers if server.rank == number)
        self._agents[host].send(Frame(FrameKind.START, number, server.to_json()))

    def _move_server(self, move: actions.MoveServer) -> None:
        number, host = move.number, move.host
        told = f"restart {move.restart} of {self._plan.server_restarts}"
        self._reporter.say(
            f"{move.reason}; {self._plan.name_of(number)} is started on {host} with its last copy ({told})"
        )
        before = self._parts[self._host_of[number]]
        (server,) = (server for server in before.servers if server.rank == number)
        moved = replace(server, environ=servers.moved(server.environ, host, move.restart))
        self._parts[before.host] = replace(before, servers=[own for own in before.servers if own is not server])
        self._parts[host] = replace(self._parts[host], servers=[*self._parts[host].servers, moved])
        self._host_of[number] = host
        self._agents[host].send(Frame(FrameKind.START, number, moved.to_json()))

    # --- the end

    def _release_agents(self) -> None:
        """Leave no agent behind, even if the policy itself raised an exception."""
        if self._policy.state is not State.OVER:
            self._agents.kill()
        self._agents.close()
        self._observing.close(self._ending)
        if self._peers is not None:
            self._peers.close()
        if self._connector is not None:
            self._connector.close()
        if self._plan.server_copies:  # killed servers do not remove their copies
            shutil.rmtree(self._plan.server_copies, ignore_errors=True)

    def _ending(self) -> JobEnd:
        from distrun.runner.observation.consumer import JobEnd

        failure, error = self._policy.failure, sys.exc_info()[1]
        text = "" if error is None else f"distrun: error: {error}"
        if failure is not None:
            text = self._failure_report(failure)
        return JobEnd(self._policy.status or int(error is not None), text, self._policy.interrupted_by)

    def _conclude(self) -> Outcome:
        """Print the remaining output and the failure report, and return the outcome. After a signal, a blocked terminal
        may delay that by `_PRINT_TIMEOUT` only.
        """
        failure, interrupted_by = self._policy.failure, self._policy.interrupted_by
        failure_report = None if failure is None else self._failure_report(failure)
        if not self._policy.status and not self._options.is_embedded:
            self._reporter.tell_mistakes(self._plan)
        # An embedded launcher does not print the report: `distrun.run` raises it.
        self._reporter.close(None if self._options.is_embedded else failure_report)
        status = self._policy.status
        give_up = float("inf") if interrupted_by is None else time.monotonic() + _PRINT_TIMEOUT
        while (event := self._next_event(give_up)) is not None and not isinstance(event, events.Printed):
            if isinstance(event, events.SignalReceived):
                break
            if isinstance(event, events.OutputClosed) and event.reason and not status:
                failure, failure_report, status = Failure(None, 1, event.reason), f"distrun: {event.reason}", 1
                if not self._options.is_embedded:
                    self._stderr.write(failure_report.encode() + b"\n")
        results = {rank: bytes(data) for rank, data in self._results.items()}
        return Outcome(status, failure, failure_report, interrupted_by, results, self._plan.size)

    def _failure_report(self, failure: Failure) -> str:
        report = self._reporter.failure_report(failure)
        if failure.rank is None:
            return report
        tails, host = self._reporter.stderr_tails, self._name(failure.rank).rpartition(" on ")[2]
        remedies = gpu_number_remedy(tails, failure.rank) + missing_horovod_remedy(tails, failure.rank)
        is_remote = self._is_remote(host)
        remedies += missing_module_remedy(tails, failure.rank, host) if is_remote else limit_remedy(tails, failure)
        return "\n".join([report, *remedies])
