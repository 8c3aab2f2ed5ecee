"""Streams: plain sockets between two ranks, with nothing on top of them, as a measure of the network itself."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from dataclasses import dataclass

PORT = 29600
"""A port that is free, as all are on hosts made for a benchmark."""
LEAD = 300e-6
"""Seconds from the moment rank 0 says when to begin to that moment: more than a small message takes."""
DEADLINE = 30.0


@dataclass(frozen=True)
class Stream:
    """A connection of two ranks."""

    rank: int
    connection: socket.socket

    @classmethod
    def between(cls, rank: int, address: str) -> Stream:
        """Connect the two ranks; both call this, with rank 0's address."""
        if rank == 0:
            with socket.create_server((address, PORT)) as server:
                server.settimeout(DEADLINE)
                connection, _ = server.accept()
        else:
            connection = _call(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        return cls(rank, connection)

    def together(self) -> None:
        """Return on both ranks at the same moment of the clock that they share, because they are on one machine."""
        moment = bytearray(8)
        if self.rank == 0:
            self.exchange(memoryview(b""), memoryview(moment)[:1])
            nanoseconds = time.perf_counter_ns() + int(LEAD * 1e9)
            self.exchange(memoryview(nanoseconds.to_bytes(8, "little")), memoryview(b""))
        else:
            self.exchange(memoryview(b"x"), memoryview(b""))
            self.exchange(memoryview(b""), memoryview(moment))
            nanoseconds = int.from_bytes(moment, "little")
        while time.perf_counter_ns() < nanoseconds:
            pass

    def one_way(self, outgoing: memoryview, incoming: memoryview) -> None:
        """Send from rank 0 to rank 1."""
        self.exchange(*((outgoing, incoming[:0]) if self.rank == 0 else (outgoing[:0], incoming)))

    def exchange(self, outgoing: memoryview, incoming: memoryview) -> None:
        """Send and receive at once."""
        poll = select.poll()
        while outgoing or incoming:
            moved = False
            with contextlib.suppress(BlockingIOError):
                if outgoing:
                    outgoing = outgoing[self.connection.send(outgoing) :]
                    moved = True
            with contextlib.suppress(BlockingIOError):
                if incoming:
                    received = self.connection.recv_into(incoming)
                    if not received:
                        raise SystemExit("the other rank is gone")
                    incoming = incoming[received:]
                    moved = True
            if not moved:
                poll.register(self.connection, (select.POLLOUT if outgoing else 0) | (select.POLLIN if incoming else 0))
                poll.poll()


def _call(address: str) -> socket.socket:
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return socket.create_connection((address, PORT), DEADLINE)
        except ConnectionRefusedError:  # rank 0 is on its way
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
