"""An elastic job: the effects of the actions by which its processes and hosts come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from distrun.errors import DistrunError
from distrun.runner.connect.agent_client import AgentClient
from distrun.runner.connect.connector import Connector, Starter
from distrun.runner.connect.local import LocalAgentProcess
from distrun.runner.elastic.discovery import Discovery
from distrun.runner.elastic.host_list import HostList
from distrun.runner.job import Job, JobOptions, Outcome
from distrun.runner.output.sinks import RankFiles, Sink
from distrun.runner.planning.elastic import ElasticPlanner, World, provisional
from distrun.runner.planning.placement import count
from distrun.runner.planning.plan import AgentPlan, LaunchPlan, describe
from distrun.runner.planning.variables.ranks import Place
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.protocol.handshake import HostError
from distrun.runner.supervision import events, policy
from distrun.runner.supervision.elastic import actions
from distrun.runner.supervision.elastic.options import UNLIMITED, ElasticOptions
from distrun.runner.supervision.elastic.policy import ElasticPolicy
from distrun.runner.supervision.policy import Failure
from distrun.runtime.elastic.messages import Activate, Assignment, Message, Preload, Prepare, Warm, decode, encode


@dataclass(frozen=True)
class ElasticPlan:
    """An elastic job as it is started."""

    first: LaunchPlan
    """The first generation as far as it is known; only its name, size, notes and launcher count."""
    planner: ElasticPlanner
    options: ElasticOptions
    hosts: HostList
    slots: dict[str, int]
    """The hosts that may be used from the beginning, with their slots."""
    discovery: Discovery | None = None
    """Lists the hosts; None: they stay as they are."""

    def describe(self, inherited: Mapping[str, str]) -> str:
        """Return the plan as text, without secrets. Variables that are as in `inherited` are left out.

        Raises:
            UsageError: the script that lists the hosts fails.
        """
        limits = self.options
        most = "" if limits.max_np == UNLIMITED else f" to {limits.max_np}"
        size = f"{count(limits.np, 'rank')}, from {limits.min_np}{most} later on"
        within = "" if limits.restart_window is None else f" within {limits.restart_window:g} s"
        failures, spares = count(limits.max_restarts, "failure"), count(limits.spares, "spare")
        lines = [f"elastic: {size}; {failures}{within}; {spares} per host"]
        if self.discovery is not None:
            lines.append(f"hosts now: {','.join(map(str, self.discovery.list_hosts())) or 'none'}")
        return "\n".join([describe(self.first, inherited), *lines])


class ElasticJob(Job):
    """Executes an elastic plan. Frames carry the numbers of processes, which keep them for life; ranks change."""

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
            make_starter: returns what starts agents on some other hosts; None = the usual.

        Raises:
            UsageError: the output directory cannot be written.
        """
        self._slots = plan.slots
        self._limits = plan.options
        self._planner = plan.planner
        self._listed = plan.hosts
        self._discovery = plan.discovery
        self._make_starter = make_starter or self._elastic_starter
        self._ranks: dict[int, int] = {}  # process -> its present rank, or the one that it is likely to get
        self._members: tuple[actions.Member, ...] = ()
        self._processes: dict[int, str] = {}  # process -> host
        self._spares: set[int] = set()
        self._connectors: dict[str, Connector] = {}  # of the hosts that are being connected to
        self._lost: dict[str, AgentClient] = {}  # agents that are lost, until their hosts are swept
        self._wanted: set[str] = set()  # hosts to connect to as soon as the agent before has gone
        self._all_connectors: list[Connector] = []
        self._cleaners: list[threading.Thread] = []
        self._world: tuple[actions.Generation, World] | None = None
        super().__init__(plan.first, options, stdout, stderr)

    # --- observing the agents

    def output(self, agent: AgentClient, frame: Frame) -> None:
        """Print what a process wrote, unless it is a spare: what importing says was said by the ranks before."""
        if frame.process not in self._spares:
            super().output(agent, frame)
            return
        self._stderr_tails.record(frame.process, frame.payload)
        agent.send(Frame.number(FrameKind.ACK, len(frame.payload)))

    def control(self, agent: AgentClient, frame: Frame) -> None:
        """Pass on what a process says on its control channel (an agent's thread)."""
        try:
            message = decode(frame.payload)
        except ValueError as error:
            self._stderr_tails.record(frame.process, f"distrun: {error}\n".encode())
            agent.send(Frame.number(FrameKind.END, 0, frame.process))
            return
        self.post(events.ProcessSaid(frame.process, message))

    # --- the hooks of a job

    def _make_policy(self) -> ElasticPolicy:
        options, now = self._options, self._suspension.now()
        self._elastic = ElasticPolicy(self._slots, self._limits, options.grace, options.start_timeout, now)
        return self._elastic

    def _connect(self) -> None:
        if self._discovery is not None:
            self._discovery.start(self.post, self._printer.say)

    def _rank_files(self, directory: Path) -> RankFiles:
        limits = self._limits
        size = limits.np if limits.max_np == UNLIMITED else limits.max_np
        return RankFiles(directory, size, range(limits.np))

    def _rank(self, process: int) -> int:
        return self._ranks.get(process, process)

    def _name(self, process: int) -> str:
        return self._elastic.name(process)

    def _conclude(self) -> Outcome:
        outcome = super()._conclude()
        ranks = {member.process: member.rank for member in self._members}
        failure = outcome.failure
        if failure is not None and failure.rank is not None:  # which may have been no member yet, or no more
            ranks = {failure.rank: self._rank(failure.rank)} | ranks
            failure = replace(failure, rank=ranks[failure.rank])
        results = {ranks[process]: data for process, data in outcome.results.items() if process in ranks}
        return replace(outcome, failure=failure, results=results, size=len(self._members))

    def _failure_report(self, failure: Failure) -> str:
        story = self._elastic.story
        before = ["distrun: what has failed:", *(f"    {line}" for line in story)] if len(story) > 1 else []
        return "\n".join([*before, super()._failure_report(failure)])

    def _release_agents(self) -> None:
        if self._discovery is not None:
            self._discovery.close()
        for cleaner in self._cleaners:
            cleaner.join()
        for agent in self._lost.values():
            agent.close()
        super()._release_agents()
        for connector in self._all_connectors:
            connector.close()

    def _judged(self, event: events.Event | None) -> events.Event | None:
        match event:
            case events.HostReady():
                return self._welcome(event)
            case events.HostRefused(host):
                self._connectors.pop(host, None)
                return event
            case _:
                return event

    def _note(self, event: events.Event) -> None:
        super()._note(event)
        match event:
            case events.HostReady(host, note) if note:
                self._printer.say(f"distrun: host {host} {note}")
            case events.ProcessSaid(process, Warm()):
                self._log(f"{self._name(process)} is warm")
            case events.AgentLost(host) if host in self._agents:
                self._planner.remove(host)
                self._lost[host] = self._agents.pop(host)
            case events.AgentGone(host) if host in self._agents:
                self._planner.remove(host)
                self._part_with(host, self._agents.pop(host))
            case events.HostCleaned(host) if host in self._lost:
                self._part_with(host, self._lost.pop(host))
            case _:
                pass

    def _perform(self, action: policy.Action) -> None:
        match action:
            case actions.BeginGeneration(generation, start):
                self._begin(generation, start)
            case actions.StartNewcomers(expected, processes):
                self._start_members(expected, processes, is_firm=False)
            case actions.ActivateSpares(expected, processes):
                self._start_members(expected, processes, is_firm=False)
            case actions.StartSpares(hosts, modules):
                self._start_spares(hosts, modules)
            case actions.PrepareMembers(generation_number, processes, reason):
                for process in processes:
                    self._tell(process, Prepare(generation_number, reason))
            case actions.EndProcesses(processes, grace):
                for process in processes:
                    self._send(Frame.number(FrameKind.END, grace, process))
            case actions.ConnectHosts(hosts):
                self._connect_hosts(sorted(hosts))
            case actions.ReleaseHost(host):
                if host in self._agents:
                    self._agents[host].send(Frame.number(FrameKind.FINISH, self._options.grace))
            case actions.Say(text):
                self._printer.say(f"distrun: {text}")
            case policy.CleanUpAfter(host):
                cleaner = threading.Thread(
                    target=self._clean_up, args=(host,), name=f"distrun clean {host}", daemon=True
                )
                self._cleaners.append(cleaner)
                cleaner.start()
            case _:
                super()._perform(action)

    # --- hosts

    def _connect_hosts(self, names: Iterable[str]) -> None:
        remote: list[AgentPlan] = []
        for name in names:
            if name in self._connectors:
                continue  # its event is yet to come
            if name in self._agents or name in self._lost:  # the agent before must be gone, and the sweep be over
                self._wanted.add(name)
                continue
            try:
                self._parts[name] = part = self._planner.part(*self._listed[name])
                if part.remote:
                    remote.append(part)
                    continue
                self._adopt(part, LocalAgentProcess(part, f"DISTRUN_JOB={self._plan.job}"))
                self.post(events.HostReady(name))
            except DistrunError as error:
                self.post(events.HostRefused(name, str(error)))
        if remote:
            connector = Connector(remote, self._make_starter([part.host for part in remote]), self.post)
            self._all_connectors.append(connector)
            self._connectors |= dict.fromkeys((part.host for part in remote), connector)
            connector.start()

    def _welcome(self, event: events.HostReady) -> events.Event:
        """Hand a host that is ready its part of the plan; return the event, or that it cannot be used after all."""
        host = event.host
        if (connector := self._connectors.pop(host, None)) is not None:
            process = connector.take(host)
            if not self._elastic.accepts_hosts:
                process.close()
                return event
            self._adopt(self._parts[host], process)
        agent = self._agents[host]
        try:
            self._planner.add(host, agent.process.host_info)
        except HostError as error:
            agent.send(Frame.number(FrameKind.FINISH, 0))
            return events.HostRefused(host, str(error))
        agent.start_ranks(self._parts[host], self._options.function)
        return event

    def _part_with(self, host: str, agent: AgentClient) -> None:
        agent.close()
        if host in self._wanted:
            self._wanted.discard(host)
            self._connect_hosts([host])

    def _clean_up(self, host: str) -> None:
        """End what a lost agent has left behind (a thread of its own)."""
        is_certain = False
        try:
            if (agent := self._lost.get(host)) is not None:
                agent.clean_up()
                is_certain = agent.process.is_clean()
        finally:
            self.post(events.HostCleaned(host, is_certain))

    def _elastic_starter(self, names: Iterable[str]) -> Starter:
        routes = {name: route for name in names if (route := self._listed[name][1]) is not None}
        return self._usual_starter(routes)

    # --- processes

    def _begin(self, generation: actions.Generation, start: Collection[int]) -> None:
        world = self._world_of(generation)
        self._members = generation.members
        self._start_members(generation, start, is_firm=True)
        for member in generation.members:
            self._ranks[member.process] = member.rank
            if member.process not in start:
                environ = world.environs[member.rank]
                self._tell(member.process, Assignment(generation.number, environ, generation.reason))

    def _start_members(self, expected: actions.Generation, processes: Collection[int], is_firm: bool) -> None:
        world = self._world_of(expected)
        for member in expected.members:
            if member.process not in processes:
                continue
            self._ranks[member.process] = member.rank
            environ = world.environs[member.rank] if is_firm else provisional(world.environs[member.rank])
            if member.process in self._spares:
                self._spares.discard(member.process)
                self._tell(member.process, Activate(environ))
                continue
            self._processes[member.process] = member.host
            place = Place(member.host, member.slot)
            plan = self._planner.process(member.process, place, environ, world.defaults.get(member.host, {}))
            self._send(Frame(FrameKind.START, member.process, plan.to_json()))

    def _start_spares(self, hosts: Mapping[int, str], modules: Iterable[str]) -> None:
        defaults = {} if self._world is None else self._world[1].defaults
        for process, host in hosts.items():
            self._processes[process] = host
            self._spares.add(process)
            plan = self._planner.spare(process, defaults.get(host, {}))
            self._send(Frame(FrameKind.START, process, plan.to_json()))
            self._tell(process, Preload(list(modules)))

    def _world_of(self, generation: actions.Generation) -> World:
        """Return a generation as its ranks are told of it; it is asked for several times in a row."""
        if self._world is None or self._world[0] != generation:
            places = [Place(member.host, member.slot) for member in generation.members]
            self._world = generation, self._planner.world(places, generation.number)
        return self._world[1]

    def _tell(self, process: int, message: Message) -> None:
        self._send(Frame(FrameKind.CONTROL, process, encode(message)))

    def _send(self, frame: Frame) -> None:
        """Send a frame to the agent of the process that it is about, if there is one."""
        if (agent := self._agents.get(self._processes.get(frame.process, ""))) is not None:
            agent.send(frame)
