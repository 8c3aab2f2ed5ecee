"""The messages of the control plane: a letter that says what follows, then the body."""

from __future__ import annotations

import array
import json
import struct
from collections.abc import Sequence

from distrun.runtime.negotiation.decisions import Decision, Define, Execute, Fail
from distrun.runtime.operations.request import Request

# To the coordinator: requests by their numbers, a request spelled out, the answer to a question, how long we have waited.
# And one request by its number with its arrays (see `riding`).
NUMBERS, REQUEST, ANSWER, REMINDER, PIGGYBACK = b"N", b"R", b"A", b"W", b"S"
# From the coordinator: its decisions, the question where the main thread is, and the decision to execute with its result.
EXECUTE, DEFINE, FAIL, QUESTION, RESULT = b"X", b"D", b"F", b"Q", b"E"

_NUMBER = "i"
_LONGEST_TEXT = 20_000


def pack_numbers(letter: bytes, numbers: Sequence[int]) -> bytes:
    """A message of request numbers."""
    return letter + array.array(_NUMBER, numbers).tobytes()


def unpack_numbers(message: bytes) -> list[int]:
    """The numbers in a message made by `pack_numbers`."""
    numbers = array.array(_NUMBER)
    numbers.frombytes(message[1:])
    return numbers.tolist()


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
        return pack_numbers(EXECUTE, decision.numbers)
    if isinstance(decision, Define):
        return DEFINE + decision.number.to_bytes(4, "little", signed=True) + decision.request.encode("")
    return FAIL + json.dumps([*decision.key, decision.text[:_LONGEST_TEXT], decision.ranks, decision.is_stall]).encode()


def unpack_define(message: bytes) -> Define:
    """The decision in a message that begins with `DEFINE`."""
    request, _ = Request.decode(message[5:])
    return Define(int.from_bytes(message[1:5], "little", signed=True), request)


def unpack_fail(message: bytes) -> Fail:
    """The decision in a message that begins with `FAIL`."""
    process_set, name, text, ranks, is_stall = json.loads(message[1:])
    return Fail((process_set, name), text, tuple(ranks), is_stall)
