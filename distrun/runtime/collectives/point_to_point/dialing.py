"""Connects with other ranks: accepts their connections, and dials a rank when there is a first message for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence

from distrun.errors import BootstrapError
from distrun.host.connections.dialer import dial
from distrun.host.connections.listener import Listener, listen_at
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.host.interfaces import is_loopback
from distrun.runtime.collectives.point_to_point import local_sockets
from distrun.runtime.collectives.point_to_point.local_sockets import LocalListener
from distrun.runtime.collectives.point_to_point.peer import Peer
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.rendezvous.protocol import Addresses

_DIAL_INTERVAL = 12.0  # seconds: more than a handshake may take
Attach = Callable[[Peer, socket.socket], None]


class RankListeners:
    """Where this rank listens for other ranks, and where they listen.

    A rank accepts connections from its own host once it has sent or received a first message. It accepts connections
    from other hosts after `listen_to_hosts`, at a port that the ranks then exchange.
    """

    def __init__(self, rank: int, local_group: LocalGroup, stop_fd: int) -> None:
        """
        Args:
            rank: this rank.
            local_group: the ranks of this host.
            stop_fd: readable when dialing must end.
        """
        assert local_group.rendezvous is not None
        self._rank = rank
        self._rendezvous = local_group.rendezvous
        self._local_ranks = frozenset(local_group.ranks)
        self._addresses: Addresses | None = None if local_group.network is None else local_group.network.addresses
        self._stop_fd = stop_fd
        self._threads: list[threading.Thread] = []
        self.ports: Sequence[int] = ()
        """The port where each rank listens for other hosts, by rank. Empty before the ranks have exchanged them."""
        self._listeners: list[Listener] = []

    # Listening --------------------------------------------------------------------------------------------------------

    def listen_to_hosts(self) -> Listener | None:
        """Listen for ranks on other hosts. Returns None if there are no other hosts."""
        addresses = self._addresses
        if addresses is None:
            return None
        try:
            sockets = listen_at(addresses.own)
        except OSError as error:
            raise BootstrapError(
                f"rank {self._rank} cannot listen at {', '.join(addresses.own)} for messages of other hosts: "
                f"{error.strerror or error}"
            ) from None
        return self._keep(Listener(sockets, addresses.key, is_encrypted=addresses.is_encrypted))

    def listen_to_host(self) -> Listener | None:
        """Listen for other ranks on this host. Returns None if there are none."""
        return self._keep(LocalListener(self._rendezvous, self._rank)) if len(self._local_ranks) > 1 else None

    def _keep(self, listener: Listener) -> Listener:
        self._listeners.append(listener)
        return listener

    def can_reach(self, rank: int) -> bool:
        """Whether it is known where a rank listens."""
        return rank in self._local_ranks or bool(self.ports)

    # Dialing ----------------------------------------------------------------------------------------------------------

    def dial(self, peer: Peer, attach: Attach) -> None:
        """Connect with a peer in a new thread, which calls `attach` with the connection."""
        peer.is_dialed = True
        make = self._dial_here if peer.rank in self._local_ranks else self._dial_there
        name = f"distrun dials rank {peer.rank}"
        thread = threading.Thread(target=make, args=(peer, attach), name=name, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _dial_here(self, peer: Peer, attach: Attach) -> None:
        pauses, names = local_sockets.Pauses(), local_sockets.names_of(self._rendezvous, peer.rank)
        while peer.lost is None and not self.is_stopped():
            connection = local_sockets.connect(self._rendezvous, names, self._rank, self._stop_fd, pauses)
            if connection is not None:
                attach(peer, connection)
                return

    def _dial_there(self, peer: Peer, attach: Attach) -> None:
        addresses = self._addresses
        assert addresses is not None
        own, there = (
            addresses.members[self._rank].address,
            (addresses.members[peer.rank].address, self.ports[peer.rank]),
        )
        source = None if is_loopback(own) else own
        introduction = {"rank": self._rank, "purpose": "messages"}
        while peer.lost is None and not self.is_stopped():
            until = time.monotonic() + _DIAL_INTERVAL
            stop_on, is_encrypted = (self._stop_fd,), addresses.is_encrypted
            try:
                connection = dial([there], addresses.key, introduction, until, source, stop_on, is_encrypted).socket
            except BootstrapError as error:
                peer.dial_problem = str(error)
                continue
            self.tune(connection)
            attach(peer, connection)
            return

    def tune(self, connection: socket.socket) -> None:
        """Set the options of a connection with another host."""
        if connection.family != socket.AF_UNIX and self._addresses is not None:
            # A peer that is stopped does not read but is alive. Dead hosts are noticed on the alarm connections.
            set_tcp_options(connection, self._addresses.keepalive, may_be_unread=True)

    def is_stopped(self) -> bool:
        """Whether dialing must end."""
        return local_sockets.is_readable(self._stop_fd)

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening, and wait for the threads that dial, which end as `stop_fd` is readable."""
        for listener in self._listeners:
            listener.close()
        for thread in self._threads:
            thread.join()

    def disown(self) -> None:
        """Close a forked child's copies."""
        for listener in self._listeners:
            listener.close()
