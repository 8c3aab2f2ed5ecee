"""Links: how arrays get from a rank to those of its lane on other hosts, and back.

Sending and receiving are posted and then waited for, so that both directions of all links are busy at once. Between two ranks
arrays arrive in the order in which they were sent, and both ends know what comes: there are no tags.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distrun.errors import BootstrapError
from distrun.host.interfaces import is_loopback
from distrun.runtime.rendezvous.across_hosts import Rendezvous
from distrun.runtime.rendezvous.dialer import call
from distrun.runtime.rendezvous.handshake import tune
from distrun.runtime.transport.connections import Stream
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.network import Network

Flat = NDArray[Any]

LOOK = 0.5
"""Seconds after which a rank that waits to be called sees whether the job has failed meanwhile."""


class Ticket(Protocol):
    """An array that is to come, or to leave."""

    @property
    def left(self) -> int:
        """0 when it has."""


class Links(ABC):
    """The links of one rank, by host."""

    @abstractmethod
    def send(self, host: int, array: Flat) -> Ticket:
        """Send a contiguous array; it must not change before the ticket is done, or `flush`, or an answer to it has come."""

    @abstractmethod
    def receive(self, host: int, into: Flat) -> Ticket:
        """Receive into a contiguous array."""

    @abstractmethod
    def wait(self, tickets: Sequence[Ticket], what: str) -> None:
        """Return when all are done; `what` names the operation for whoever has to be told that it waits.

        Raises:
            JobAbortedError: somebody is gone.
            StallError: the stall timeout is over.
        """

    @abstractmethod
    def flush(self, what: str) -> None:
        """Return when nothing that was sent is needed any more; raises as `wait` does."""

    def close(self) -> None:  # noqa: B027 - the network closes its own connections
        """Let go of what the links hold."""


class TcpLinks(Links):
    """A TCP connection per host."""

    def __init__(
        self, local_group: LocalGroup, network: Network, hosts: HostLayout, streams: dict[int, Stream]
    ) -> None:
        """`streams` by host."""
        self._local_group = local_group
        self._network = network
        self._hosts = hosts
        self._streams = streams

    def send(self, host: int, array: Flat) -> Ticket:
        return self._streams[host].send(array.view(np.uint8).data)

    def receive(self, host: int, into: Flat) -> Ticket:
        return self._streams[host].receive(into.view(np.uint8).data)

    def wait(self, tickets: Sequence[Ticket], what: str) -> None:
        for ticket in tickets:
            if ticket.left:
                break
        else:
            return

        def ready() -> bool:
            self._network.progress()
            return not any(ticket.left for ticket in tickets)

        self._local_group.wait(ready, lambda: self._waiting_for(what, self._late()))

    def flush(self, what: str) -> None:
        sending = [host for host, stream in self._streams.items() if stream.is_sending]
        if not sending:
            return

        def ready() -> bool:
            self._network.progress()
            return not any(self._streams[host].is_sending for host in sending)

        self._local_group.wait(ready, lambda: self._waiting_for(what, sending))

    def _late(self) -> list[int]:
        return [host for host, stream in self._streams.items() if stream.is_receiving or stream.is_sending]

    def _waiting_for(self, what: str, hosts: Iterable[int]) -> str:
        ranks = ", ".join(self._network.describe(self._hosts.peer(host)) for host in hosts)
        return f"{what}, which has begun and waits for {ranks or 'other hosts'}"


def connect(
    rendezvous: Rendezvous, hosts: HostLayout, network: Network, local_group: LocalGroup, deadline: float
) -> TcpLinks:
    """Connect with our lane: we call the hosts with lower numbers, and those with higher ones call us.

    A rank takes calls once it has made its own, and host 0 makes none, so nobody waits for ever.

    Args:
        gathering: who is where, and the reception at which we are called.
        hosts: which rank belongs to which lane.
        network: what the connections become part of.
        neighbourhood: for waiting.
        deadline: the monotonic time until which to try.

    Raises:
        BootstrapError: a rank of our lane cannot be reached, or has not called in time.
    """
    streams: dict[int, Stream] = {}
    if not hosts.has_rail:
        return TcpLinks(local_group, network, hosts, streams)
    ours = rendezvous.members[hosts.rank]
    for host in range(hosts.own):
        member = rendezvous.members[hosts.peer(host)]
        introduction = {"rank": hosts.rank, "purpose": "data"}
        try:
            source = None if is_loopback(ours.address) else ours.address
            connection = call([(member.address, member.port)], rendezvous.key, introduction, deadline, source)
        except BootstrapError as error:
            raise BootstrapError(
                f"rank {hosts.rank} on host {ours.hostname} ({ours.address}) cannot reach rank {member.rank} on host "
                f"{member.hostname}: {error}; if there is another network between them, name it with --network"
            ) from None
        streams[host] = _stream(network, member.rank, connection)
    _take_calls(rendezvous, hosts, network, streams, deadline)
    return TcpLinks(local_group, network, hosts, streams)


def _stream(network: Network, rank: int, connection: socket.socket) -> Stream:
    # A peer that is stopped, or computes for a minute, does not read and is alive: the kernel must not break off what has
    # waited for long. Whether its host is gone is seen on the control connections.
    tune(connection, timeout=0)
    return network.stream(rank, connection)


def _take_calls(
    rendezvous: Rendezvous, hosts: HostLayout, network: Network, streams: dict[int, Stream], deadline: float
) -> None:
    missing = {hosts.peer(host): host for host in range(hosts.own + 1, hosts.count)}
    while missing:
        call = rendezvous.listener.receive(max(0.001, min(LOOK, deadline - time.monotonic())))
        network.progress()
        if network.failure is not None:
            raise BootstrapError(f"the ranks of the hosts cannot connect with each other: {network.failure}")
        if call is not None:
            connection, introduction = call
            host = missing.pop(introduction.get("rank", -1), None)
            if host is None or introduction.get("purpose") != "data":
                connection.close()
            else:
                streams[host] = _stream(network, hosts.peer(host), connection)
            continue
        if time.monotonic() >= deadline:
            who = ", ".join(network.describe(rank) for rank in missing)
            strangers = rendezvous.listener.strangers()
            raise BootstrapError(
                f"rank {hosts.rank} waited in vain for a connection from {who}"
                f"{f' ({strangers})' if strangers else ''}: a firewall may be between them, or the wrong network was chosen "
                "(name another with --network)"
            )
