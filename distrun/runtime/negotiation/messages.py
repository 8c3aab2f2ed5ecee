"""The messages of the control plane: a letter that says what follows, then the body."""

from __future__ import annotations

import array
import json
import struct
from collections.abc import Sequence

from distrun.runtime.negotiation.decisions import Decision, Define, Execute, Fail
from distrun.runtime.operations.request import Request
from distrun.runtime.transport.control_plane import LARGEST_MESSAGE

# To the coordinator: requests by their cache ids, one request in full, the answer to a question, for how long we have
# waited. And one request by its cache id with its arrays (see `piggyback`), which rank 0 may send as well.
CACHE_IDS, FULL_REQUEST, ANSWER, REMINDER, PIGGYBACK = b"N", b"R", b"A", b"W", b"S"
# From the coordinator: its decisions, the question where the main thread is, and the decision to execute with its
# result.
EXECUTE, DEFINE, FAIL, QUESTION, RESULT = b"X", b"D", b"F", b"Q", b"E"

LARGEST_REQUEST = LARGEST_MESSAGE - 5
"""Bytes of the largest full request: it has to fit a message with its letter and, in a decision, its cache id."""

_CACHE_ID = "i"
_LONGEST_TEXT = 20_000


def pack_ids(letter: bytes, cache_ids: Sequence[int]) -> bytes:
    """A message of cache ids."""
    return letter + array.array(_CACHE_ID, cache_ids).tobytes()


def unpack_ids(message: bytes) -> list[int]:
    """The cache ids in a message made by `pack_ids`."""
    cache_ids = array.array(_CACHE_ID)
    cache_ids.frombytes(message[1:])
    return cache_ids.tolist()


def pack_reminder(waited: float) -> bytes:
    """A message that says for how many seconds the sender has waited."""
    return REMINDER + struct.pack("<d", waited)


def unpack_reminder(message: bytes) -> float:
    """The seconds in a message made by `pack_reminder`."""
    (waited,) = struct.unpack("<d", message[1:])
    return float(waited)


def pack_decision(decision: Decision) -> bytes:
    """A decision as a message."""
    if isinstance(decision, Execute):
        return pack_ids(EXECUTE, decision.cache_ids)
    if isinstance(decision, Define):
        return DEFINE + decision.cache_id.to_bytes(4, "little", signed=True) + decision.request.encode("")
    return FAIL + json.dumps([*decision.key, decision.text[:_LONGEST_TEXT], decision.ranks, decision.is_stall]).encode()


def unpack_define(message: bytes) -> Define:
    """The decision in a message that begins with `DEFINE`."""
    request, _ = Request.decode(message[5:])
    return Define(int.from_bytes(message[1:5], "little", signed=True), request)


def unpack_fail(message: bytes) -> Fail:
    """The decision in a message that begins with `FAIL`."""
    process_set, name, text, ranks, is_stall = json.loads(message[1:])
    return Fail((process_set, name), text, tuple(ranks), is_stall)
