"""Turns: only one tuner works at a time, since two that change settings at once would measure each other's effects.

A tuner that all ranks run together takes its turn at the same point of the program on every rank, so the ranks agree on
who has it without communication. While one has the turn, the tuner that only rank 0 runs pauses.
"""

from __future__ import annotations

_holder: object | None = None
_has_joined = False


def take(tuner: object) -> bool:
    """Give the turn to a tuner that all ranks run together, if no other has it. Returns whether it has the turn now."""
    global _holder
    if _holder is None:
        _holder = tuner
    return _holder is tuner


def give_back(tuner: object) -> None:
    """Take the turn from `tuner`, if it has it."""
    global _holder
    if _holder is tuner:
        _holder = None


def is_taken() -> bool:
    """Whether a tuner that all ranks run together has the turn."""
    return _holder is not None


def note_join() -> None:
    """Note that this rank has joined: other ranks make steps without it, so ranks can no longer tune together."""
    global _has_joined
    _has_joined = True


def has_joined() -> bool:
    """Whether `note_join` was called in this world."""
    return _has_joined


def begin_world() -> None:
    """Forget the state of the last world."""
    global _holder, _has_joined
    _holder, _has_joined = None, False
