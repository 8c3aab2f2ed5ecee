"""Identifying the backward pass that a hook runs in. Everything that relies on the internals of torch's autograd is
here.

Activation checkpointing (`use_reentrant=True`) runs a backward pass inside the backward pass, as a graph task of its
own. To the user the two are one, so a pass is identified by the outermost call of the autograd engine: a Python frame,
which is the same for everything that happens in the pass. The next pass has a new frame, even if this one fails.

Where that call is depends on the thread. This module relies on the following (torch's engine.cpp, python_engine.cpp):

- Nodes of CPU tensors run in the thread that called `backward()`, within the call.
- Nodes of CUDA tensors run in a thread that belongs to the GPU, at the same time. The engine has started that thread
  itself, and Python does not know it: its stack has no call of the engine, but the caller's thread is waiting in one.
- A pass within the pass runs in the thread that begins it. The stack of the GPU's thread then has that pass's call.
- Nested passes beyond a depth of 60 run in further threads that Python does not know.
- A task has a number, greater than the numbers of all earlier tasks. A pass within a pass is a later task.
- Callbacks for the end of a task run in the thread that runs the task's last node, when all its nodes have run, and on
  the streams that were current where `backward()` was called. These streams then wait for the gradients.
- If a node fails, `backward()` raises in the caller's thread at once. The GPU's thread may still be in a hook of that
  pass.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

import torch
from torch.autograd import graph

_ENGINE_CALL = graph._engine_run_backward.__code__  # every backward pass goes through this function

current_task: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the graph task that runs in this thread, or -1 outside of a backward pass."""


class Position(NamedTuple):
    """The place of a thread in a backward pass."""

    call: FrameType | None
    """The pass's outermost call of the engine, or None outside of a pass, or if its caller is gone."""
    depth: int
    """The number of nested calls of the engine."""
    is_own: bool
    """Whether this is the caller's thread. In another thread a depth above 1 may come from a nested pass that only the
    caller's thread is in."""


class Pass:
    """The backward pass that is running, if any, and its graph tasks in which hooks have been called."""

    def __init__(self) -> None:
        self.is_open = False
        self.is_end_arranged = False
        self.call: FrameType | None = None
        """The outermost call of the engine, which identifies the pass."""
        self.tasks: set[int] = set()
        self._failed = -1  # this task and all earlier ones belong to passes that have failed

    def position(self, task: int) -> Position | None:
        """Return where this thread is, in a task that it has not been in before; None if it is still in a pass that has
        failed."""
        if task <= self._failed:
            return None
        found = position(self.call)
        return None if found.call is None and not found.is_own else found

    def is_at(self, place: Position) -> bool:
        """Return whether a thread at `place` is in this pass."""
        return self.is_open and place.call is self.call

    def begin(self, call: FrameType | None) -> None:
        """Begin a pass."""
        self.is_open, self.is_end_arranged, self.call = True, False, call

    def add(self, task: int, place: Position, at_end: Callable[[], None]) -> None:
        """Add `task`, in which this thread is, to the pass, and arrange for `at_end` to be called at the pass's end, if
        that is not arranged yet."""
        self.tasks.add(task)
        if self.is_end_arranged:
            return
        if place.depth <= 1:
            self.arrange_end(at_end)
        elif not place.is_own:
            at_end_of_task(lambda: self._end_task(at_end))

    def arrange_end(self, at_end: Callable[[], None]) -> None:
        """Arrange for `at_end` to be called when the current task, the pass's outermost one, ends."""
        self.is_end_arranged = True
        at_end_of_task(at_end)

    def _end_task(self, at_end: Callable[[], None]) -> None:
        """End a task that might have been a nested one. Nested calls of the engine have returned by now, so the depth
        tells."""
        if position(self.call).depth <= 1:
            at_end()

    def close(self) -> None:
        """End the pass."""
        self.is_open = self.is_end_arranged = False
        self.tasks = set()
        self.call = None  # at once, since the frame keeps the loss alive

    def fail(self) -> None:
        """End the pass as failed. Threads may still be in it."""
        self._failed = max(self.tasks, default=self._failed)
        self.close()


def position(known: FrameType | None = None) -> Position:
    """Return where this thread is. If several threads have called the engine, the caller of this thread's pass is the
    one in the call `known`."""
    own, callers = threading.get_ident(), _possible_callers()
    if own in callers:
        return Position(*_calls(sys._getframe(1)), True)
    found = {thread: _calls(frame) for thread, frame in sys._current_frames().items()}
    inside = sum(depth for thread, (_, depth) in found.items() if thread not in callers)
    calling = [(call, depth) for thread, (call, depth) in found.items() if thread in callers and call is not None]
    if calling:
        outer = next((each for each in calling if each[0] is known), calling[0])
        return Position(outer[0], outer[1] + inside, False)
    # The caller is a thread that Python does not know.
    if found[own][0] is not None:
        return Position(*found[own], True)
    call = next((call for call, _ in found.values() if call is not None), None)
    return Position(call, inside, False)


def _possible_callers() -> set[int | None]:
    """Return the ids of the threads that Python has started, and of the main thread."""
    return {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}


def _calls(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """Return the outermost call of the engine on the stack of `frame`, and the number of such calls."""
    outermost, depth = None, 0
    while frame is not None:
        if is_engine_call(frame):
            outermost, depth = frame, depth + 1
        frame = frame.f_back
    return outermost, depth


def is_engine_call(frame: FrameType | None) -> bool:
    """Return whether a frame is a call of the engine. Frames above it were called from C++, by the engine or a node."""
    return frame is not None and frame.f_code is _ENGINE_CALL


def at_end_of_task(callback: Callable[[], None]) -> None:
    """Arrange for `callback` to be called when the current graph task has run all its nodes. `backward()` raises its
    errors."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
