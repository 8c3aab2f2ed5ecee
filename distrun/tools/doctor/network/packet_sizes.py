"""The largest packet that passes: messages of rising sizes are sent, each as one packet, until one is not answered.

A host between the two may throw away packets that are too large for its next link without a word (an MTU black hole).
Small ones pass, so connections are made, and then hang.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from distrun.host.connections.tcp_info import TcpInfo
from distrun.tools.doctor.network.authentication import read

_MESSAGE = struct.Struct("<II")  # the bytes of a message, with these, and of its answer
_ANSWER = 1.5  # seconds for an answer; what is lost is sent again three times in them
_COARSE = 16  # sizes of the first series
_FINE = 128  # most sizes of the second
_LARGEST = 1 << 16

Passing = Callable[[Sequence[int]], int]
"""Sends packets with so many bytes of data, one after the other, and returns how many passed before one did not."""


@dataclass(frozen=True)
class PacketSizes:
    """Bytes of packets, with their headers."""

    full: int
    """The largest that are sent."""
    passing: int
    """The largest that arrive, give or take a few, or 0 if not even small ones do."""


def search(passing: Passing, most: int) -> int | None:
    """Return the bytes of data in the largest packet that passes; `most` if all do, None when that is not certain.

    A packet that is lost by chance ends a series too, so what the first series finds must show again in the second.
    """
    coarse = [most * (number + 1) // _COARSE for number in range(_COARSE)]
    count = passing(coarse)
    if count == _COARSE:
        return most
    low, high = coarse[count - 1] if count else _MESSAGE.size, coarse[count]
    step = max(1, (high - low) // _FINE)
    fine = [*range(low, high, step), high]
    count = passing(fine)
    if count == len(fine) or (low >= coarse[0] and not count):
        return None
    return fine[count - 1] if count else 0


def exchange(peer: socket.socket, sizes: Sequence[int], is_sent: bool) -> int:
    """Send messages of rising sizes, or have the server send them; return how many came through before one did not."""
    peer.settimeout(_ANSWER)
    count = 0
    with suppress(OSError):
        for size in sizes:
            sent, answered = (size, 1) if is_sent else (_MESSAGE.size, size)
            peer.sendall(_MESSAGE.pack(sent, answered).ljust(sent, b"\0"))
            if len(read(peer, answered, time.monotonic() + _ANSWER)) < answered:
                break
            count += 1
    return count


def serve(peer: socket.socket, silence: float) -> None:
    """Answer messages until the client has had enough, or nothing comes for so many seconds."""
    while len(head := read(peer, _MESSAGE.size, time.monotonic() + silence)) == _MESSAGE.size:
        size, answered = _MESSAGE.unpack(head)
        if max(size, answered) > _LARGEST:
            return
        read(peer, size - _MESSAGE.size, time.monotonic() + silence)
        peer.sendall(bytes(answered))


def full_size(peer: socket.socket) -> tuple[int, int]:
    """Return the bytes of data in the largest packet of a connection, and the bytes of headers that come with them."""
    info = TcpInfo.of(peer)
    return info.largest, info.headers(peer.family)
