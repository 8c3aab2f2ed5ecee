"""Planning an elastic job: the parts of its hosts as they come and go, and the variables of each generation.

Without effects. `ElasticPlanner` keeps as state which hosts the job has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from distrun.contract.elastic.variables import SPARE
from distrun.errors import UsageError
from distrun.host.endpoints import PORTS, format_endpoint
from distrun.host.interfaces import matching
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.planning.endpoints import interface_defaults, master_endpoint_at, no_address
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.networks import Networks
from distrun.runner.planning.plan import AgentPlan, RankPlan
from distrun.runner.planning.planner import host_part
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.planning.variables import tf_config
from distrun.runner.planning.variables.job import common_variables, rank_variables
from distrun.runner.planning.variables.ranks import MasterEndpoint, RankLocation
from distrun.runner.protocol.handshake import HostError, HostInfo

_MASTER_PORTS = 8  # per host: each generation takes the next one, as the previous generation may still hold its own


@dataclass(frozen=True)
class World:
    """The environment variables of one generation."""

    environs: Sequence[dict[str, str]]
    """The variables of each rank."""
    defaults: Mapping[str, dict[str, str]]
    """The variables, by host, for ranks whose environment does not have them."""


class ElasticPlanner:
    """Makes the plans of one elastic job, as its hosts come and go."""

    def __init__(
        self,
        request: LaunchRequest,
        context: LaunchContext,
        options: ElasticOptions,
        free_port: Callable[[], int] | None = None,
    ) -> None:
        """
        Args:
            request: the user's request.
            context: the facts about the launching process.
            options: the limits of the elastic job.
            free_port: returns a port that is free on this machine now. None = take one that was free when this
                machine's agent started, as on other hosts.
        """
        self._free_port = free_port
        self._here = ""
        self._request = request
        self._context = context
        self._options = options
        self._common = common_variables(request, context)
        self._network = self._common.network(request)
        self._variables = replace(
            rank_variables(request, context, self._common), elastic=True, max_restarts=options.max_restarts
        )
        self._rooms: dict[str, int] = {}
        self._infos: dict[str, HostInfo] = {}
        self._machines: dict[str, str] = {}  # machine -> the name of its latest host

    def part(self, host: Host, route: Route | None) -> AgentPlan:
        """Return the part of the plan that the processes of `host` share. Without a route it is this machine.

        Raises:
            UsageError: it has too few GPUs.
        """
        room = min(host.slots or 1, self._options.max_np)
        self._rooms[host.name] = room
        routes = {} if route is None else {host.name: route}
        self._here = host.name if route is None else self._here
        part = host_part(host, room, self._request, replace(self._context, routes=routes), self._common)
        ports = part.ports + (_MASTER_PORTS - 1 if PORTS not in self._context.environ else 0)
        # These variables identify processes that are left behind, even of a spare, which has no launch contract yet.
        marks = {"DISTRUN_JOB": self._context.job, "DISTRUN_HOSTNAME": host.name}
        return replace(part, room=room, ports=ports, environ={**part.environ, **marks})

    def add(self, host: str, info: HostInfo, has_others: bool = True) -> None:
        """Add a host whose agent has answered with `info`.

        Args:
            host: its name.
            info: the agent's answer.
            has_others: whether the job has other hosts, so that this one needs an address that they can reach.

        Raises:
            HostError: the host cannot be used, at least for now.
        """
        others = {name: other for name, other in self._infos.items() if name != host}
        if (has_others or others) and (reason := no_address(info)):
            raise HostError(f"it {reason}")
        for name, other in others.items():
            if reason := no_address(other):
                raise HostError(f"host {name}, with whose ranks those of this host are to meet, {reason}")
        try:
            matching(info.addresses, self._network, "it")
        except UsageError as error:
            raise HostError(str(error)) from None
        twin = self._machines.setdefault(info.machine or host, host)
        if twin != host and twin in self._infos:
            raise HostError(f"it is the same machine as {twin}: list it once, with the slots of both")
        self._machines[info.machine or host] = host
        self._infos[host] = info

    def remove(self, host: str) -> None:
        """Remove a host whose agent is gone."""
        self._infos.pop(host, None)

    def world(self, places: Sequence[RankLocation], number: int) -> World:
        """Return the variables of all ranks of a generation.

        Args:
            places: the locations of its ranks, in rank order. All their hosts have been added.
            number: the generation's number.
        """
        hosts = list(dict.fromkeys(place.host for place in places))
        nodes = {host: node for node, host in enumerate(hosts)}
        first = self._infos[hosts[0]]
        reserved = self._rooms[hosts[0]] if self._request.tf_config else 0
        ports = (first.port, *first.ports[reserved:])
        port = self._free_port() if self._free_port and hosts[0] == self._here else ports[number % len(ports)]
        endpoint, defaults, addresses = self._master_endpoint(hosts, port, first)
        contracts = self._variables.contracts(places, endpoint, number)
        environs = [self._variables.of(contract, nodes[contract.hostname], len(hosts)) for contract in contracts]
        if self._request.tf_config:
            for environ, value in zip(environs, tf_config.values(self._endpoints(places, addresses)), strict=True):
                if "TF_CONFIG" in environ:  # the user has not set it
                    environ["TF_CONFIG"] = value
        return World(environs, defaults)

    def _master_endpoint(
        self, hosts: Sequence[str], port: int, first: HostInfo
    ) -> tuple[MasterEndpoint, dict[str, dict[str, str]], dict[str, str]]:
        """Return the master endpoint, with this port of the first host, and by host the defaults and the address."""
        if len(hosts) == 1:
            return MasterEndpoint("127.0.0.1", port), {}, {hosts[0]: "127.0.0.1"}
        networks = Networks({host: self._infos[host].addresses for host in hosts}, self._network)
        interfaces = {host: networks.of(host) for host in hosts}
        addresses = {host: found[0].address if found else host for host, found in interfaces.items()}
        defaults = {host: interface_defaults(host, networks, self._network) for host in hosts}
        return master_endpoint_at(first, interfaces[hosts[0]], port, hosts[0]), defaults, addresses

    def _endpoints(self, places: Sequence[RankLocation], addresses: Mapping[str, str]) -> list[str]:
        """Return the endpoint of each rank for TF_CONFIG: each slot of a host has a port of its own."""
        ports = {host: self._infos[host].ports for host in addresses}
        return [
            format_endpoint(addresses[place.host], ports[place.host][place.slot % self._rooms[place.host]])
            for place in places
        ]

    def process(self, number: int, place: RankLocation, environ: dict[str, str], defaults: dict[str, str]) -> RankPlan:
        """Return the plan of a process.

        Args:
            number: the number of the process.
            place: its location. The slot determines its CPUs.
            environ, defaults: its variables, as `world` returns them.
        """
        room = self._rooms[place.host]
        return RankPlan(number, place.slot % room, room, 0, 1, environ, defaults=defaults)

    def spare(self, number: int, defaults: dict[str, str]) -> RankPlan:
        """Return the plan of a spare: a process that waits until a generation needs one more rank."""
        return RankPlan(number, 0, 1, 0, 1, {SPARE: "1"}, is_spare=True, defaults=defaults)


def provisional(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a rank that joins a later generation, which gets the generation's number when that
    begins.
    """
    return {**environ, "DISTRUN_GENERATION": "0"}
