"""Envelopes: what leaders put around a message that they forward, and what they send each other."""

from __future__ import annotations

import array
import struct
from collections.abc import Iterator, Sequence

# ONE, up and down: a message from a rank, or for a rank. SUBTREE, up: a message that all ranks of a leader's subtree
# have sent. Down, ALL and SOME: a message for all ranks of the subtree, or for some of them. WAKE: wake a rank. FLUSH
# and FLUSHED: the question of a survey, and its answer.
ONE, SUBTREE, ALL, SOME, WAKE, FLUSH, FLUSHED = (bytes([number]) for number in range(3, 10))

_NUMBER = struct.Struct("<I")
HEADER = 1 + _NUMBER.size
"""Bytes of an envelope before its message, unless it lists ranks."""
MOST_RANKS = 1024
"""The most ranks that an envelope lists."""


def pack(letter: bytes, number: int, message: bytes = b"") -> bytes:
    """Return an envelope, except with the letter SOME.

    `number` is the rank (ONE, WAKE), the leader of the subtree (SUBTREE), the number of the survey (FLUSH, FLUSHED), or
    0 (ALL).
    """
    return letter + _NUMBER.pack(number) + message


def pack_some(ranks: Sequence[int], message: bytes) -> Iterator[bytes]:
    """Yield envelopes with a message for these ranks: more than one if there are more than `MOST_RANKS`."""
    for start in range(0, len(ranks), MOST_RANKS):
        part = ranks[start : start + MOST_RANKS]
        yield SOME + _NUMBER.pack(len(part)) + array.array("I", part).tobytes() + message


def unpack(envelope: bytes) -> tuple[bytes, int, Sequence[int], bytes]:
    """Return the parts of an envelope: its letter, its number, the ranks that it lists (SOME), and the message."""
    letter = envelope[:1]
    (number,) = _NUMBER.unpack_from(envelope, 1)
    if letter != SOME:
        return letter, number, (), envelope[HEADER:]
    stop = HEADER + 4 * number
    ranks = array.array("I")
    ranks.frombytes(envelope[HEADER:stop])
    return letter, number, ranks, envelope[stop:]
