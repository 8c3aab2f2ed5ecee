"""Envelopes: what leaders put around a message that they forward, and what they send each other."""

from __future__ import annotations

import array
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# ONE, up and down: a message from a rank, or for a rank. SUBTREE, up: a message that all ranks of a leader's subtree
# have sent. Down, ALL and SOME: a message for all ranks of the subtree, or for some of them. WAKE: wake a rank. FLUSH
# and FLUSHED: the question of a survey, and its answer.
ONE, SUBTREE, ALL, SOME, WAKE, FLUSH, FLUSHED = (bytes([number]) for number in range(3, 10))

_NUMBER = struct.Struct("<I")
_HEADER = 1 + _NUMBER.size
MOST_RANKS = 1024
"""The most ranks that an envelope lists."""
LARGEST_ENVELOPE = _HEADER + 4 * MOST_RANKS
"""Bytes of the largest envelope, not counting the message in it."""


class Opened(NamedTuple):
    """An opened envelope."""

    letter: bytes
    number: int
    """The rank, the leader of the subtree, or the number of the survey, depending on the letter."""
    ranks: Sequence[int]
    message: bytes


def pack_one(rank: int, message: bytes) -> bytes:
    """Return an envelope with a message from a rank, or for a rank."""
    return ONE + _NUMBER.pack(rank) + message


def pack_subtree(leader: int, message: bytes) -> bytes:
    """Return an envelope with a message that all ranks of a leader's subtree have sent."""
    return SUBTREE + _NUMBER.pack(leader) + message


def pack_all(message: bytes) -> bytes:
    """Return an envelope with a message for all ranks of the receiver's subtree."""
    return ALL + _NUMBER.pack(0) + message


def pack_some(ranks: Sequence[int], message: bytes) -> Iterator[bytes]:
    """Yield envelopes with a message for these ranks: more than one if there are more than `MOST_RANKS`."""
    for start in range(0, len(ranks), MOST_RANKS):
        part = ranks[start : start + MOST_RANKS]
        yield SOME + _NUMBER.pack(len(part)) + array.array("I", part).tobytes() + message


def pack_wake(rank: int) -> bytes:
    """Return an envelope that asks to wake a rank."""
    return WAKE + _NUMBER.pack(rank)


def pack_survey(letter: bytes, number: int) -> bytes:
    """Return an envelope with the question of a survey (FLUSH) or the answer (FLUSHED)."""
    return letter + _NUMBER.pack(number)


def unpack(envelope: bytes) -> Opened:
    """Return the parts of an envelope."""
    letter = envelope[:1]
    (number,) = _NUMBER.unpack_from(envelope, 1)
    if letter != SOME:
        return Opened(letter, number, (), envelope[_HEADER:])
    stop = _HEADER + 4 * number
    ranks = array.array("I")
    ranks.frombytes(envelope[_HEADER:stop])
    return Opened(letter, number, ranks, envelope[stop:])


def message_for_all(envelope: bytes) -> bytes:
    """Return the message in an ALL envelope."""
    return envelope[_HEADER:]
