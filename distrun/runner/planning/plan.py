"""The launch plan as frozen data: which rank runs where with which environment; as JSON for agents, and as text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from distrun.runner.planning.placement import count, spread
from distrun.runner.planning.ssh_config import Route

_HIDDEN = ("DISTRUN_KEY",)


@dataclass(frozen=True)
class RankPlan:
    """One rank, or one process of an elastic job, and the variables that are its own."""

    rank: int
    """Its number in frames; in an elastic job the number of the process, which it has for life."""
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    environ: dict[str, str]
    stdin: bool = False
    """Whether it gets the launcher's standard input; the others read an empty one."""
    is_spare: bool = False
    """Whether it imports what it is told to, and waits to be activated, before it runs the command."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Variables for it if its environment does not have them."""
    command: list[str] = field(default_factory=list)
    """The command that it runs, in a sweep; empty = that of all ranks of the host."""
    is_server: bool = False
    """Whether it is a parameter server: no rank, but a process of ours with a number after those of the ranks."""
    memory: int = -1
    """The descriptor of a server's memory, which its agent knows."""

    def to_json(self) -> bytes:
        """Return the payload of a START frame."""
        return json.dumps(vars(self)).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> RankPlan:
        """Return the plan that `to_json` wrote."""
        return cls(**json.loads(payload))


@dataclass(frozen=True)
class AgentPlan:
    """One host's part of the plan, which its agent gets."""

    host: str
    command: list[str]
    wdir: str
    grace: float
    environ: dict[str, str]
    """The variables that all ranks of the host have in common."""
    ranks: list[RankPlan]
    remote: bool = False
    """Whether `environ` is to be completed with what a login on the host gives; see `environ.complete_on_host`."""
    ports: int = 0
    """The number of free ports that the ranks need on their host."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Variables for ranks whose environment does not have them."""
    bind_to: str = "none"
    """The kind of CPUs that each rank gets its share of: core, socket, numa, or none: ranks use them all."""
    room: int = 0
    """In an elastic job, the number of ranks that the host may come to have: it divides cores and CPUs among them, and
    `ranks` are started one by one. 0 = the job is not elastic."""
    python: str = ""
    """The interpreter that was put in front of scripts, where the user has named none: on a host to which something was
    brought, that of the agent stands for it. Empty = the user has named it."""

    servers: list[RankPlan] = field(default_factory=list)
    """The parameter servers of the host."""
    server_ports: int = 0
    """The number of ports that are reserved for parameter servers, of the host or that may come to it."""
    takes_servers: bool = False
    """Whether parameter servers of other hosts may come to it: each of the job has a port here then."""

    is_outlived: bool = False
    """Whether the job goes on when the host is lost, with its servers elsewhere; elastic jobs do in any case."""

    def to_json(self) -> bytes:
        """Return the payload of a PLAN frame; bytes that are not UTF-8 (surrogates in Python) survive as escapes."""
        return json.dumps(asdict(self)).encode("ascii")

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
    """Decisions of the launcher that the user should know, a sentence each."""
    warnings: tuple[str, ...] = ()
    """Likely mistakes of the user, a sentence each."""
    network: str = ""
    """The interfaces and subnets that ranks of different hosts may use, separated by commas; empty = all."""
    servers: frozenset[int] = frozenset()
    """The ranks, and parameter servers of ours, that never end by themselves: the job is over when all others are."""
    server_restarts: int = 0
    """How often parameter servers of ours are started again, in all."""
    server_copies: str = ""
    """The folder of the job where servers keep copies, with which one whose host is lost is started again on another
    host. Empty = servers do not move."""
    ps: int | None = None
    """The number of parameter servers in TF_CONFIG; None = the ranks get no TF_CONFIG."""
    launcher: str = "ssh"
    """The program that starts ranks on other hosts: ssh, srun or mpirun."""
    by_mpirun: str = ""
    """A description of the ranks that mpirun starts, empty without mpirun. The only rank of the plan is mpirun then."""
    elastic_command: tuple[str, ...] = ()
    """In an elastic job, whose hosts may not be known yet, what its ranks run; empty = the job is not elastic."""

    @property
    def is_elastic(self) -> bool:
        """Whether ranks come and go: numbers in frames are those of processes then."""
        return bool(self.elastic_command)

    @property
    def command(self) -> Sequence[str]:
        """The command that the ranks run."""
        return self.elastic_command or self.agents[0].command

    @property
    def needs_host_info(self) -> bool:
        """Whether the ranks must be told what only their hosts know; see `endpoints.completed`."""
        return len(self.agents) > 1 or any(agent.remote or agent.ports or agent.servers for agent in self.agents)

    @property
    def host_of_each(self) -> dict[int, str]:
        """The hosts of all processes, by their numbers: those of ranks, and then of parameter servers."""
        return {item.rank: agent.host for agent in self.agents for item in (*agent.ranks, *agent.servers)}

    @property
    def refuges(self) -> frozenset[str]:
        """The hosts to which servers of others may come."""
        return frozenset(agent.host for agent in self.agents if agent.takes_servers)

    def name_of(self, process: int) -> str:
        """Return what to call a process: `rank 3`, or `server 1`."""
        return f"rank {process}" if process < self.size else f"server {process - self.size}"

    def host_of(self, rank: int) -> str:
        """Return the name of the host that a rank runs on."""
        return next(agent.host for agent in self.agents for item in agent.ranks if item.rank == rank)


def describe(plan: LaunchPlan, inherited: Mapping[str, str]) -> str:
    """Return the plan as text, without secrets. Variables that are as in `inherited` are left out."""
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
