"""The launch plan: which rank runs where with which environment, as frozen data. Pure; effects are elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from distrun.errors import UsageError
from distrun.runner.planning import tf_config
from distrun.runner.planning.environ import (
    AUTO,
    forwarded_variables,
    inherited_variables,
    requested_variables,
    thread_variables,
)
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.placement import count, host_of_each_rank, place, spread, with_slots
from distrun.runner.planning.ranks import Meeting, Place, RankVariables
from distrun.runner.planning.ssh_config import Route
from distrun.runtime import horovod
from distrun.runtime.settings import (
    ENCRYPT,
    KEEPALIVE,
    NETWORK,
    STALL_TIMEOUT,
    STALL_WARNING,
    START_TIMEOUT,
    WIRE_DTYPE,
)

_HIDDEN = ("DISTRUN_KEY",)


@dataclass(frozen=True)
class LaunchRequest:
    """The user's request; the defaults are those of the command line."""

    command: tuple[str, ...]
    np: int | None = None
    """The number of ranks; None = all slots of the hosts."""
    hosts: tuple[Host, ...] = ()
    """The hosts; none = this machine, with its default slots."""
    exports: tuple[str, ...] = ()
    """The values of `-x`."""
    wdir: str | None = None
    openmpi_env: bool = False
    torchrun_env: bool = False
    """Whether ranks get the variables that only torchrun sets."""
    name: str = "none"
    """The job's name, as torchrun calls it: TORCHELASTIC_RUN_ID."""
    nodes: int | None = None
    """The number of hosts that have a launcher each, ours included, whatever a scheduler says; None = not so."""
    slots: int | None = None
    """Slots of each host that is listed without, 1 by default, or of this machine if none is listed."""
    ranks_per_host: int | None = None
    """The number of ranks of every host; None = its slots."""
    oversubscribe: bool = False
    """Whether hosts take more ranks than they have slots when `np` asks for more."""
    bind_to: str = "none"
    """The kind of CPUs that ranks are bound to: core, socket, numa or none."""
    report_bindings: bool = False
    map_by: str = "slot"
    """`slot`: all slots of a host are filled before the next one's; `node`: hosts take turns."""
    share_gpus: bool = False
    """Whether a host may have more ranks than GPUs were listed for it."""
    stdin: int | None = None
    """The rank that gets the launcher's standard input."""
    stall_warning: float | None = None
    stall_timeout: float | None = None
    start_timeout: float | None = None
    keepalive: float | None = None
    network: str | None = None
    """The interfaces and subnets that ranks of different hosts may use, separated by commas."""
    encrypt: bool = False
    """Whether what ranks of different hosts send each other is encrypted."""
    wire_dtype: str | None = None
    """The half-precision type in which float32 and float64 travel between hosts; None = they travel as they are."""
    launcher: str | None = None
    """The program that starts ranks on other hosts: ssh, srun or mpirun; None = the one that fits."""
    mpi_args: str | None = None
    """Further arguments for mpirun, quoted as in a shell."""
    tf_config: bool = False
    """Whether ranks get TF_CONFIG."""
    ps: int = 0
    """The number of ranks that are parameter servers in TF_CONFIG."""
    tag_output: bool = True
    output_dir: str | None = None
    rank_filter: str | None = None
    horovod: bool = False
    """Whether the command is a script of Horovod's, which finds distrun as `horovod`."""


@dataclass(frozen=True)
class LaunchContext:
    """The facts that a plan needs about the launching process and the moment."""

    environ: Mapping[str, str]
    cwd: str
    job: str
    key: str
    master_port: int
    cores: int
    slots: int
    """Slots of this machine when the user lists no hosts."""
    routes: Mapping[str, Route] = field(default_factory=dict)
    """The routes to the hosts that are not this machine."""
    address: str = "127.0.0.1"
    """This machine's address as the other hosts reach it."""


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

    def to_json(self) -> bytes:
        """Return the payload of a PLAN frame; bytes that are not UTF-8 (surrogates in Python) survive as escapes."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> AgentPlan:
        """Return the plan that `to_json` wrote."""
        values = json.loads(payload)
        return cls(**{**values, "ranks": [RankPlan(**rank) for rank in values["ranks"]]})


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
    """The ranks that never end by themselves: the job is over when all others are."""
    ps: int | None = None
    """The number of parameter servers in TF_CONFIG; None = the ranks get no TF_CONFIG."""
    launcher: str = "ssh"
    """The program that starts ranks on other hosts: ssh, srun or mpirun."""
    by_mpirun: str = ""
    """A description of the ranks that mpirun starts, empty without mpirun. The only rank of the plan is mpirun then."""

    @property
    def needs_host_info(self) -> bool:
        """Whether the ranks must be told what only their hosts know; see `endpoints.completed`."""
        return len(self.agents) > 1 or any(agent.remote or agent.ports for agent in self.agents)

    def host_of(self, rank: int) -> str:
        """Return the name of the host that a rank runs on."""
        return next(agent.host for agent in self.agents for item in agent.ranks if item.rank == rank)


def make_plan(request: LaunchRequest, context: LaunchContext, grace: float = 5.0) -> LaunchPlan:
    """Return the plan of the whole job.

    Raises:
        UsageError: the request cannot be met as it stands.
    """
    placed, notes = placed_ranks(request, context)
    size = sum(ranks for _, ranks in placed)
    if request.stdin is not None and request.stdin not in range(size):
        raise UsageError(f"--stdin {request.stdin} is not a rank of this job: allowed are none and 0 to {size - 1}")
    if request.ps and not request.tf_config:
        raise UsageError(f"--ps {request.ps} has no effect without --tf-config: give both, or neither")
    tf_config.check(size, request.ps)
    variables = common_variables(request, context)
    notes += variables.notes
    meeting = Meeting(master_address([(host.name, ranks) for host, ranks in placed], context), context.master_port)
    ranks = _rank_plans(placed, rank_variables(request, context, variables), request, meeting)
    agents = []
    for host, local_size in placed:
        part = replace(host_part(host, local_size, request, context, variables), grace=grace, ranks=ranks[host.name])
        agents.append(part)
        notes += thread_notes(part, local_size, context, variables)
    routes = {agent.host: context.routes[agent.host] for agent in agents if agent.remote}
    network = variables.network(request)
    servers = tf_config.servers(size, request.ps)
    ps = request.ps if request.tf_config else None
    return LaunchPlan(context.job, size, tuple(agents), routes, tuple(notes), network=network, servers=servers, ps=ps)


@dataclass(frozen=True)
class CommonVariables:
    """The variables that do not depend on host or rank."""

    inherited: dict[str, str]
    """The launcher's variables, with the settings that the user asks for."""
    exports: dict[str, str]
    """The variables of `-x`."""
    notes: list[str]

    def network(self, request: LaunchRequest) -> str:
        """Return the interfaces and subnets that ranks of different hosts may use; empty = all."""
        return request.network or self.exports.get(NETWORK) or self.inherited.get(NETWORK, "")


def common_variables(request: LaunchRequest, context: LaunchContext) -> CommonVariables:
    """Return the variables that do not depend on host or rank, and notes for the user."""
    inherited = {**inherited_variables(context.environ), **settings(request)}
    return CommonVariables(inherited, *requested_variables(request.exports, inherited))


def host_part(
    host: Host, ranks: int, request: LaunchRequest, context: LaunchContext, variables: CommonVariables
) -> AgentPlan:
    """Return the part of the plan that the ranks of a host share, without the ranks.

    Args:
        host: the host.
        ranks: the number of ranks that share its cores.
        request: the user's request.
        context: the facts.
        variables: `common_variables` of both.

    Raises:
        UsageError: the host has too few GPUs.
    """
    inherited, exports = variables.inherited, variables.exports
    remote = host.name in context.routes
    common = {
        **(forwarded_variables(inherited) if remote else inherited),
        **_gpus(host, ranks, request.share_gpus),
        **exports,
    }
    common |= {} if remote else horovod.search_path(common)
    chosen = {"OMP_NUM_THREADS": AUTO} if remote else thread_variables(common, context.cores, ranks)
    shared = {"PYTHONUNBUFFERED": "1", **chosen, **common}
    wdir = request.wdir or context.cwd
    ports = ranks if request.tf_config else 0
    part = AgentPlan(host.name, list(request.command), wdir, 0.0, shared, [], remote, ports)
    return replace(part, bind_to=request.bind_to)


def thread_notes(part: AgentPlan, ranks: int, context: LaunchContext, variables: CommonVariables) -> list[str]:
    """Return a note on the number of threads that the ranks of this machine get, if it was chosen for them."""
    name = "OMP_NUM_THREADS"
    if part.remote or name in variables.inherited or name in variables.exports:
        return []
    why = f"{count(context.cores, 'core')}, {count(ranks, 'rank')}"
    return [f"{name}={part.environ[name]} on {part.host} ({why}); set it to override"]


def placed_ranks(request: LaunchRequest, context: LaunchContext) -> tuple[list[tuple[Host, int]], list[str]]:
    """Return the hosts that get ranks, with the number of ranks of each, and notes for the user.

    A host that is listed without slots has one, be it this machine or another, so that the size of a job does not
    depend on where it is started.

    Raises:
        UsageError: the hosts have too few slots.
    """
    hosts = with_slots(request.hosts, request.slots, request.ranks_per_host, request.oversubscribe)
    default = 1 if request.hosts else context.slots
    bare = [host.name for host in hosts if host.slots is None]
    notes = []
    if bare and request.hosts and request.np is None:
        notes.append(f"1 slot on {', '.join(bare)}, as no number is given; NAME:SLOTS or --slots give more")
    by_node = request.map_by == "node"
    return place(hosts, request.np, default, oversubscribe=request.oversubscribe, by_node=by_node), notes


def _gpus(host: Host, ranks: int, share: bool) -> dict[str, str]:
    """Return the variables by which ranks find the GPUs that are listed for their host."""
    if host.gpus and ranks > len(host.gpus) and not share:
        raise UsageError(
            f"{ranks} ranks on {host.name} are more than its {count(len(host.gpus), 'GPU')} {','.join(host.gpus)}: "
            "list more, lower its slots, or give --share-gpus"
        )
    listed = {"CUDA_VISIBLE_DEVICES": ",".join(host.gpus)} if host.gpus else {}
    return {**listed, **({"DISTRUN_SHARE_GPUS": "1"} if share else {})}


def master_address(placed: list[tuple[str, int]], context: LaunchContext) -> str:
    """Return rank 0's address as the other hosts reach it; a job on one host needs no network."""
    first = placed[0][0]
    if len(placed) == 1:
        return "127.0.0.1"
    return context.routes[first].hostname if first in context.routes else context.address


def _rank_plans(
    placed: list[tuple[Host, int]], made: RankVariables, request: LaunchRequest, meeting: Meeting
) -> dict[str, list[RankPlan]]:
    """Return the plans of all ranks, by host and in rank order."""
    order = host_of_each_rank([ranks for _, ranks in placed], request.map_by == "node")
    slots = [0] * len(placed)
    places = []
    for node in order:
        places.append(Place(placed[node][0].name, slots[node]))
        slots[node] += 1
    plans: dict[str, list[RankPlan]] = {host.name: [] for host, _ in placed}
    for contract, node in zip(made.contracts(places, meeting), order, strict=True):
        plan = RankPlan(
            contract.rank,
            contract.local_rank,
            contract.local_size,
            contract.cross_rank,
            contract.cross_size,
            made.of(contract, node, len(placed)),
            contract.rank == request.stdin,
        )
        plans[contract.hostname].append(plan)
    return plans


def rank_variables(request: LaunchRequest, context: LaunchContext, variables: CommonVariables) -> RankVariables:
    """Return what makes the variables of ranks."""
    count = context.environ.get("SLURM_RESTART_COUNT", "")
    return RankVariables(
        context.job,
        context.key,
        frozenset(variables.exports),
        openmpi=request.openmpi_env,
        torchrun=request.torchrun_env,
        name=request.name,
        horovod=request.horovod,
        tf_config=request.tf_config,
        restarts=int(count) if count.isdecimal() else 0,
    )


def settings(request: LaunchRequest) -> dict[str, str]:
    """Return the variables of the settings that the user asks for."""
    times = {
        STALL_WARNING: request.stall_warning,
        STALL_TIMEOUT: request.stall_timeout,
        START_TIMEOUT: request.start_timeout,
        KEEPALIVE: request.keepalive,
    }
    chosen = {
        NETWORK: request.network,
        WIRE_DTYPE: request.wire_dtype,
        ENCRYPT: "1" if request.encrypt else None,
        horovod.MODE: "1" if request.horovod else None,
    }
    given = {name: value for name, value in chosen.items() if value}
    return {**given, **{name: f"{value:g}" for name, value in times.items() if value is not None}}


def describe(plan: LaunchPlan, inherited: Mapping[str, str]) -> str:
    """Return the plan as text, without secrets. Variables that are as in `inherited` are left out."""
    lines = [f"job {plan.job}: {plan.by_mpirun or spread(plan.size, len(plan.agents))}"]
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
    return "\n".join(lines)


def _assignments(variables: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    new = {name: value for name, value in variables.items() if known.get(name) != value}
    return [f"{name}={'(secret)' if name in _HIDDEN else repr(value)}" for name, value in new.items()]
