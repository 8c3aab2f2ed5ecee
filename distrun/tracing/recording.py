"""The ring of this process: what the runtime and the faces tell of, if events are recorded at all."""

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
"""None before `open_ring`, in forked children, and where events are not recorded."""

questions: dict[int, Callable[[], None]] = {}
"""Descriptors that are readable when the agent asks something, with what answers it."""

_main_thread = threading.main_thread().ident


def open_ring(mark_cycles: bool = False) -> None:
    """Record from now on: in the ring that an agent has made and reads, or, without an agent, in one of our own.

    Args:
        mark_cycles: whether arriving decisions of the coordinator are recorded as well.
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
    """The main thread does something else from now on, if events are recorded: one of `layout.STATES`.

    In other threads, which prepare batches beside it, say, nothing is recorded.
    """
    if ring is not None and threading.get_ident() == _main_thread:
        ring.enter(state, value)


@contextmanager
def during(state: int) -> Iterator[None]:
    """Within this context the main thread is in a state, if events are recorded."""
    enter(state)
    try:
        yield
    finally:
        enter(layout.OTHER)


def step_done(samples: int = 0) -> None:
    """A step of the training is done, if events are recorded, of so many samples if that is known."""
    if ring is not None:
        ring.step_done(samples)


def own_activity() -> str:
    """Return what this rank is doing, as a predicate such as `had been in its backward pass for 3.1 s`; empty: nothing
    is known."""
    if ring is None:
        return ""
    told = activity_in(RingReader(ring.memory)).describe(time.monotonic_ns())
    return "" if told is None else told.sentence


def _forget() -> None:
    global ring, questions
    ring, questions = None, {}


os.register_at_fork(after_in_child=_forget)
