"""Makes the launch plan of ranks that distrun starts itself from a request and the facts. Pure."""

from __future__ import annotations

from dataclasses import replace

from distrun.errors import UsageError
from distrun.host.ranks import count
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.placement import host_of_each_rank, place, with_slots
from distrun.runner.planning.plan import AgentPlan, LaunchPlan, RankPlan
from distrun.runner.planning.request import GRACE, LaunchContext, LaunchRequest
from distrun.runner.planning.variables import servers, tf_config
from distrun.runner.planning.variables.job import CommonVariables, common_variables, host_variables, rank_variables
from distrun.runner.planning.variables.ranks import MasterEndpoint, RankLocation, RankVariables


def make_plan(request: LaunchRequest, context: LaunchContext, grace: float = GRACE) -> LaunchPlan:
    """Return the plan of the whole job.

    Raises:
        UsageError: the request cannot be met.
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
    endpoint = MasterEndpoint(
        master_address([(host.name, ranks) for host, ranks in placed], context), context.master_port
    )
    made = rank_variables(request, context, variables)
    ranks = _rank_plans(placed, made, servers.of_rank(request, context), request, endpoint)
    own_servers = _server_plans([host.name for host, _ in placed], request, context, size)
    agents = []
    for host, local_size in placed:
        part = host_part(host, local_size, request, context, variables)
        agents.append(replace(part, ranks=ranks[host.name]))
        notes += thread_notes(part, local_size, context, variables)
    for host in request.server_hosts:
        if host.name not in ranks:
            agents.append(replace(host_part(host, 1, request, context, variables), ports=0))
    refuges = servers.refuges({part.host: len(part.ranks) for part in agents}) if request.server_copies else frozenset()
    agents = [_with_servers(replace(part, grace=grace), own_servers, request, refuges) for part in agents]
    routes = {agent.host: context.routes[agent.host] for agent in agents if agent.remote}
    network = variables.network(request)
    return LaunchPlan(
        context.job,
        size,
        tuple(agents),
        routes,
        tuple(notes),
        network=network,
        servers=tf_config.servers(size, request.ps) | frozenset(range(size, size + request.servers)),
        server_restarts=request.server_restarts,
        server_copies=servers.copies_of(request, context).partition(":")[2],
        ps=request.ps if request.tf_config else None,
    )


def placed_ranks(request: LaunchRequest, context: LaunchContext) -> tuple[list[tuple[Host, int]], list[str]]:
    """Return the hosts that get ranks, with the number of ranks of each, and notes for the user.

    A host that is listed without slots has one, even if it is this machine, so that the size of a job does not depend
    on where it is started.

    Raises:
        UsageError: the hosts have too few slots.
    """
    hosts = with_slots(request.hosts, request.slots, request.ranks_per_host, request.oversubscribe)
    default = 1 if request.hosts else context.slots
    bare = [host.name for host in hosts if host.slots is None and host.times == 1]
    notes = []
    if bare and request.hosts and request.np is None:
        notes.append(f"1 slot on {', '.join(bare)}, as no number is given; NAME:SLOTS or --slots give more")
    by_node = request.map_by == "node"
    cores = None if request.hosts else context.cores
    return place(hosts, request.np, default, oversubscribe=request.oversubscribe, by_node=by_node, cores=cores), notes


def master_address(placed: list[tuple[str, int]], context: LaunchContext) -> str:
    """Return rank 0's address as the other hosts reach it. A job on one host needs no network."""
    first = placed[0][0]
    if len(placed) == 1:
        return "127.0.0.1"
    return context.routes[first].hostname if first in context.routes else context.address


def host_part(
    host: Host, ranks: int, request: LaunchRequest, context: LaunchContext, variables: CommonVariables
) -> AgentPlan:
    """Return the part of the plan that the ranks of a host, which share its cores, have in common, without the ranks.

    Raises:
        UsageError: the host has too few GPUs.
    """
    return AgentPlan(
        host=host.name,
        command=list(request.command),
        wdir=request.wdir or context.cwd,
        grace=0.0,
        environ=host_variables(host, ranks, request, context, variables),
        ranks=[],
        remote=host.name in context.routes,
        ports=ranks if request.tf_config else 0,
        bind_to=request.bind_to,
    )


def thread_notes(part: AgentPlan, ranks: int, context: LaunchContext, variables: CommonVariables) -> list[str]:
    """Return a note on the number of threads that the ranks of this machine get, if distrun chose it."""
    name = "OMP_NUM_THREADS"
    if part.remote or name in variables.inherited or name in variables.exports:
        return []
    why = f"{count(context.cores, 'core')}, {count(ranks, 'rank')}"
    return [f"{name}={part.environ[name]} on {part.host} ({why}); set it to override"]


def _rank_plans(
    placed: list[tuple[Host, int]],
    made: RankVariables,
    servers_of_all: dict[str, str],
    request: LaunchRequest,
    endpoint: MasterEndpoint,
) -> dict[str, list[RankPlan]]:
    """Return the plans of all ranks, by host and in rank order."""
    order = list(host_of_each_rank([ranks for _, ranks in placed], request.map_by == "node"))
    slots = [0] * len(placed)
    places = []
    for node in order:
        places.append(RankLocation(placed[node][0].name, slots[node]))
        slots[node] += 1
    plans: dict[str, list[RankPlan]] = {host.name: [] for host, _ in placed}
    for contract, node in zip(made.contracts(places, endpoint), order, strict=True):
        plan = RankPlan(
            contract.rank,
            contract.local_rank,
            contract.local_size,
            contract.cross_rank,
            contract.cross_size,
            made.of(contract, node, len(placed)) | servers_of_all,
            contract.rank == request.stdin,
        )
        plans[contract.hostname].append(plan)
    return plans


def _server_plans(
    hosts: list[str], request: LaunchRequest, context: LaunchContext, size: int
) -> dict[str, list[RankPlan]]:
    """Return the plans of the parameter servers by host. Hosts take turns, and their numbers come after the ranks'."""
    plans: dict[str, list[RankPlan]] = {}
    chosen = [host.name for host in request.server_hosts] or hosts
    for number in range(request.servers):
        host = chosen[number % len(chosen)]
        own = plans.setdefault(host, [])
        environ = servers.of_server(request, context, number, host)
        own.append(RankPlan(size + number, len(own), 0, 0, 0, environ, is_server=True))
    return plans


def _with_servers(
    part: AgentPlan, plans: dict[str, list[RankPlan]], request: LaunchRequest, refuges: frozenset[str]
) -> AgentPlan:
    own = plans.get(part.host, [])
    takes_servers = part.host in refuges
    ports = request.servers if takes_servers else len(own)
    is_outlived = bool(request.server_copies) and not part.ranks
    return replace(part, servers=own, server_ports=ports, takes_servers=takes_servers, is_outlived=is_outlived)
