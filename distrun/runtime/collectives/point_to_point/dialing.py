"""Connects with other ranks: accepts their connections, and dials a rank when there is a first message for it.

Ranks of one host connect over abstract Unix sockets, named after the rendezvous.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from distrun.contract.elastic.interruption import pause
from distrun.errors import BootstrapError
from distrun.host import abstract_sockets
from distrun.host.abstract_sockets import Names
from distrun.host.connections.dialer import dial
from distrun.host.connections.listener import Listener, listen_at
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.host.interfaces import is_loopback
from distrun.runtime.collectives.point_to_point.peer import Peer
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.rendezvous.local_connections import LocalListener, connect_locally
from distrun.runtime.transport.rendezvous.protocol import Addresses
from distrun.runtime.transport.rendezvous.within_host import LocalRendezvous

_DIAL_INTERVAL = 12.0  # seconds: more than a handshake may take
_BUFFER = 1 << 21  # bytes in the socket's buffer, if the kernel allows it: the other side is woken less often
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05  # seconds between attempts: no event reports that a socket appears
Attach = Callable[[Peer, socket.socket], None]


class RankListeners:
    """Where this rank listens for other ranks, and where they listen.

    A rank accepts connections from its own host once it has sent or received a first message. It accepts connections
    from other hosts after `listen_to_hosts`, at a port that the ranks then exchange. It is
    the `Interruption` of its own attempts to connect.
    """

    interruption: str | None = None
    """Why dialing must end. None while it goes on."""

    def __init__(self, rank: int, local_group: LocalGroup) -> None:
        assert local_group.rendezvous is not None
        self._rank = rank
        self._rendezvous = local_group.rendezvous
        self._local_ranks = frozenset(local_group.ranks)
        self._addresses: Addresses | None = None if local_group.network is None else local_group.network.addresses
        self.stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
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
        return self._keep(_HostListener(self._rendezvous, self._rank)) if len(self._local_ranks) > 1 else None

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
        names, seconds = Names(_address(self._rendezvous, peer.rank)), _SHORTEST_PAUSE
        while peer.lost is None and self.interruption is None:
            connection = self._connect_here(names)
            if connection is not None:
                attach(peer, connection)
                return
            with suppress(BootstrapError):
                pause(seconds, self)
            seconds = min(_LONGEST_PAUSE, 1.5 * seconds)

    def _connect_here(self, names: Names) -> socket.socket | None:
        key, introduction = self._rendezvous.key or b"", {"rank": self._rank}
        for name in names.to_try():
            with suppress(OSError, BootstrapError):  # it does not listen yet, or another process does
                connection = connect_locally(name, key, introduction, time.monotonic() + _DIAL_INTERVAL, self)
                _enlarge_buffer(connection)
                return connection
        return None

    def _dial_there(self, peer: Peer, attach: Attach) -> None:
        addresses = self._addresses
        assert addresses is not None
        own, there = (
            addresses.members[self._rank].address,
            (addresses.members[peer.rank].address, self.ports[peer.rank]),
        )
        source = None if is_loopback(own) else own
        introduction = {"rank": self._rank, "purpose": "messages"}
        while peer.lost is None and self.interruption is None:
            until = time.monotonic() + _DIAL_INTERVAL
            stop_on, is_encrypted = (self.stop_fd,), addresses.is_encrypted
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

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening and dialing, and wait for the threads that dial."""
        self.interruption = "messages have ended"
        os.eventfd_write(self.stop_fd, 1)
        for listener in self._listeners:
            listener.close()
        for thread in self._threads:
            thread.join()
        os.close(self.stop_fd)

    def disown(self) -> None:
        """Close a forked child's copies."""
        for listener in self._listeners:
            listener.close()
        os.close(self.stop_fd)


class _HostListener(LocalListener):
    """Accepts connections from the ranks of this host."""

    def __init__(self, rendezvous: LocalRendezvous, rank: int) -> None:
        """Listen. Raises `BootstrapError` if another process of this user already listens at this address."""
        try:
            listener = abstract_sockets.listen(socket.SOCK_STREAM, _address(rendezvous, rank), 1024)
        except OSError as error:
            raise BootstrapError(f"rank {rank} cannot listen for messages of this host's ranks: {error}") from None
        super().__init__(listener, rendezvous.key or b"")

    def _prepare(self, connection: socket.socket) -> bytes:
        _enlarge_buffer(connection)
        return super()._prepare(connection)


def _enlarge_buffer(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)


def _address(rendezvous: LocalRendezvous, rank: int) -> bytes:
    return rendezvous.address(f"messages to {rank}")
