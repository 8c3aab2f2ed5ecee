"""What a hook can know about the backward pass it runs in. All that relies on torch's internals is here.

Activation checkpointing (`use_reentrant=True`) runs a backward pass inside the backward pass, as a graph task of its own. To
the user the two are one, so a pass is told by the outermost call of the autograd engine on the stack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import torch
from torch.autograd import graph

_ENGINE_CALL = graph._engine_run_backward.__code__  # through which every backward pass goes

current_task: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the graph task that runs in this thread; -1 outside of a backward pass."""


def outermost_call() -> tuple[FrameType | None, int]:
    """The outermost call of the engine on this thread's stack, and how many there are."""
    frame: FrameType | None = sys._getframe(1)
    outermost, depth = None, 0
    while frame is not None:
        if frame.f_code is _ENGINE_CALL:
            outermost, depth = frame, depth + 1
        frame = frame.f_back
    return outermost, depth


def at_end_of_task(callback: Callable[[], None]) -> None:
    """Have `callback` called when the current graph task has run all its nodes; its errors come out of `backward()`."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
