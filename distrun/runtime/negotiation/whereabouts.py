"""The answer of a rank that is asked where its main thread is."""

from __future__ import annotations

from distrun.runtime.operations.call_site import main_stack
from distrun.tracing import recording

SEPARATOR = "\0"


def whereabouts() -> str:
    """Return what this rank is doing, for how long, and the stack of its main thread. See `describe_stack`."""
    return f"{recording.own_activity()}{SEPARATOR}{main_stack()}"


def describe_stack(rank: int, answer: str) -> str:
    """Format a rank's answer for people."""
    activity, _, stack = answer.rpartition(SEPARATOR)
    if activity:
        return f"rank {rank} {activity}; its main thread is at\n{stack}"
    return f"the main thread of rank {rank} is at\n{stack}"
