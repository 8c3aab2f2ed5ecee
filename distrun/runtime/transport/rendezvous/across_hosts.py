"""The rendezvous across hosts: the ranks of a job find each other at rank 0, whose endpoint is in the environment."""

from __future__ import annotations

import os
from functools import partial

from distrun.contract.elastic.interruption import Interruption
from distrun.host.connections.tcp_options import DEAD_HOST_TIMEOUT
from distrun.host.interfaces import further_networks, matching, own_interfaces
from distrun.runtime.transport.rendezvous.at_host import HostClient
from distrun.runtime.transport.rendezvous.client import Client
from distrun.runtime.transport.rendezvous.protocol import Member, Rendezvous, RendezvousEndpoint
from distrun.runtime.transport.rendezvous.server import Server
from distrun.runtime.transport.rendezvous.within_host import LocalRendezvous


def rendezvous_across_hosts(
    rank: int,
    size: int,
    host: str,
    hostname: str,
    endpoint: RendezvousEndpoint,
    agreed: dict[str, int],
    timeout: float,
    network: str = "",
    interruption: Interruption | None = None,
    keepalive: float = DEAD_HOST_TIMEOUT,
    at_host: LocalRendezvous | None = None,
) -> Rendezvous:
    """Return the rendezvous of this rank with the ranks of all hosts.

    Args:
        rank: the number of this rank.
        size: the number of ranks.
        host: identifies this rank's host.
        hostname: the host's name in messages to users.
        endpoint: the endpoint of rank 0.
        agreed: numbers by name. Rank 0's hold for all ranks.
        timeout: seconds to wait for the slowest rank.
        network: interfaces and subnets that may be used (see `host.interfaces.matching`). "" allows all.
        interruption: may end the wait earlier.
        keepalive: seconds after which a rank that does not answer counts as gone. 0 for never.
        at_host: the rendezvous of this host's ranks, if one of them connects with rank 0 for all. None if this rank
            connects with rank 0 itself. Ranks may differ in this, even on one host.

    Raises:
        BootstrapError: a rank did not connect in time or is not a valid member of the job, or the wait was interrupted.
            In this case no descriptor is left open.
        UsageError: `network` allows no interface of this machine.
    """
    interfaces = matching(own_interfaces(), network, f"host {hostname!r}") if network else []
    allowed = [interface.address for interface in interfaces] if network else None
    mine = Member(rank, host, hostname, os.getpid(), "", 0)
    if rank == 0:
        return Server(size, mine, endpoint, timeout, interruption, keepalive).run(agreed, allowed)
    further = partial(further_networks, interfaces, network)
    if at_host is not None:
        return HostClient(size, mine, endpoint, timeout, interruption, keepalive).run_at(at_host, allowed, further)
    return Client(size, mine, endpoint, timeout, interruption, keepalive).run(allowed, further)
