"""Completing a plan with the endpoints of the rendezvous, when all hosts have answered. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from distrun.errors import UsageError
from distrun.host.endpoints import format_endpoint
from distrun.host.interfaces import Interface
from distrun.runner.planning.networks import Networks
from distrun.runner.planning.plan import AgentPlan, LaunchPlan, RankPlan
from distrun.runner.planning.variables import servers, tf_config
from distrun.runner.planning.variables.ranks import MasterEndpoint
from distrun.runner.protocol.handshake import HostInfo


def completed(plan: LaunchPlan, host_info: Callable[[str], HostInfo], met: bool = False) -> dict[str, AgentPlan]:
    """Return the parts of a plan by host, with the endpoints of the ranks' rendezvous.

    Only variables that a rank's plan has are changed, so a variable that the user exports keeps its value.

    Args:
        plan: the plan.
        host_info: returns the host info that a host's agent has answered with.
        met: whether each host has a launcher of its own. Each of these reports only interfaces that its `--network`
            allows, and several of them may run on one machine.

    Raises:
        UsageError: a host has no interface in the requested network, or two of the hosts are one machine.
    """
    first = plan.agents[0]
    infos = {part.host: host_info(part.host) for part in plan.agents}
    if plan.launcher == "ssh" and not met:  # Slurm knows its nodes
        _check_names(plan, infos)
    if len(plan.agents) == 1:
        found = _found(MasterEndpoint("127.0.0.1", infos[first.host].port)) if first.remote else {}
        found |= _servers(plan, infos, {first.host: ["127.0.0.1"]})
        return {first.host: _with(first, found, _tf_configs(plan, infos, {first.host: "127.0.0.1"}), {})}
    networks = Networks({host: said.addresses for host, said in infos.items()}, "" if met else plan.network)
    interfaces = {host: networks.of(host) for host in infos}
    addresses = {host: items[0].address for host, items in interfaces.items() if items}
    found = _found(master_endpoint_at(infos[first.host], interfaces[first.host], infos[first.host].port, first.host))
    found |= _servers(plan, infos, {host: [item.address for item in items] for host, items in interfaces.items()})
    configs = _tf_configs(plan, infos, addresses)
    return {
        part.host: _with(part, found, configs, interface_defaults(part.host, networks, plan.network))
        for part in plan.agents
    }


def master_endpoint_at(info: HostInfo, interfaces: Sequence[Interface], port: int, host: str) -> MasterEndpoint:
    """Return the endpoint where the ranks of several hosts meet, on rank 0's host with these interfaces, best first.

    Raises:
        UsageError: the host has no interface.
    """
    if not interfaces:
        raise UsageError(f"host {host!r}, where rank 0 is to run, {no_address(info)}")
    ends = [format_endpoint(item.address, info.rendezvous) for item in interfaces]
    return MasterEndpoint(interfaces[0].address, port, ",".join(ends))


def no_address(info: HostInfo) -> str:
    """Return the reason why other hosts cannot reach a host, as a predicate with the remedy, or "" if they can."""
    if info.addresses:
        return ""
    return "has no address that other hosts can reach, only loopback: see `ip address` there, or leave the host out"


def _check_names(plan: LaunchPlan, infos: Mapping[str, HostInfo]) -> None:
    """Refuse a host under two names: its ranks would get local ranks under each name, and two of them the same GPU."""
    known: dict[str, AgentPlan] = {}
    for part in plan.agents:
        first = known.setdefault(infos[part.host].machine or part.host, part)
        if first is not part:
            raise UsageError(
                f"hosts {first.host!r} and {part.host!r} are one machine, and their ranks would use the same GPUs: "
                f"list it once, as in {first.host}:{len(first.ranks) + len(part.ranks)}"
            )


def _found(endpoint: MasterEndpoint) -> dict[str, str]:
    """Return the variables that hold the endpoint of the rendezvous."""
    return {
        **dict.fromkeys(("MASTER_ADDR", "DISTRUN_MASTER_ADDR"), endpoint.master_addr),
        **dict.fromkeys(("MASTER_PORT", "DISTRUN_MASTER_PORT"), str(endpoint.master_port)),
        "JAX_COORDINATOR_ADDRESS": format_endpoint(endpoint.master_addr, endpoint.master_port),
        "DISTRUN_RENDEZVOUS": endpoint.rendezvous,
    }


def _tf_configs(plan: LaunchPlan, infos: Mapping[str, HostInfo], addresses: Mapping[str, str]) -> list[str]:
    """Return TF_CONFIG for each rank, if the plan has it. Hosts without an address are given by their names."""
    if plan.ps is None:
        return []
    places = {
        rank.rank: format_endpoint(addresses.get(part.host, part.host), port)
        for part in plan.agents
        for rank, port in zip(part.ranks, infos[part.host].ports, strict=True)
    }
    return tf_config.values([places[rank] for rank in range(plan.size)], plan.ps)


def _servers(plan: LaunchPlan, infos: Mapping[str, HostInfo], addresses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the variable with the endpoints of the parameter servers. Hosts without an address are given by their
    names.
    """
    places: dict[int, list[tuple[Sequence[str], int]]] = {}
    for part in plan.agents:
        for index, server in enumerate(part.servers):
            others = [other for other in plan.agents if other.takes_servers and other is not part]
            places[server.rank] = [
                (addresses.get(here.host) or [here.host], infos[here.host].servers[place])
                for here in (part, *others)
                for place in [server.rank - plan.size if here.takes_servers else index]
            ]
    return servers.found(places)


def interface_defaults(host: str, networks: Networks, network: str) -> dict[str, str]:
    """Return the variables that tell other frameworks the interface that leads to the other hosts.

    Without them, Gloo looks up the host's own name, which may be unknown or mean 127.0.1.1. NCCL chooses among the
    interfaces better than distrun would, so it gets a variable only if the user has chosen a network.
    """
    best = networks.of(host)
    names = list(dict.fromkeys(item.name for item in best))
    if not names or not (network or len(names) == 1 or networks.is_shared(best[0])):
        return {}
    chosen = {"GLOO_SOCKET_IFNAME": names[0]}
    return {**chosen, "NCCL_SOCKET_IFNAME": "=" + ",".join(names)} if network else chosen


def _with(part: AgentPlan, found: Mapping[str, str], configs: Sequence[str], defaults: dict[str, str]) -> AgentPlan:
    def informed(process: RankPlan) -> RankPlan:
        known = {**found, "TF_CONFIG": configs[process.rank]} if configs and not process.is_server else found
        return replace(process, environ={name: known.get(name, value) for name, value in process.environ.items()})

    return replace(
        part,
        ranks=[informed(rank) for rank in part.ranks],
        servers=[informed(server) for server in part.servers],
        defaults=defaults,
    )
