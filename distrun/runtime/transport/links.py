"""Links: arrays travel between the ranks of a rail, which are on different hosts.

Sending and receiving are posted and then waited for, so that both directions of all links are busy at once. Between
two ranks arrays arrive in the order in which they were sent, and both ends know what comes: there are no tags.
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
from distrun.host.connections.dialer import dial
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.host.interfaces import is_loopback
from distrun.runtime.rendezvous.protocol import Rendezvous
from distrun.runtime.transport.connections import Stream
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.network import Network

Flat = NDArray[Any]

CHECK_INTERVAL = 0.5
"""Seconds after which a rank that waits for connections checks whether the job has failed meanwhile."""


class Ticket(Protocol):
    """An array that is being sent or received."""

    @property
    def left(self) -> int:
        """The bytes or messages that are still to come or to leave; 0 when it is done."""


class Links(ABC):
    """The links of one rank with the ranks of its rail, by host."""

    @abstractmethod
    def send(self, host: int, array: Flat) -> Ticket:
        """Send a contiguous array.

        It must not change before the ticket is done, `flush` has returned, or an answer to it has come.
        """

    @abstractmethod
    def receive(self, host: int, into: Flat) -> Ticket:
        """Receive into a contiguous array."""

    @abstractmethod
    def wait(self, tickets: Sequence[Ticket], what: str) -> None:
        """Return when all are done; `what` names the operation in warnings and errors.

        Raises:
            JobAbortedError: a rank is gone.
            StallError: the stall timeout is over.
        """

    @abstractmethod
    def flush(self, what: str) -> None:
        """Return when nothing that was sent is needed any more; raises as `wait` does."""

    def close(self) -> None:  # noqa: B027 - the network closes its own connections
        """Release what the links hold."""


class TcpLinks(Links):
    """A TCP connection per host."""

    def __init__(
        self, local_group: LocalGroup, network: Network, layout: HostLayout, streams: dict[int, Stream]
    ) -> None:
        """`streams` are the connections by host."""
        self._local_group = local_group
        self._network = network
        self._layout = layout
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
        ranks = ", ".join(self._network.describe(self._layout.peer(host)) for host in hosts)
        return f"{what}, which has begun and waits for {ranks or 'other hosts'}"


def connect(
    rendezvous: Rendezvous, layout: HostLayout, network: Network, local_group: LocalGroup, deadline: float
) -> TcpLinks:
    """Connect with the ranks of our rail: those of hosts with lower numbers are dialed, the others dial us.

    A rank accepts connections once it has made its own, and host 0 makes none, so no rank waits for ever.

    Args:
        rendezvous: the members, and our listener.
        layout: which rank belongs to which rail.
        network: what the connections become part of.
        local_group: the ranks of this host, for waiting.
        deadline: the monotonic time until which to try.

    Raises:
        BootstrapError: a rank of our rail cannot be reached, or has not connected in time.
    """
    streams: dict[int, Stream] = {}
    if not layout.has_rail:
        return TcpLinks(local_group, network, layout, streams)
    ours = rendezvous.members[layout.rank]
    for host in range(layout.own):
        member = rendezvous.members[layout.peer(host)]
        introduction = {"rank": layout.rank, "purpose": "data"}
        try:
            source = None if is_loopback(ours.address) else ours.address
            endpoint = member.address, member.port
            peer = dial([endpoint], rendezvous.key, introduction, deadline, source)
        except BootstrapError as error:
            raise BootstrapError(
                f"rank {layout.rank} on host {ours.hostname} ({ours.address}) cannot reach rank {member.rank} on host "
                f"{member.hostname}: {error}; if there is another network between them, name it with --network"
            ) from None
        streams[host] = _stream(network, member.rank, peer.socket)
    _accept(rendezvous, layout, network, streams, deadline)
    return TcpLinks(local_group, network, layout, streams)


def _stream(network: Network, rank: int, connection: socket.socket) -> Stream:
    # A peer that is stopped, or computes for a minute, does not read and is alive: the kernel must not give up on what
    # has waited for long. Dead hosts are noticed on the alarm connections.
    set_tcp_options(connection, user_timeout=0)
    return network.stream(rank, connection)


def _accept(
    rendezvous: Rendezvous, layout: HostLayout, network: Network, streams: dict[int, Stream], deadline: float
) -> None:
    missing = {layout.peer(host): host for host in range(layout.own + 1, layout.count)}
    while missing:
        client = rendezvous.listener.receive(max(0.001, min(CHECK_INTERVAL, deadline - time.monotonic())))
        network.progress()
        if network.failure is not None:
            raise BootstrapError(f"the ranks of the hosts cannot connect with each other: {network.failure}")
        if client is not None:
            connection, introduction = client
            host = missing.pop(introduction.get("rank", -1), None)
            if host is None or introduction.get("purpose") != "data":
                connection.close()
            else:
                streams[host] = _stream(network, layout.peer(host), connection)
            continue
        if time.monotonic() >= deadline:
            who = ", ".join(network.describe(rank) for rank in missing)
            refused = rendezvous.listener.describe_refused()
            raise BootstrapError(
                f"rank {layout.rank} waited in vain for a connection from {who}"
                f"{f' ({refused})' if refused else ''}: a firewall may be between them, or the wrong network was "
                "chosen (name another with --network)"
            )
