"""Connecting ranks on several hosts: the rendezvous at rank 0, the ranks of each host, then the links of each rail."""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from distrun.contract.settings import ALGORITHMS, WIRE_DTYPES
from distrun.errors import BootstrapError
from distrun.runtime.backends.group_factories import AcrossHostsFactory
from distrun.runtime.backends.groups import Groups
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.backends.rail import first_partners
from distrun.runtime.transport.control.control_tree import MOST_CONNECTIONS, control_tree
from distrun.runtime.transport.control.tree_connections import connect_tree
from distrun.runtime.transport.data_connections import DataConnections, needed
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import LinkMaker, Links
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.mpi import rendezvous as mpi_rendezvous
from distrun.runtime.transport.network import Network
from distrun.runtime.transport.rendezvous.across_hosts import rendezvous_across_hosts
from distrun.runtime.transport.rendezvous.protocol import Rendezvous, RendezvousEndpoint
from distrun.runtime.world.bootstrap.facts import AnyEngine, Facts, RendezvousRound, withdraw

_WIRE_DTYPES = ("", *WIRE_DTYPES)  # rank 0 sends the index in this tuple


def connect_across_hosts(facts: Facts) -> tuple[AnyEngine, tuple[int, int]]:
    """Connect with ranks on several hosts. Returns the engine, and this rank's cross rank and cross size."""
    rendezvous = _rendezvous(facts)
    mpi_rendezvous.release()
    deadline = time.monotonic() + facts.settings.start_timeout
    with ExitStack() as undo:
        undo.callback(rendezvous.close)
        layout = HostLayout.of([member.host for member in rendezvous.members], facts.topology.rank)
        _check(facts, layout)
        keepalive = facts.settings.keepalive
        agreed = rendezvous.agreed
        tree = control_tree(layout.ranks, layout.rank, agreed["fan_out"], rendezvous.is_relayed)
        early = {} if tree is None else connect_tree(rendezvous, tree, deadline, facts.interruption)
        network = Network(layout.rank, rendezvous.members, rendezvous.control, rendezvous.alarms, keepalive)
        undo.callback(network.close)
        network.addresses = rendezvous.addresses(keepalive)
        local_group = facts.join_local_group(layout.position, layout.local_ranks, network)
        undo.push(partial(withdraw, local_group))
        links, link_maker = _links(facts, rendezvous, layout, network, local_group, deadline, early)
        rendezvous.listener.close()
        wire = _WIRE_DTYPES[agreed["wire_dtype"]]
        algorithm = ALGORITHMS[agreed["algorithm"]]
        backend = HierarchicalBackend(local_group, layout, links, wire, algorithm)
        groups = Groups(backend, AcrossHostsFactory(local_group, layout, backend, link_maker, wire, algorithm))
        may_offer = bool(agreed["may_offer"])
        engine = facts.start_engine(local_group, groups, agreed["fusion_threshold"], may_offer, tree)
        undo.pop_all()
    return engine, layout.cross()


def _rendezvous(facts: Facts) -> Rendezvous:
    topology, settings = facts.topology, facts.settings
    return rendezvous_across_hosts(
        topology.rank,
        topology.size,
        f"{facts.environment.job_name()} {socket.gethostname()}",
        topology.hostname,
        _endpoint(facts),
        _agreed(facts),
        settings.start_timeout,
        settings.network,
        facts.ends_rendezvous,
        settings.keepalive,
        facts.local_rendezvous() if _is_large(facts) else None,
    )


def _is_large(facts: Facts) -> bool:
    """Whether the ranks of this host should connect with rank 0 through one of them, as there will be a control tree.

    Other hosts may decide otherwise, as they may have another number of ranks. But if any host's ranks connect through
    one of them, there is a control tree: rank 0 tells all ranks.
    """
    size, local_size = facts.topology.size, facts.topology.local_size
    return local_size > 1 and (facts.settings.fan_out > 0 or size - local_size > MOST_CONNECTIONS)


def _agreed(facts: Facts) -> dict[str, int]:
    """Return the settings that hold for all ranks if this is rank 0.

    Environment variables may not reach every host, and ranks with different values of these would not match.
    """
    return {
        "fusion_threshold": facts.settings.fusion_threshold,
        "wire_dtype": _WIRE_DTYPES.index(facts.settings.wire_dtype),
        "algorithm": ALGORITHMS.index(facts.settings.algorithm),
        "mpi": int(_prefers_mpi(facts)),
        "may_offer": int(not facts.settings.stall_timeout),
        "fan_out": facts.settings.fan_out,
    }


def _prefers_mpi(facts: Facts) -> bool:
    facts.settings.check_backend(hosts=2)
    choice = facts.settings.backend
    return choice == "mpi" or (choice == "auto" and facts.environment.is_mpi and not facts.settings.encrypt)


def _endpoint(facts: Facts) -> RendezvousEndpoint:
    endpoint = facts.environment.endpoint()
    if endpoint is None:
        topology, settings = facts.topology, facts.settings
        endpoint = mpi_rendezvous.find(topology.rank, topology.size, settings.network, settings.start_timeout)
    return replace(endpoint_of_round(endpoint, facts.rendezvous_round), is_encrypted=facts.settings.encrypt)


def endpoint_of_round(endpoint: RendezvousEndpoint, rendezvous_round: RendezvousRound) -> RendezvousEndpoint:
    """Return the endpoint with keys that are valid for one round only.

    A rank that is a generation ahead or behind is refused like any process without the key.
    """

    def derived(key: bytes) -> bytes:
        return hmac.digest(key, f"generation {rendezvous_round}".encode(), "sha256")

    def greet(make: Callable[[], tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        greeting, key = make()
        return greeting, derived(key)

    def find(opener: Callable[[bytes], bytes], greeting: bytes) -> bytes:
        return derived(opener(greeting))

    return replace(
        endpoint,
        key=endpoint.key and derived(endpoint.key),
        greeting=endpoint.greeting and partial(greet, endpoint.greeting),
        opener=endpoint.opener and partial(find, endpoint.opener),
    )


def _check(facts: Facts, layout: HostLayout) -> None:
    if len(layout.local_ranks) != facts.topology.local_size:
        raise BootstrapError(
            f"rank {layout.rank} was told that its host has {facts.topology.local_size} ranks, but "
            f"{len(layout.local_ranks)} call it theirs ({facts.topology.hostname}): give each host of the job its "
            "own name"
        )


def _links(
    facts: Facts,
    rendezvous: Rendezvous,
    layout: HostLayout,
    network: Network,
    local_group: LocalGroup,
    deadline: float,
    early: dict[int, socket.socket],
) -> tuple[Links, LinkMaker]:
    """Return the links of the whole job, and the maker of links for sets of ranks."""
    if rendezvous.agreed["mpi"]:  # rank 0's choice: a launcher may not have passed the variable on to all hosts
        from distrun.runtime.transport.mpi.links import MpiLinkMaker

        mpi = MpiLinkMaker(local_group, network, layout.rank, len(rendezvous.members))
        return mpi.links(layout.peers), mpi
    if facts.environment.is_mpi:  # MPI_Finalize would wait for a rank that is gone or cannot be reached
        from distrun.runtime.transport.mpi.requests import abort_at_exit

        network.on_failure = abort_at_exit
    timeout = facts.settings.start_timeout
    connections = DataConnections(rendezvous, layout, network, local_group, timeout, facts.interruption, early)
    ports = {member.rank: member.port for member in rendezvous.members}
    connections.connect(needed(layout.peers, first_partners(layout)), ports, rendezvous.listener, deadline)
    return connections.links(local_group, layout.peers), connections
