"""The messages of the control plane: a letter that names the kind of message, then the body."""

from __future__ import annotations

import array
import json
import struct
from collections.abc import Sequence
from functools import lru_cache

from distrun.runtime.negotiation.decisions import AllJoined, Decision, Define, Execute, Fail, Key, Retune
from distrun.runtime.operations.request import Request
from distrun.runtime.transport.control.control_plane import LARGEST_MESSAGE

# To the coordinator: requests by cache ids, one request in full, and the answers to two questions (where the main
# thread is, and where an operation was submitted). Also: how long this rank has waited, the question which ranks are
# missing, and the request to give an operation up. And one request by its cache id with its arrays (see `piggyback`),
# which rank 0 may send as well, and the answer that rank 0's have been dropped.
CACHE_IDS, FULL_REQUEST, ANSWER, SITE = b"N", b"R", b"A", b"C"
REMINDER, INQUIRY, GIVE_UP, PIGGYBACK, WITHDRAWN = b"W", b"I", b"G", b"S", b"U"
QUESTIONS = (REMINDER, INQUIRY, GIVE_UP)
"""Letters of questions that the coordinator answers from what it knows about all ranks."""
# From the coordinator: its decisions (EXECUTE is for all ranks, EXECUTE_SOME for the ranks that have not joined, RETUNE
# sets the fusion threshold), the two questions, the answer about missing ranks, the decision to execute together with
# the result, and the request to drop rank 0's PIGGYBACK messages. Another one, DEPARTURE, belongs to the control plane
# itself.
EXECUTE, EXECUTE_SOME, DEFINE, FAIL, ALL_JOINED, RETUNE, QUESTION, SITE_QUESTION, MISSING, RESULT, WITHDRAW = (
    *(b"X", b"J", b"D", b"F", b"L", b"T", b"Q", b"P", b"M", b"E", b"V"),
)

LARGEST_REQUEST = LARGEST_MESSAGE - 9
"""Bytes of the largest full request, which has to fit a message with a letter and, in a decision, two numbers."""

_CACHE_ID = "i"
_DEFINE = struct.Struct("<iI")  # cache id, ranks that take part
_ALL_JOINED = struct.Struct("<IIQ")  # process set, last rank, unnamed operations
_RETUNE = struct.Struct("<Q")  # bytes
_LONGEST_TEXT = 20_000

decoded = lru_cache(maxsize=64)(Request.decode)
"""Returns the request and the call site in a full request. Most ranks send identical ones, which are decoded once."""


def pack_ids(letter: bytes, cache_ids: Sequence[int]) -> bytes:
    """Return a message of cache ids."""
    return letter + array.array(_CACHE_ID, cache_ids).tobytes()


def unpack_ids(message: bytes) -> list[int]:
    """Return the cache ids in a message made by `pack_ids`."""
    cache_ids = array.array(_CACHE_ID)
    cache_ids.frombytes(message[1:])
    return cache_ids.tolist()


def pack_reminder(waited: float) -> bytes:
    """Return a message about the number of seconds that this rank has waited."""
    return REMINDER + struct.pack("<d", waited)


def unpack_reminder(message: bytes) -> float:
    """Return the seconds in a message made by `pack_reminder`."""
    (waited,) = struct.unpack("<d", message[1:])
    return float(waited)


def pack_decision(decision: Decision) -> bytes:
    """Return a decision as a message."""
    if isinstance(decision, Execute):
        if not decision.taking_part:
            return pack_ids(EXECUTE, decision.cache_ids)
        return pack_ids(EXECUTE_SOME, [decision.taking_part, *decision.cache_ids])
    if isinstance(decision, Define):
        return DEFINE + _DEFINE.pack(decision.cache_id, decision.taking_part) + decision.request.encode("")
    if isinstance(decision, AllJoined):
        return ALL_JOINED + _ALL_JOINED.pack(decision.process_set, decision.last, decision.unnamed)
    if isinstance(decision, Retune):
        return RETUNE + _RETUNE.pack(decision.threshold)
    return FAIL + json.dumps([*decision.key, decision.text[:_LONGEST_TEXT], decision.is_stall]).encode()


def unpack_some(message: bytes) -> tuple[int, list[int]]:
    """Return the number of ranks that take part, and the cache ids, in an `EXECUTE_SOME` message."""
    taking_part, *cache_ids = unpack_ids(message)
    return taking_part, cache_ids


def unpack_define(message: bytes) -> Define:
    """Return the decision in a `DEFINE` message."""
    cache_id, taking_part = _DEFINE.unpack_from(message, 1)
    request, _ = Request.decode(message[1 + _DEFINE.size :])
    return Define(cache_id, request, taking_part)


def unpack_fail(message: bytes) -> Fail:
    """Return the decision in a `FAIL` message, which does not contain the ranks that it is for."""
    process_set, name, text, is_stall = json.loads(message[1:])
    return Fail((process_set, name), text, (), is_stall)


def unpack_all_joined(message: bytes) -> AllJoined:
    """Return the decision in an `ALL_JOINED` message."""
    return AllJoined(*_ALL_JOINED.unpack_from(message, 1))


def unpack_retune(message: bytes) -> int:
    """Return the fusion threshold in a `RETUNE` message."""
    (threshold,) = _RETUNE.unpack_from(message, 1)
    return int(threshold)


def pack_key(letter: bytes, key: Key, text: str = "") -> bytes:
    """Return a message about an operation: a question, or the answer."""
    return letter + json.dumps([*key, text[:_LONGEST_TEXT]]).encode()


def unpack_key(message: bytes) -> tuple[Key, str]:
    """Return the operation's key and the text in a message made by `pack_key`."""
    process_set, name, text = json.loads(message[1:])
    return (process_set, name), text
