"""Sending and receiving for a limited time, to measure the rate, and the share of lost packets."""

from __future__ import annotations

import socket
import statistics
import struct
import time
from contextlib import suppress
from dataclasses import dataclass

from distrun.host.connections.tcp_info import SentPackets

IDLE_TIMEOUT = 3.0
"""Seconds without a byte until a transfer is over. TCP resends a lost packet four times in them."""
_PINGING = 0.05  # seconds of round trips, or longer until there are `_MIN_PINGS`
_MIN_PINGS = 3
_WARMING = 0.05  # seconds of data that do not count, while buffers and the congestion window fill
_MEASURING = 0.25
_PACED = 1.0  # seconds at a steady pace
_MAX_SENDING = 4.0  # seconds until the sender stops, if the receiver does not reset the connection before
_BLOCK = 1 << 18
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing discards data in flight
_MAX_PACING_RATE = 47  # SO_MAX_PACING_RATE, for which Python has no name


@dataclass(frozen=True)
class Traffic:
    """The traffic in one direction of a connection."""

    rate: float | None
    """Bytes per second, or None if nothing arrived."""
    sent: int
    """The number of packets."""
    lost: int
    """The number of packets that had to be sent again."""

    @property
    def loss(self) -> float:
        """The share of lost packets."""
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
    """Send until the receiver resets the connection. Return the numbers of packets that were sent and lost.

    `pace` is bytes per second, or 0 for as fast as it goes. The caller must close the connection afterwards.
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
    """Receive for a fixed time. Return bytes per second, or None if nothing came. Closing resets the connection."""
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
    """Return bytes per second, given (time, bytes) of each arrival.

    The first `warming` seconds do not count, unless too little came later. The first arrival that counts starts the
    clock, so its own bytes do not count.
    """
    late = [item for item in arrivals if item[0] - arrivals[0][0] >= warming]
    counted = late if len(late) > 1 else arrivals
    seconds = counted[-1][0] - counted[0][0] if counted else 0.0
    return sum(count for _, count in counted[1:]) / seconds if seconds else None


def reset_on_close(peer: socket.socket) -> None:
    """Make the connection discard data in flight when it is closed."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
