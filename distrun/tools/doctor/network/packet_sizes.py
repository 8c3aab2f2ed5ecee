"""The largest packet that passes: messages of rising sizes are sent, each as one packet, until one is not answered.

A router between the hosts may drop packets that are too large for its next link without an error (an MTU black hole).
Small packets pass, so connections are made, but then hang.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from distrun.tools.doctor.network.authentication import read

_MESSAGE = struct.Struct("<II")  # the sizes of the message, this header included, and of its answer
_ANSWER = 1.5  # seconds for an answer: TCP resends a lost packet three times in them
_COARSE = 16  # sizes in the first series
_FINE = 128  # sizes in the second series, about
_LARGEST = 1 << 16

Passing = Callable[[Sequence[int]], int]
"""Sends packets with these numbers of bytes of data, one after the other, and returns how many passed in a row."""


@dataclass(frozen=True)
class PacketSizes:
    """Bytes of packets, with their headers."""

    full: int
    """The largest packet that is sent."""
    passing: int
    """The largest packet that arrives, give or take a few bytes, or 0 if not even small ones do."""


def search(passing: Passing, most: int) -> int | None:
    """Return the bytes of data in the largest packet that passes: `most` if all do, None if it is not certain.

    A packet that is lost by chance ends a series, too. So the second series must confirm what the first one has found.
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
    """Send messages of these sizes, or receive them as answers. Return how many passed before one did not."""
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


def serve(peer: socket.socket, timeout: float) -> None:
    """Answer messages until the client disconnects, or nothing comes for `timeout` seconds."""
    while len(head := read(peer, _MESSAGE.size, time.monotonic() + timeout)) == _MESSAGE.size:
        size, answered = _MESSAGE.unpack(head)
        if max(size, answered) > _LARGEST:
            return
        read(peer, size - _MESSAGE.size, time.monotonic() + timeout)
        peer.sendall(bytes(answered))
