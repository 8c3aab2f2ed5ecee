"""Sending and receiving for a while: how much goes through, and which share of the packets is lost."""

from __future__ import annotations

import socket
import statistics
import struct
import time
from contextlib import suppress
from dataclasses import dataclass

from distrun.host.connections.tcp_info import SentPackets

IDLE_TIMEOUT = 3.0
"""Seconds without a byte after which nothing more will come; what is lost is sent again four times in them."""
_PINGING = 0.05  # seconds of round trips, or as long as `_MIN_PINGS` take
_MIN_PINGS = 3
_WARMING = 0.05  # seconds of data that do not count: buffers and the congestion window fill
_MEASURING = 0.25
_PACED = 1.0  # seconds at a steady pace
_MAX_SENDING = 4.0  # seconds for which data is sent in the worst case
_BLOCK = 1 << 18
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing throws away what is in flight
_MAX_PACING_RATE = 47  # SO_MAX_PACING_RATE, which Python does not name


@dataclass(frozen=True)
class Traffic:
    """The load that one direction of a connection carried."""

    rate: float | None
    """Bytes per second; None when nothing arrived."""
    sent: int
    """Packets."""
    lost: int
    """The packets that had to be sent again."""

    @property
    def loss(self) -> float:
        """The share of packets that were lost."""
        return self.lost / self.sent if self.sent else 0.0


def ping(peer: socket.socket) -> float | None:
    """Return the median round trip of one byte, in seconds."""
    times: list[float] = []
    start = time.perf_counter()
    with suppress(OSError):
        while len(times) < _MIN_PINGS or time.perf_counter() - start < _PINGING:
            before = time.perf_counter()
            peer.sendall(b".")
            if not peer.recv(1):
                break
            times.append(time.perf_counter() - before)
    return statistics.median(times) if times else None


def pump(peer: socket.socket, pace: int) -> SentPackets:
    """Send until the receiver has had enough; return what became of the packets.

    Args:
        peer: a connection, which is to be closed afterwards.
        pace: bytes per second; 0: as fast as it goes.
    """
    if pace:
        peer.setsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, pace)
    before = SentPackets.of(peer)
    block = bytes(_BLOCK if not pace else max(1, min(_BLOCK, pace // 100)))
    deadline = time.monotonic() + _MAX_SENDING
    with suppress(OSError):
        while time.monotonic() < deadline:
            peer.sendall(block)
    after = SentPackets.of(peer)
    reset_on_close(peer)
    return SentPackets(after.sent - before.sent, after.lost - before.lost)


def drain(peer: socket.socket, is_paced: bool) -> float | None:
    """Receive for a while, then reset the connection; return bytes per second, None when nothing came."""
    buffer = bytearray(4 * _BLOCK)
    reset_on_close(peer)
    arrivals: list[tuple[float, int]] = []
    enough = _PACED if is_paced else _WARMING + _MEASURING
    with suppress(OSError):
        while not arrivals or arrivals[-1][0] - arrivals[0][0] < enough:
            count = peer.recv_into(buffer)
            if not count:
                break
            arrivals.append((time.perf_counter(), count))
    return rate(arrivals, _WARMING)


def rate(arrivals: list[tuple[float, int]], warming: float) -> float | None:
    """Return bytes per second from (time, bytes) of each arrival.

    The first `warming` seconds do not count, unless too little came later. The first arrival that counts starts the
    clock, so its own bytes do not count.
    """
    late = [item for item in arrivals if item[0] - arrivals[0][0] >= warming]
    counted = late if len(late) > 1 else arrivals
    seconds = counted[-1][0] - counted[0][0] if counted else 0.0
    return sum(count for _, count in counted[1:]) / seconds if seconds else None


def reset_on_close(peer: socket.socket) -> None:
    """Let what is in flight be thrown away when the connection is closed."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
