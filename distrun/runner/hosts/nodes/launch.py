"""One launcher per node: from the options of this node to its part of the plan of the whole job."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from distrun.host.endpoints import reserve_port
from distrun.host.interfaces import matching
from distrun.runner.hosts.nodes.messages import Assembly, Node
from distrun.runner.hosts.nodes.peers import Peers
from distrun.runner.hosts.nodes.rendezvous import Place, meet
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
    """A job that is about to begin on all of its nodes."""

    plan: LaunchPlan
    """The whole job; the part of our own host is complete."""
    peers: Peers
    reservation: socket.socket
    """Keeps the port of the runtime's rendezvous free, in case that rank 0 is here."""

    def close(self) -> None:
        """Part with the other nodes, and free the port."""
        self.peers.close()
        self.reservation.close()


def launch(
    request: LaunchRequest, grace: float, place: Place, ranks: int, number: int | None, say: Callable[[str], None]
) -> NodeLaunch:
    """Meet the other nodes and plan the job.

    Args:
        request: what is to run here; its hosts are those that come.
        grace: seconds from SIGTERM to SIGKILL.
        place: where the nodes meet.
        ranks: how many ranks this node has.
        number: the place among the nodes that is asked for; None = any.
        say: tells the user what is waited for, when that takes long.

    Raises:
        UsageError: the request cannot be met here.
        LaunchError: the nodes did not come together.
    """
    request = checked(request)
    # What can be found wrong here is found before others are met. Which ranks are ours shows later.
    here = replace(request, hosts=(Host("localhost", ranks),), nodes=place.size.most, stdin=None, tf_config=False, ps=0)
    alone = prepare(here, grace)
    reservation = reserve_port()
    try:
        part = alone.agents[0]
        info = describe_host(Greeting(0.0, part.wdir, ranks if request.tf_config else 0), reservation)
        name = socket.gethostname()
        info = replace(info, addresses=tuple(matching(info.addresses, alone.network, f"host {name!r}")))
        meeting = meet(place, Node(name, ranks, str(place.size), number, info), say)
    except BaseException:
        reservation.close()
        raise
    try:
        context = replace(launch_context({}), job=meeting.assembly.job, key=meeting.key)
        meeting.peers.keep_alive(chosen_settings(request).keepalive)
        plan = plan_of(meeting.assembly, request, context, grace)
        return NodeLaunch(replace(plan, warnings=alone.warnings), meeting.peers, reservation)
    except BaseException:
        meeting.peers.close()
        reservation.close()
        raise


def plan_of(assembly: Assembly, request: LaunchRequest, context: LaunchContext, grace: float) -> LaunchPlan:
    """Return the plan of a job, whose part for our own host is complete. Pure.

    Args:
        assembly: the nodes.
        request: what is to run here.
        context: the facts of this launcher, with the name and the key of the job.
        grace: seconds from SIGTERM to SIGKILL.
    """
    here = assembly.nodes[assembly.here].name
    infos = {node.name: node.info for node in assembly.nodes}
    hosts = tuple(Host(node.name, node.ranks) for node in assembly.nodes)
    routes = {name: Route(name, name) for name in infos if name != here}
    request = replace(request, hosts=hosts, np=None, ranks_per_host=None, oversubscribe=False, map_by="slot")
    plan = make_plan(request, replace(context, routes=routes), grace)
    parts = endpoints.completed(plan, infos.__getitem__, met=True)
    return replace(plan, agents=tuple(parts.values()), routes={})
