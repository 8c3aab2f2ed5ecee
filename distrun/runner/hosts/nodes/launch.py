"""One launcher per host: from the options of this host to its part of the plan of the whole job."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from distrun.host.endpoints import reserve_port
from distrun.host.interfaces import matching
from distrun.runner.hosts.joining.messages import Member
from distrun.runner.hosts.nodes.messages import Assembly
from distrun.runner.hosts.nodes.peers import Peers
from distrun.runner.hosts.nodes.rendezvous import RendezvousOptions, job_key, rendezvous
from distrun.runner.planning import endpoints
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.planning.planner import make_plan
from distrun.runner.planning.prepare import checked, chosen_settings, launch_context, prepare
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.handshake import Greeting, describe_host


@dataclass(frozen=True)
class NodeLaunch:
    """A job that is about to begin on all of its hosts."""

    plan: LaunchPlan
    """The whole job. The part of this host is complete."""
    peers: Peers
    reservation: socket.socket
    """Keeps the port of the ranks' rendezvous free, in case that rank 0 is here."""

    def close(self) -> None:
        """Close the connections with the other launchers, and free the port."""
        self.peers.close()
        self.reservation.close()


def launch(
    request: LaunchRequest,
    grace: float,
    options: RendezvousOptions,
    ranks: int,
    index: int | None,
    notify_user: Callable[[str], None],
) -> NodeLaunch:
    """Meet the launchers of the other hosts, and plan the job.

    Args:
        request: what is to run here. Its hosts are the ones that come.
        grace: seconds from SIGTERM to SIGKILL.
        options: where the launchers meet.
        ranks: the number of ranks on this host.
        index: the number of this host among all. None = any.
        notify_user: shows a sentence to the user: what is waited for, when that takes long.

    Raises:
        UsageError: the request cannot be met here.
        LaunchError: the launchers did not come together.
    """
    request = checked(request)
    # What can be found wrong here is found before others are met. Which ranks run here is known later.
    hosts = (Host("localhost", ranks),)
    alone = prepare(replace(request, hosts=hosts, nodes=options.most, stdin=None, tf_config=False, ps=0), grace)
    reservation = reserve_port()
    try:
        part = alone.agents[0]
        info = describe_host(Greeting(0.0, part.wdir, ranks if request.tf_config else 0), reservation)
        name = socket.gethostname()
        info = replace(info, addresses=tuple(matching(info.addresses, alone.network, f"host {name!r}")))
        member = Member(index, options.most, name, ranks, part.wdir, least=options.least, info=info)
        assembly, peers = rendezvous(options, member, notify_user)
    except BaseException:
        reservation.close()
        raise
    try:
        context = replace(launch_context({}), job=assembly.job, key=job_key(options.endpoint, assembly))
        peers.set_keepalive(chosen_settings(request).keepalive)
        plan = plan_of(assembly, request, context, grace)
        return NodeLaunch(replace(plan, warnings=alone.warnings), peers, reservation)
    except BaseException:
        peers.close()
        reservation.close()
        raise


def plan_of(assembly: Assembly, request: LaunchRequest, context: LaunchContext, grace: float) -> LaunchPlan:
    """Return the plan of a job, whose part for this host is complete. `context` has the job's name and key. Pure."""
    here = assembly.nodes[assembly.here].name
    infos = {node.name: node.info for node in assembly.nodes if node.info is not None}  # all have it
    hosts = tuple(Host(node.name, node.ranks) for node in assembly.nodes)
    routes = {name: Route(name, name) for name in infos if name != here}
    request = replace(request, hosts=hosts, np=None, ranks_per_host=None, oversubscribe=False, map_by="slot")
    plan = make_plan(request, replace(context, routes=routes), grace)
    parts = endpoints.completed(plan, infos.__getitem__, met=True)
    return replace(plan, agents=tuple(parts.values()), routes={})
