"""Data connections: the TCP connections of a rank with ranks of other hosts that carry arrays.

There is one for each pair of ranks that share a rail. Process sets whose rails join the same two ranks share it,
because both ranks execute the operations of these sets in the same order.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from ipaddress import ip_interface

from distrun.contract.elastic.interruption import Interruption, await_readable, check, stop_descriptors
from distrun.errors import BootstrapError
from distrun.host.connections.dialer import dial
from distrun.host.connections.listener import Listener, listen_at
from distrun.host.interfaces import is_loopback
from distrun.runtime.transport.connections import Stream
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import LinkMaker, Links, Peers, TcpLinks
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.network import Network
from distrun.runtime.transport.rendezvous.protocol import DATA, Member, Rendezvous

CHECK_INTERVAL = 0.5
"""Seconds after which a rank that waits for connections checks whether the job has failed."""
DIAL_INTERVAL = 5.0
"""Seconds after which a rank that dials checks this: enough for a handshake over a slow network."""
MANY_HOSTS = 32
"""With more hosts than this, a rank does not connect with all of them at the start, only with those that it needs."""


class DataConnections(LinkMaker):
    """The data connections of one rank."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        layout: HostLayout,
        network: Network,
        local_group: LocalGroup,
        timeout: float,
        interruption: Interruption | None = None,
        early: dict[int, socket.socket] | None = None,
    ) -> None:
        """`network` takes over the connections. Peers have `timeout` seconds to connect, unless `interruption` ends the
        wait. `early` are connections that other ranks have already made with this one."""
        self._early = early or {}
        self._members = rendezvous.members
        self._key = rendezvous.key
        self._is_encrypted = rendezvous.is_encrypted
        self._addresses = [address for address, _ in rendezvous.listener.endpoints]
        self._ours = rendezvous.members[layout.rank]
        self._host_of = {rank: host for host, ranks in enumerate(layout.ranks) for rank in ranks}
        self._rank = layout.rank
        self._rail = layout.position
        self._network = network
        self._local_group = local_group
        self._timeout = timeout
        self._interruption = interruption
        self._streams: dict[int, Stream] = {}

    def make(
        self, local_ranks: LocalRanks, peers: Peers, first: Iterable[int], tell: Callable[[int], Sequence[int]]
    ) -> Links:
        self._complete(needed(peers, first), lambda port: dict(enumerate(tell(port))))
        return self.links(local_ranks, peers)

    def links(self, local_ranks: LocalRanks, peers: Peers) -> TcpLinks:
        """Return the links with `peers`, over connections that exist already or are made when they are needed."""
        connect = self._complete if len(peers) >= MANY_HOSTS else None
        return TcpLinks(local_ranks, self._network, peers, self._streams, connect)

    def _complete(self, peers: Sequence[int], tell: Callable[[int], Mapping[int, int]]) -> None:
        """Make the missing connections with `peers`. For `tell` see `links.Connect`."""
        missing = [rank for rank in peers if rank not in self._streams]
        is_dialed = any(not self._dials(rank) for rank in missing)
        with self._listening() if is_dialed else nullcontext() as listener:
            ports = tell(0 if listener is None else listener.endpoints[0][1])
            self.connect(missing, ports, listener, time.monotonic() + self._timeout)

    # Connecting -----------------------------------------------------------------------------------------------------

    def connect(
        self, peers: Iterable[int], ports: Mapping[int, int], listener: Listener | None, deadline: float
    ) -> None:
        """Connect with `peers`: this rank dials those on hosts with lower numbers, and the others dial this rank.

        A rank first dials, then accepts connections. Ranks of host 0 do not dial, so there is no deadlock.

        Args:
            peers: ranks of other hosts, which call this as well.
            ports: the port that each rank listens on, if other ranks dial it.
            listener: this rank's listener, or None if no rank dials it.
            deadline: the monotonic time when to stop trying.

        Raises:
            BootstrapError: a peer cannot be reached, has not connected in time, or the job has failed in the meantime.
        """
        dialed = sorted(rank for rank in peers if self._dials(rank))
        for rank in dialed:
            self._take(rank, self._dial(rank, ports[rank], deadline))
        missing = {rank for rank in peers if not self._dials(rank)}
        if missing:
            assert listener is not None
            self._accept(missing, listener, deadline)

    def _dials(self, rank: int) -> bool:
        return self._host_of[rank] < self._host_of[self._rank]

    def _dial(self, rank: int, port: int, deadline: float) -> socket.socket:
        ours, member = self._ours, self._members[rank]
        own, address = way(ours, member, self._rail)
        source = None if is_loopback(own) else own
        introduction = {"rank": self._rank, "purpose": DATA}
        while True:
            until = min(deadline, time.monotonic() + DIAL_INTERVAL)
            try:
                stop_on = stop_descriptors(self._interruption)
                there = [(address, port)]
                return dial(there, self._key, introduction, until, source, stop_on, self._is_encrypted).socket
            except BootstrapError as error:
                self._check()
                if time.monotonic() >= deadline:
                    raise BootstrapError(
                        f"rank {self._rank} on host {ours.hostname} ({own}) cannot reach rank {rank} on host "
                        f"{member.hostname}: {error}; if there is another network between them, name it with --network"
                    ) from None

    def _accept(self, missing: set[int], listener: Listener, deadline: float) -> None:
        for rank in [rank for rank in self._early if rank in missing]:
            missing.remove(rank)
            self._take(rank, self._early.pop(rank))
        while missing:
            with suppress(TimeoutError):
                await_readable(listener, min(deadline, time.monotonic() + CHECK_INTERVAL), self._interruption)
            client = listener.receive(0)
            self._check()
            if client is not None:
                connection, introduction = client
                rank = introduction.get("rank", -1)
                if rank not in missing or introduction.get("purpose") != DATA:
                    connection.close()
                else:
                    missing.remove(rank)
                    self._take(rank, connection)
            elif time.monotonic() >= deadline:
                who = ", ".join(self._network.describe(rank) for rank in sorted(missing))
                refused = listener.describe_refused()
                raise BootstrapError(
                    f"rank {self._rank} waited in vain for a connection from {who}"
                    f"{f' ({refused})' if refused else ''}: a firewall may be between them, or the wrong network was "
                    "chosen (name another with --network)"
                )

    def _check(self) -> None:
        """Raise BootstrapError if the job has failed or is interrupted, so that peers may never connect."""
        check(self._interruption)
        self._network.progress()
        reason = self._local_group.lost_rank() or self._local_group.stop_reason
        if reason is not None:
            raise BootstrapError(f"the ranks of the hosts cannot connect with each other: {reason}")

    def _take(self, rank: int, connection: socket.socket) -> None:
        self._streams[rank] = self._network.stream(rank, connection)

    # Listening ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _listening(self) -> Iterator[Listener]:
        """Listen at the addresses that this rank used in the rendezvous, all with the same port."""
        try:
            sockets = listen_at(self._addresses)
        except OSError as error:
            raise BootstrapError(
                f"rank {self._rank} cannot listen at {', '.join(self._addresses)} for ranks of other hosts: "
                f"{error.strerror or error}"
            ) from None
        listener = Listener(sockets, self._key, is_encrypted=self._is_encrypted)
        try:
            yield listener
        finally:
            listener.close()


def way(ours: Member, theirs: Member, rail: int) -> tuple[str, str]:
    """Return the addresses, `ours` first, that two ranks of a rail connect. Rails are spread over the hosts' common
    networks."""
    ways = [(ours.address, theirs.address)]
    for own in map(ip_interface, filter(None, ours.further.split(","))):
        for other in map(ip_interface, filter(None, theirs.further.split(","))):
            if own.network == other.network:
                ways.append((str(own.ip), str(other.ip)))
    return ways[rail % len(ways)]


def needed(peers: Peers, first: Iterable[int]) -> list[int]:
    """Return the ranks to connect with at the start: all `peers`, or, if they are many, the peers on the hosts
    `first`."""
    return list(peers.values()) if len(peers) < MANY_HOSTS else [peers[host] for host in first]
