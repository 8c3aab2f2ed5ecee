"""An elastic job: how it differs from other jobs, and what executes each action of its policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distrun.contract.elastic.messages import Joiner, Warm
from distrun.runner.decisions import events
from distrun.runner.decisions.actions import CleanUpAfter
from distrun.runner.decisions.elastic import actions
from distrun.runner.decisions.elastic.options import UNLIMITED
from distrun.runner.decisions.elastic.policy import ElasticPolicy
from distrun.runner.decisions.failure import Failure
from distrun.runner.elastic.hosts import Hosts
from distrun.runner.elastic.preparation import ElasticPlan
from distrun.runner.elastic.processes import Processes
from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.hosts.connector import Starter
from distrun.runner.job.agents import usual_starter
from distrun.runner.job.job import Job
from distrun.runner.job.options import JobOptions, Outcome
from distrun.runner.output.sinks import RankFiles, Sink
from distrun.runner.protocol.frames import Frame, FrameKind

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action


class ElasticJob(Job):
    """Executes an elastic plan. Frames have numbers of processes, which never change, unlike their ranks."""

    def __init__(
        self,
        plan: ElasticPlan,
        options: JobOptions,
        stdout: Sink,
        stderr: Sink,
        make_starter: Callable[[Iterable[str]], Starter] | None = None,
    ) -> None:
        """
        Args:
            plan: what to do.
            options: how to do it.
            stdout, stderr: where to print.
            make_starter: returns what starts agents on some other hosts. None = the usual starter.

        Raises:
            UsageError: the output directory cannot be written.
        """
        self._slots = plan.slots
        self._limits = plan.options
        self._listed = plan.hosts
        self._discovery = plan.discovery
        self._joiners: dict[int, Joiner] = {}  # by process
        self._dead: set[int] = set()  # processes that were dead when the present generation began
        super().__init__(plan.first, options, stdout, stderr)
        starter = make_starter or self._usual_starter
        self._processes = Processes(self._agents, plan.planner)
        self._hosts = Hosts(
            self._agents, plan.planner, plan.hosts, plan.first.job, options.function, starter, self.post
        )

    def _usual_starter(self, names: Iterable[str]) -> Starter:
        routes = {name: route for name in names if (route := self._listed[name][1]) is not None}
        return usual_starter(self._plan, self._options, routes)

    # --- observing the agents

    def output(self, agent: AgentClient, frame: Frame) -> None:
        """Print what a process wrote, unless it is a spare: ranks have printed the same while importing."""
        if not self._processes.is_spare(frame.process):
            super().output(agent, frame)
            return
        self._reporter.stderr_tails.record(frame.process, frame.payload)
        agent.send(Frame.number(FrameKind.ACK, len(frame.payload)))

    def control(self, agent: AgentClient, frame: Frame) -> None:
        """Post the message of a process on its control channel (called by an agent's thread)."""
        joiner = self._joiners.setdefault(frame.process, Joiner())
        try:
            message = joiner.feed(frame.payload)
        except ValueError as error:
            self._reporter.stderr_tails.record(frame.process, f"distrun: {error}\n".encode())
            agent.send(Frame.number(FrameKind.END, 0, frame.process))
            return
        if message is not None:
            self.post(events.ProcessSaid(frame.process, message))

    # --- the hooks of a job

    def _make_policy(self) -> ElasticPolicy:
        options, now = self._options, self._suspension.now()
        self._elastic = ElasticPolicy(self._slots, self._limits, options.grace, options.start_timeout, now)
        return self._elastic

    def _rank_files(self, directory: Path) -> RankFiles:
        limits = self._limits
        grows = limits.max_np == UNLIMITED
        return RankFiles(directory, limits.np if grows else limits.max_np, range(limits.np), grows=grows)

    def _rank(self, process: int) -> int:
        return self._processes.rank(process)

    def _name(self, process: int) -> str:
        return self._elastic.name(process)

    def _is_remote(self, host: str) -> bool:
        return host in self._listed and self._listed[host][1] is not None

    def _connect(self) -> None:
        if self._discovery is not None:
            self._discovery.start(self.post, self._reporter.say)

    def _judged(self, event: events.Event | None) -> events.Event | None:
        if isinstance(event, events.HostReady):
            return self._hosts.welcome(event, self._elastic.accepts_hosts)
        return event

    def _note(self, event: events.Event) -> None:
        self._reporter.note(event)
        self._hosts.note(event)
        if isinstance(event, events.ProcessSaid) and isinstance(event.message, Warm):
            self._reporter.log(f"{self._name(event.process)} is warm")

    def _perform(self, action: Action) -> None:
        match action:
            case actions.BeginGeneration(generation, start):
                self._forget_the_dead()
                self._processes.begin(generation, start)
            case actions.StartNewcomers(expected, processes):
                self._processes.start_early(expected, processes)
            case actions.StartSpares(hosts, modules):
                self._processes.start_spares(hosts, modules)
            case actions.PrepareMembers(number, processes, reason):
                self._processes.prepare(number, processes, reason)
            case actions.EndProcesses(processes, grace):
                self._processes.end(processes, grace)
            case actions.ConnectHosts(hosts):
                self._hosts.connect(sorted(hosts))
            case actions.ReleaseHost(host):
                self._hosts.release(host, self._options.grace)
            case actions.Say(text):
                self._reporter.say(text)
            case CleanUpAfter(host):
                self._hosts.sweep(host)
            case _:
                super()._perform(action)

    def _forget_the_dead(self) -> None:
        """Forget processes that were dead a generation ago. A failure that is reported is a later one."""
        for process in self._dead:
            self._processes.forget(process)
            self._reporter.forget(process)
            self._joiners.pop(process, None)
            self._results.pop(process, None)
        self._dead = self._processes.known - self._elastic.alive

    # --- the end

    def _release_agents(self) -> None:
        if self._discovery is not None:
            self._discovery.close()
        self._hosts.await_sweeps()
        super()._release_agents()
        self._hosts.close()

    def _conclude(self) -> Outcome:
        outcome = super()._conclude()
        members = self._processes.members
        ranks = {member.process: member.rank for member in members}
        failure = outcome.failure
        if failure is not None and failure.rank is not None:  # a process that may not be a member now
            ranks = {failure.rank: self._rank(failure.rank)} | ranks
            failure = replace(failure, rank=ranks[failure.rank])
        results = {ranks[process]: data for process, data in outcome.results.items() if process in ranks}
        return replace(outcome, failure=failure, results=results, size=len(members))

    def _failure_report(self, failure: Failure) -> str:
        history = self._elastic.failure_history
        before = ["distrun: what has failed:", *(f"    {line}" for line in history)] if len(history) > 1 else []
        return "\n".join([*before, super()._failure_report(failure)])
