"""Turns: one tuner works at a time, since two that change settings at once would measure each other.

A tuner that ranks run together takes its turn at the same point of the program on all of them, so all agree on who has
it without asking. While one has it, the tuner of rank 0 alone keeps still.
"""

from __future__ import annotations

_holder: object | None = None
_has_joined = False


def take(tuner: object) -> bool:
    """Let a tuner that all ranks run together have the turn, if no other has it; return whether it has."""
    global _holder
    if _holder is None:
        _holder = tuner
    return _holder is tuner


def give_back(tuner: object) -> None:
    """Let another one have the turn, if this one has it."""
    global _holder
    if _holder is tuner:
        _holder = None


def is_taken() -> bool:
    """Whether a tuner that all ranks run together has the turn."""
    return _holder is not None


def note_join() -> None:
    """This rank has no more data for now: others make steps that it does not, so they tune together no more."""
    global _has_joined
    _has_joined = True


def has_joined() -> bool:
    """Whether `note_join` was called in this world."""
    return _has_joined


def begin_world() -> None:
    """Forget what was in the last world."""
    global _holder, _has_joined
    _holder, _has_joined = None, False
