"""The ring of this process, where the runtime and the packages for frameworks record events, if that is on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from distrun.tracing import layout, stacks
from distrun.tracing.activity import activity_in
from distrun.tracing.layout import EVENTS_FD, is_ring
from distrun.tracing.reader import RingReader
from distrun.tracing.ring import Ring

ring: Ring | None = None
"""The ring. None before `open_ring`, in forked children, and where events are not recorded."""

questions: dict[int, Callable[[], None]] = {}
"""Descriptors that become readable when the agent asks something, each with the function that answers."""

_main_thread = threading.main_thread().ident


def open_ring(mark_cycles: bool = False) -> None:
    """Begin to record: in the ring that an agent has created and reads or, without an agent, in a private ring.

    Args:
        mark_cycles: whether to record when decisions of the coordinator arrive.
    """
    global ring, questions
    if ring is not None:
        return
    text, _, question = os.environ.get(EVENTS_FD, "").partition(",")
    if text.isdecimal() and is_ring(fd := int(text)):
        os.set_inheritable(fd, False)
        ring = Ring(fd)
        if question.isdecimal():
            os.set_inheritable(int(question), False)
            questions = {int(question): partial(stacks.answer, int(question), ring.memory)}
    else:
        ring = Ring()
    ring.marks_cycles = mark_cycles


def enter(state: int, value: int = 0) -> None:
    """Record that the main thread enters a state, one of `layout.STATES`, if events are recorded.

    Does nothing in other threads, which for example prepare batches at the same time.
    """
    if ring is not None and threading.get_ident() == _main_thread:
        ring.enter(state, value)


@contextmanager
def during(state: int) -> Iterator[None]:
    """Record that the main thread is in a state within this context, if events are recorded."""
    enter(state)
    try:
        yield
    finally:
        enter(layout.OTHER)


def step_done(samples: int = 0) -> None:
    """Record that a step of the training is done, if events are recorded. `samples` is 0 if it is not known."""
    if ring is not None:
        ring.step_done(samples)


def own_activity() -> str:
    """Return what this rank is doing, as a predicate such as `had been in its backward pass for 3.1 s`, or "" if
    nothing is known."""
    if ring is None:
        return ""
    told = activity_in(RingReader(ring.memory)).describe(time.monotonic_ns())
    return "" if told is None else told.sentence


def _forget() -> None:
    global ring, questions
    ring, questions = None, {}


os.register_at_fork(after_in_child=_forget)
