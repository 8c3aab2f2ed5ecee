"""The rendezvous across hosts: the ranks of a job find each other at rank 0, which everybody knows from the
environment."""

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
    """Meet the ranks of all hosts.

    Args:
        rank: the number of this rank.
        size: the number of ranks.
        host: identifies this rank's host.
        hostname: the host's name for people.
        endpoint: where rank 0 is.
        agreed: numbers of which rank 0's hold for everybody.
        timeout: seconds to wait for the slowest rank.
        network: interfaces and subnets that may be used (see `host.interfaces.matching`); empty allows all.
        interruption: what ends the wait before.
        silence: seconds after which a rank that does not answer counts as gone; 0: never.
        at_host: the meeting of this host's ranks, one of which connects with rank 0 for all; None: this rank connects
            with rank 0 itself. Ranks may differ in this, even on one host.

    Raises:
        BootstrapError: a rank did not come in time or was not who it should be, or the wait was interrupted. No
            descriptor is left open then.
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
