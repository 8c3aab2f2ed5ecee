"""Envelopes: what leaders write around a message that they pass on, and what they tell each other."""

from __future__ import annotations

import array
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Up and down: a message from a rank, or for a rank. Up: one that all ranks of a leader's subtree have sent. Down: one
# for all ranks of the subtree, and one for some of them. A rank is to be woken. The survey's question and answer.
ONE, SUBTREE, ALL, SOME, WAKE, FLUSH, FLUSHED = (bytes([number]) for number in range(3, 10))

_NUMBER = struct.Struct("<I")
_HEADER = 1 + _NUMBER.size
MOST_RANKS = 1024
"""Ranks that an envelope lists at most."""
LARGEST_ENVELOPE = _HEADER + 4 * MOST_RANKS
"""Bytes of the largest envelope, without the message in it."""


class Opened(NamedTuple):
    """An envelope that was opened."""

    letter: bytes
    number: int
    """The rank, the leader of the subtree, or the number of the survey."""
    ranks: Sequence[int]
    message: bytes


def pack_one(rank: int, message: bytes) -> bytes:
    """Return a message from a rank, or for a rank."""
    return ONE + _NUMBER.pack(rank) + message


def pack_subtree(leader: int, message: bytes) -> bytes:
    """Return a message that all ranks of a leader's subtree have sent."""
    return SUBTREE + _NUMBER.pack(leader) + message


def pack_all(message: bytes) -> bytes:
    """Return a message for all ranks of the receiver's subtree."""
    return ALL + _NUMBER.pack(0) + message


def pack_some(ranks: Sequence[int], message: bytes) -> Iterator[bytes]:
    """Yield a message for some ranks, several times if they are very many."""
    for start in range(0, len(ranks), MOST_RANKS):
        part = ranks[start : start + MOST_RANKS]
        yield SOME + _NUMBER.pack(len(part)) + array.array("I", part).tobytes() + message


def pack_wake(rank: int) -> bytes:
    """Return the request to wake a rank."""
    return WAKE + _NUMBER.pack(rank)


def pack_survey(letter: bytes, number: int) -> bytes:
    """Return the question of a survey, FLUSH, or the answer, FLUSHED."""
    return letter + _NUMBER.pack(number)


def unpack(envelope: bytes) -> Opened:
    """Return what is in an envelope."""
    letter = envelope[:1]
    (number,) = _NUMBER.unpack_from(envelope, 1)
    if letter != SOME:
        return Opened(letter, number, (), envelope[_HEADER:])
    stop = _HEADER + 4 * number
    ranks = array.array("I")
    ranks.frombytes(envelope[_HEADER:stop])
    return Opened(letter, number, ranks, envelope[stop:])


def message_for_all(envelope: bytes) -> bytes:
    """Return the message in an envelope that is for all ranks."""
    return envelope[_HEADER:]
