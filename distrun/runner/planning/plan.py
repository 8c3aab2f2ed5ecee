"""The launch plan as frozen data: the host and the environment of each rank. As JSON for agents, and as text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distrun.host.ranks import count
from distrun.runner.planning.placement import spread
from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.json_payload import JsonPayload

_HIDDEN = ("DISTRUN_KEY",)


@dataclass(frozen=True)
class RankPlan(JsonPayload):
    """One rank, or one process of an elastic job, with the variables that only it has."""

    rank: int
    """Its number in frames. In an elastic job this is the number of the process, which never changes."""
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    environ: dict[str, str]
    stdin: bool = False
    """Whether it gets the launcher's standard input. The others read an empty one."""
    is_spare: bool = False
    """Whether it is a spare: it imports modules and then waits to be activated before it runs the command."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Variables that it gets if its environment does not have them."""
    command: list[str] = field(default_factory=list)
    """The command that it runs, in a sweep. Empty = the host's `AgentPlan.command`."""
    is_server: bool = False
    """Whether it is a parameter server of distrun: not a rank, but a process whose number comes after the ranks'."""
    memory: int = -1
    """The descriptor of a server's memory, which its agent fills in."""


@dataclass(frozen=True)
class AgentPlan(JsonPayload):
    """One host's part of the plan, which is sent to its agent."""

    host: str
    command: list[str]
    wdir: str
    grace: float
    environ: dict[str, str]
    """The variables that all ranks of the host have in common."""
    ranks: list[RankPlan]
    remote: bool = False
    """Whether `environ` is completed with the environment of a login on the host. See `environ.complete_on_host`."""
    ports: int = 0
    """The number of free ports that the ranks need on their host."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Variables for ranks whose environment does not have them."""
    bind_to: str = "none"
    """The kind of CPUs that each rank gets its share of: core, socket or numa. With `none`, ranks use all CPUs."""
    room: int = 0
    """In an elastic job, the largest number of ranks that the host may have: cores and CPUs are divided by it, and
    ranks are started one by one. 0 = the job is not elastic.
    """
    python: str = ""
    """The interpreter that was put in front of the user's script. On a host that an environment was brought to, the
    agent's interpreter replaces it. Empty = the user named an interpreter.
    """

    servers: list[RankPlan] = field(default_factory=list)
    """The parameter servers of the host."""
    server_ports: int = 0
    """The number of ports that are reserved for parameter servers, including servers that may move to the host."""
    takes_servers: bool = False
    """Whether parameter servers of other hosts may move here: then each server of the job has a port on this host."""

    is_outlived: bool = False
    """Whether the job continues when the host is lost, with its servers on other hosts. Elastic jobs always do."""

    @classmethod
    def from_json(cls, payload: bytes) -> AgentPlan:
        """Return the plan that `to_json` wrote."""
        values = json.loads(payload)
        processes = {name: [RankPlan(**item) for item in values[name]] for name in ("ranks", "servers")}
        return cls(**{**values, **processes})


@dataclass(frozen=True)
class LaunchPlan:
    """The whole job."""

    job: str
    size: int
    agents: tuple[AgentPlan, ...]
    routes: Mapping[str, Route] = field(default_factory=dict)
    """The routes to the hosts that are not this machine."""
    notes: tuple[str, ...] = ()
    """Decisions of the launcher that the user should know of, a sentence each."""
    warnings: tuple[str, ...] = ()
    """Likely mistakes of the user, a sentence each."""
    network: str = ""
    """The interfaces and subnets that ranks of different hosts may use, separated by commas. Empty = all."""
    servers: frozenset[int] = frozenset()
    """The ranks and parameter servers that never end by themselves: the job is over when all others have ended."""
    server_restarts: int = 0
    """The number of times that distrun's parameter servers are started again, in all."""
    server_copies: str = ""
    """The job's folder for copies of the servers' parameters. A server whose host is lost starts again on another host
    from its copy. Empty = servers do not move.
    """
    ps: int | None = None
    """The number of parameter servers in TF_CONFIG. None = the ranks get no TF_CONFIG."""
    launcher: str = "ssh"
    """The program that starts ranks on other hosts: ssh, srun or mpirun."""
    by_mpirun: str = ""
    """A description of the ranks that mpirun starts, where mpirun is the plan's only rank. Empty = without mpirun."""
    elastic_command: tuple[str, ...] = ()
    """In an elastic job, whose hosts may not be known yet, the command of its ranks. Empty = the job is not elastic."""

    @property
    def is_elastic(self) -> bool:
        """Whether ranks come and go, so that the numbers in frames are not ranks but numbers of processes."""
        return bool(self.elastic_command)

    @property
    def command(self) -> Sequence[str]:
        """The command that the ranks run."""
        return self.elastic_command or self.agents[0].command

    @property
    def needs_host_info(self) -> bool:
        """Whether the plan needs facts that only the hosts know. See `endpoints.completed`."""
        return len(self.agents) > 1 or any(agent.remote or agent.ports or agent.servers for agent in self.agents)

    @property
    def host_of_each(self) -> dict[int, str]:
        """The hosts of all processes, by their numbers: first ranks, and then parameter servers."""
        return {item.rank: agent.host for agent in self.agents for item in (*agent.ranks, *agent.servers)}

    @property
    def refuges(self) -> frozenset[str]:
        """The hosts that the servers of other hosts may move to."""
        return frozenset(agent.host for agent in self.agents if agent.takes_servers)

    def name_of(self, process: int) -> str:
        """Return the name of a process for messages: `rank 3`, or `server 1`."""
        return f"rank {process}" if process < self.size else f"server {process - self.size}"

    def host_of(self, rank: int) -> str:
        """Return the name of the host that a rank runs on."""
        return next(agent.host for agent in self.agents for item in agent.ranks if item.rank == rank)


def describe(plan: LaunchPlan, inherited: Mapping[str, str]) -> str:
    """Return the plan as text, without secrets. Variables with the same value in `inherited` are left out."""
    lines = [f"job {plan.job}: {plan.by_mpirun or spread(plan.size, sum(bool(agent.ranks) for agent in plan.agents))}"]
    lines += [f"warning: {warning}" for warning in plan.warnings]
    lines += [f"note: {note}" for note in plan.notes]
    for agent in plan.agents:
        name = plan.routes.get(agent.host, agent.host)
        lines += [
            "mpirun:" if plan.by_mpirun else f"host {name}: {count(len(agent.ranks), 'rank')}",
            f"  directory: {agent.wdir}",
            f"  command:   {shlex.join(agent.command)}",
            *(f"  {text}" for text in _assignments(agent.environ, {} if agent.remote else inherited)),
        ]
        for rank in () if plan.by_mpirun else agent.ranks:
            place_text = f"local {rank.local_rank}({rank.local_size}), host {rank.cross_rank}({rank.cross_size})"
            lines.append(f"  rank {rank.rank}({plan.size}): {place_text}")
            lines += [f"    {text}" for text in _assignments(rank.environ, {})]
        for server in agent.servers:
            lines.append(f"  {plan.name_of(server.rank)}")
            lines += [f"    {text}" for text in _assignments(server.environ, {})]
    return "\n".join(lines)


def _assignments(variables: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    new = {name: value for name, value in variables.items() if known.get(name) != value}
    return [f"{name}={'(secret)' if name in _HIDDEN else repr(value)}" for name, value in new.items()]
