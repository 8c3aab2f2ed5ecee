"""The part of cupy.cuda that distrun uses."""

from __future__ import annotations

from cupy.cuda import memory, nccl, runtime, stream
from cupy.cuda.device import Device
from cupy.cuda.memory import (
    BaseMemory,
    MemoryPointer,
    PinnedMemory,
    PinnedMemoryPointer,
    UnownedMemory,
    alloc,
    alloc_pinned_memory,
)
from cupy.cuda.stream import Event, Stream, get_current_stream, get_elapsed_time

__all__ = [
    "BaseMemory",
    "Device",
    "Event",
    "MemoryPointer",
    "PinnedMemory",
    "PinnedMemoryPointer",
    "Stream",
    "UnownedMemory",
    "alloc",
    "alloc_pinned_memory",
    "get_current_stream",
    "get_elapsed_time",
    "memory",
    "nccl",
    "runtime",
    "stream",
]
