"""The sweep itself: it takes events from one queue, and executes the actions that the policy decides on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue

from distrun.contract.elastic.messages import Report, decode
from distrun.runner.decisions import events, signals
from distrun.runner.decisions.actions import CleanUpAfter, FinishAgents, KillAgents
from distrun.runner.decisions.elastic.actions import ConnectHosts, EndProcesses, Say
from distrun.runner.elastic.hosts import Hosts
from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.hosts.connector import Starter
from distrun.runner.job.agents import Agents, usual_starter
from distrun.runner.job.options import JobOptions
from distrun.runner.job.suspension import Suspension
from distrun.runner.output.printer import Printer
from distrun.runner.output.sinks import Sink
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.system import descendants
from distrun.tools.sweep.output import TrialOutput
from distrun.tools.sweep.plan import SweepPlan
from distrun.tools.sweep.policy import actions
from distrun.tools.sweep.policy.policy import Phase, Policy
from distrun.tools.sweep.processes import Processes
from distrun.tools.sweep.reporter import Reporter
from distrun.tools.sweep.results.table import View

_PRINT_TIMEOUT = 2.0  # seconds that a blocked terminal may delay the end


class Sweep:
    """Executes a plan. It is also the observer of the agents, whose threads call the methods marked below."""

    def __init__(
        self,
        plan: SweepPlan,
        options: JobOptions,
        stdout: Sink,
        stderr: Sink,
        make_view: Callable[[Callable[[str], None], float], View],
        make_starter: Callable[[Iterable[str]], Starter] | None = None,
    ) -> None:
        """
        Args:
            plan: the plan.
            options: the settings of the run that a job has as well.
            stdout, stderr: the sinks to print to.
            make_view: returns the view, given a function that prints for the user, and the time.
            make_starter: returns the starter of agents on other hosts, given their names. None = the usual one.
        """
        self._plan = plan
        self._options = options
        self._queue: SimpleQueue[events.Event] = SimpleQueue()
        self._printer = Printer(stdout, stderr, options.style, None, self.post, options.panel)
        self._output = TrialOutput(plan.record.folder / "logs", plan.metric, self._measured, self._say)
        self._agents = Agents(self, self._log)
        self._suspension = Suspension(self._agents, signal.SIGSTOP)
        self._policy = Policy(plan.slots, plan.limits, plan.source, plan.halving, plan.earlier)
        self._processes = Processes(self._agents, plan)
        starter = make_starter or self._usual_starter
        self._hosts = Hosts(self._agents, plan.planner, plan.hosts, plan.first.job, None, starter, self.post)
        view = make_view(self._say, self._suspension.now())
        self._reporter = Reporter(plan, self._output, view, options.notes and not options.panel, self._say)

    def _usual_starter(self, names: Iterable[str]) -> Starter:
        routes = {name: route for name in names if (route := self._plan.hosts[name][1]) is not None}
        return usual_starter(self._plan.first, self._options, routes)

    # --- observing the agents (their threads)

    def output(self, agent: AgentClient, frame: Frame) -> None:
        """Keep the output of a process."""
        self._output.take(frame)
        agent.acknowledge(len(frame.payload))

    def result(self, frame: Frame) -> None:
        """Ignore results of functions: trials run commands."""

    def control(self, agent: AgentClient, frame: Frame) -> None:
        """Post a message that a process has sent on its control channel. End a process that sends anything else."""
        try:
            message = decode(frame.payload)
        except ValueError as error:
            self._output.tails.record(frame.process, f"distrun: {error}\n".encode())
            agent.send(Frame.number(FrameKind.END, 0, frame.process))
            return
        self.post(events.ProcessSaid(frame.process, message))

    def observed(self, agent: AgentClient, frame: Frame) -> None:
        """Ignore observations of single ranks: a sweep does not show them."""

    def reports_lost_peer(self, rank: int) -> bool:
        """Whether a process that has exited has reported a lost peer in its output."""
        return self._output.tails.reports_lost_peer(rank)

    def post(self, event: events.Event) -> None:
        """Queue an event for the thread that decides. Any thread may call this."""
        if isinstance(event, events.RankExited):
            self._output.exited(event.rank)  # before the event, as this may post a last value
        self._queue.put(event)

    def _measured(self, process: int, value: float) -> None:
        self._queue.put(events.ProcessSaid(process, Report(0, value, 0)))

    # --- the decider

    def run(self) -> int:
        """Run all trials. Return the exit status when they, and everything that they started, have ended.

        Raises:
            LaunchError: an agent could not be started.
        """
        descendants.set_subreaper()
        self._printer.start()
        with signals.posted(self.post):
            try:
                for text in (*self._plan.first.warnings, *(self._plan.first.notes if self._options.notes else ())):
                    self._say(text)
                self._decide()
            finally:
                self._release()
            self._conclude()
        return self._policy.status

    def _decide(self) -> None:
        policy, now = self._policy, self._suspension.now()
        time_limit = float("inf") if self._options.timeout is None else now + self._options.timeout
        self._act(policy.begin(now))
        while policy.phase is not Phase.OVER:
            due = min(time_limit, self._reporter.view.due, float("inf") if policy.deadline is None else policy.deadline)
            if (event := self._next_event(due)) is not None:
                self._take(event)
            now = self._suspension.now()
            if now >= time_limit:
                self._act(policy.handle(events.TimeUp(self._options.timeout or 0.0), now))
                time_limit = float("inf")
            self._act(policy.tick(now))
            self._reporter.view.see(policy.trials, now)

    def _next_event(self, deadline: float) -> events.Event | None:
        """Return the next event, or None if the deadline comes first."""
        try:
            timeout = None if deadline == float("inf") else max(0.0, deadline - self._suspension.now())
            return self._queue.get(timeout=timeout)
        except Empty:
            return None

    def _take(self, event: events.Event) -> None:
        match event:
            case events.SignalReceived(signal.SIGTSTP):
                self._suspension.stop()
                return
            case events.HostReady(host, note):
                if note and self._options.notes:
                    self._say(f"host {host} {note}")
                event = self._hosts.welcome(event, self._policy.phase is Phase.RUNNING)
            case events.HostStep(host, step):
                self._log(f"host {host}: {step}")
            case events.RankStarted(process, pid):
                self._reporter.started(process, pid)
            case _:
                pass
        self._hosts.note(event)
        self._act(self._policy.handle(event, self._suspension.now()))

    def _act(self, decided: list[actions.Action]) -> None:
        for action in decided:
            match action:
                case actions.StartTrial(trial):
                    self._processes.start(trial, self._reporter.began(trial))
                    self._log(f"trial {trial.number} begins on {', '.join(trial.hosts)}")
                case actions.TrialEnded(trial):
                    self._reporter.ended(trial, self._policy.trials)
                case actions.Tell(processes, verdict):
                    self._processes.tell(processes, verdict)
                case EndProcesses(processes, grace):
                    self._processes.end(processes, grace)
                case actions.ReleaseProcesses(processes):
                    self._processes.release(processes)
                case actions.StartSpares(hosts):
                    self._processes.start_spares(hosts)
                case ConnectHosts(hosts):
                    self._hosts.connect(host for host in self._plan.slots if host in hosts)
                case Say(text):
                    self._say(text)
                case CleanUpAfter(host):
                    self._hosts.sweep(host)
                case FinishAgents(grace):
                    self._agents.broadcast(Frame.number(FrameKind.FINISH, grace))
                case KillAgents():
                    self._agents.kill()

    # --- the end

    def _release(self) -> None:
        """End all agents, even if a decision has raised an exception."""
        if self._policy.phase is not Phase.OVER:
            self._agents.kill()
        self._hosts.await_sweeps()
        self._agents.close()
        self._hosts.close()
        self._output.close()
        self._reporter.view.end()

    def _conclude(self) -> None:
        """Write the results, and print the sentences about them."""
        policy = self._policy
        self._reporter.conclude(policy.trials, policy.interrupted_by is not None)
        self._printer.close(None if policy.failure is None else f"distrun: error: {policy.failure}")
        give_up = time.monotonic() + _PRINT_TIMEOUT
        with suppress(Empty):
            while not isinstance(self._queue.get(timeout=max(0.0, give_up - time.monotonic())), events.Printed):
                pass

    def _say(self, text: str) -> None:
        self._printer.say(f"distrun: {text}")

    def _log(self, text: str) -> None:
        if self._options.verbose:
            self._say(text)
