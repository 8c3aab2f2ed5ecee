"""Connections for tests of the transport: pairs of sockets, their ends, and the networks of three ranks."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator

from distrun.runtime.transport.channel import Channel
from distrun.runtime.transport.connections import ConnectionSet, Stream
from distrun.runtime.transport.network import Network
from distrun.runtime.transport.rendezvous.protocol import Member

DEADLINE = 60.0  # seconds
MEMBERS = [Member(rank, f"h{rank}", f"host{rank}", 100 + rank, "127.0.0.1", 1) for rank in range(3)]


class End:
    """One end of a connection, in a connection set of its own."""

    def __init__(self, kind: type[Channel | Stream], connection: socket.socket) -> None:
        self.connections = ConnectionSet()
        self.fd = self.connections.fd
        self.progress = self.connections.progress
        self.messages: list[bytes] = []
        self.reasons: list[str] = []
        if kind is Channel:
            self.it = Channel(self.connections, connection, self.messages.append, self.reasons.append)
        else:
            self.it = Stream(self.connections, connection, self.reasons.append)

    def sleep(self) -> None:
        """Wait until there is something to do."""
        assert select.select([self.fd], [], [], DEADLINE)[0], "nothing happened"


def pair_of_sockets() -> tuple[socket.socket, socket.socket]:
    """Connected over TCP, where the end of a connection looks different from that of a `socket.socketpair`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pair = socket.create_connection(server.getsockname()), server.accept()[0]
    for connection in pair:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return pair


def turn_until(condition: Callable[[], object], *ends: End | Network) -> None:
    """Let all ends make progress until something is true."""
    poll = select.poll()
    for end in ends:
        poll.register(end.fd, select.POLLIN)
    while not condition():
        assert poll.poll(DEADLINE * 1000), "nothing happens any more"
        for end in ends:
            end.progress()


def three_networks() -> Iterator[list[Network]]:
    """The networks of ranks 0, 1 and 2 of three hosts, connected as after the rendezvous; for a fixture."""
    pairs = {(rank, kind): pair_of_sockets() for rank in (1, 2) for kind in ("control", "alarm")}
    made = [
        Network(0, MEMBERS, *({rank: pairs[rank, kind][0] for rank in (1, 2)} for kind in ("control", "alarm"))),
        *(Network(r, MEMBERS, *({0: pairs[r, kind][1]} for kind in ("control", "alarm"))) for r in (1, 2)),
    ]
    yield made
    for each in made:
        each.close()
