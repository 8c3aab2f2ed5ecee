"""The hosts of a running elastic job: starts agents on them, cleans up after lost agents, and closes the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from distrun.errors import DistrunError
from distrun.runner.decisions import events
from distrun.runner.elastic.host_list import HostList
from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.hosts.connector import Connector, Starter
from distrun.runner.job.agents import Agents
from distrun.runner.planning.elastic import ElasticPlanner
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.protocol.handshake import HostError


class Hosts:
    """Starts and removes agents. Called by the thread that decides."""

    def __init__(
        self,
        agents: Agents,
        planner: ElasticPlanner,
        listed: HostList,
        job: str,
        function: bytes | None,
        make_starter: Callable[[Iterable[str]], Starter],
        post: Callable[[events.Event], None],
    ) -> None:
        self._agents = agents
        self._planner = planner
        self._listed = listed
        self._job = job
        self._function = function
        self._make_starter = make_starter
        self._post = post
        self._parts: dict[str, AgentPlan] = {}
        self._connectors: dict[str, Connector] = {}  # host that is being connected to -> its connector
        self._lost: dict[str, AgentClient] = {}  # host -> the agent that was lost there, until the host is swept
        self._wanted: set[str] = set()  # hosts to connect to as soon as the previous agent is gone
        self._all_connectors: list[Connector] = []
        self._cleaners: list[threading.Thread] = []

    def connect(self, names: Iterable[str]) -> None:
        """Start agents on hosts, when previous agents there are gone. Posts `HostReady` or `HostRefused` for each."""
        remote: list[AgentPlan] = []
        for name in names:
            if name in self._connectors:
                continue  # its event will come
            if name in self._agents or name in self._lost:  # wait until it is gone and swept
                self._wanted.add(name)
                continue
            try:
                self._parts[name] = part = self._planner.part(*self._listed[name])
                if part.remote:
                    remote.append(part)
                    continue
                self._agents.start_here(part, f"DISTRUN_JOB={self._job}")
                self._post(events.HostReady(name))
            except DistrunError as error:
                self._post(events.HostRefused(name, str(error)))
        if remote:
            connector = Connector(remote, self._make_starter([part.host for part in remote]), self._post)
            self._all_connectors.append(connector)
            self._connectors |= dict.fromkeys((part.host for part in remote), connector)
            connector.start()

    def welcome(self, event: events.HostReady, is_accepted: bool) -> events.Event:
        """Hand a host that is ready its part of the plan. Returns `event`, or `HostRefused` if the host cannot be used.

        Args:
            event: the event of the host.
            is_accepted: whether the job still takes hosts. If not, the agent that was started there is closed.
        """
        host = event.host
        if (connector := self._connectors.pop(host, None)) is not None:
            process = connector.take(host)
            if not is_accepted:
                process.close()
                return event
            self._agents.adopt(host, process)
        agent = self._agents[host]
        try:
            self._planner.add(host, agent.process.host_info, has_others=len(self._listed) > 1)
        except HostError as error:
            agent.send(Frame.number(FrameKind.FINISH, 0))
            return events.HostRefused(host, str(error))
        agent.start_ranks(self._parts[host], self._function)
        return event

    def note(self, event: events.Event) -> None:
        """Note that a host was refused or swept, or that an agent is lost or gone."""
        match event:
            case events.HostRefused(host):
                self._connectors.pop(host, None)
            case events.AgentLost(host) if host in self._agents:
                self._planner.remove(host)
                self._lost[host] = self._agents.pop(host)
            case events.AgentGone(host) if host in self._agents:
                self._planner.remove(host)
                self._part_with(host, self._agents.pop(host))
            case events.HostCleaned(host) if host in self._lost:
                self._part_with(host, self._lost.pop(host))

    def release(self, host: str, grace: float) -> None:
        """Tell the agent of a host, if there is one, to end what is left of its processes, and to leave."""
        if host in self._agents:
            self._agents[host].send(Frame.number(FrameKind.FINISH, grace))

    def sweep(self, host: str) -> None:
        """Start a thread that ends what a lost agent has left behind, and then posts `HostCleaned`."""
        cleaner = threading.Thread(target=self._clean_up, args=(host,), name=f"distrun clean {host}", daemon=True)
        self._cleaners = [other for other in self._cleaners if other.is_alive()]
        self._cleaners.append(cleaner)
        cleaner.start()

    def await_sweeps(self) -> None:
        """Wait until all hosts are swept, and close the connections to the agents that were lost there."""
        for cleaner in self._cleaners:
            cleaner.join()
        for agent in self._lost.values():
            agent.close()

    def close(self) -> None:
        """Stop connecting to hosts."""
        for connector in self._all_connectors:
            connector.close()

    def _part_with(self, host: str, agent: AgentClient) -> None:
        agent.close()
        if host in self._wanted:
            self._wanted.discard(host)
            self.connect([host])

    def _clean_up(self, host: str) -> None:
        is_certain = False
        try:
            if (agent := self._lost.get(host)) is not None:
                agent.clean_up()
                is_certain = agent.process.is_clean()
        finally:
            self._post(events.HostCleaned(host, is_certain))
