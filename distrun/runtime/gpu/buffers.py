"""Buffers in GPU memory, the arenas that allocate them, and a record of the memory that communication holds."""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """Consecutive elements in the memory of this rank's GPU: the counterpart of a flat numpy array."""

    pointer: int
    """The address of the first element."""
    size: int
    """The number of elements."""
    dtype: np.dtype[Any]
    """The elements' storage type. bfloat16 is stored as uint16."""
    owner: Any = None
    """The object that keeps the memory alive: a torch tensor, a cupy array."""

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    def part(self, start: int, stop: int) -> DeviceBuffer:
        """Return the elements from `start` up to `stop`, in the same memory."""
        return DeviceBuffer(self.pointer + start * self.dtype.itemsize, stop - start, self.dtype, self.owner)


@final
class RepeatedBuffers(tuple[DeviceBuffer, ...]):
    """The results of an operation that repeats, in the caller's memory, which the operation's handle keeps alive."""

    plan: Any = None
    """The backend's plan, which it keeps for the next time."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An owner whose memory is not from the arena, so it may be reused without regard to the arena's streams."""

    owner: Any


class Arena(Protocol):
    """A framework's GPU memory and streams. A stream is its address in CUDA. 0 is the legacy default stream."""

    def current_stream(self) -> int:
        """Return the stream where the framework queues the work of this thread."""
        ...

    def empty(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        """Return uninitialised memory from the framework's pool, for use on `stream`. Any thread may call it."""
        ...


# Memory held by communication ----------------------------------------------------------------------------------------

GRADIENT_BUCKETS = "gradient buckets"
FUSION_BUFFERS = "fusion buffers"
PINNED_STAGING = "pinned staging"
ERROR_FEEDBACK = "error feedback"

_notes: dict[tuple[int, str], tuple[weakref.ref[Any], int]] = {}
"""The owner and its bytes, by the owner's id and the kind."""


def note_held(kind: str, nbytes: int, owner: Any) -> None:
    """Record that `owner` holds `nbytes` bytes until it is garbage-collected.

    This replaces its previous record of this kind.

    Raises:
        TypeError: `owner` does not support weak references.
    """
    key = id(owner), kind

    def forget(gone: weakref.ref[Any]) -> None:
        noted = _notes.get(key)
        if noted is not None and noted[0] is gone:  # another owner may have the id by now
            _notes.pop(key, None)

    _notes[key] = weakref.ref(owner, forget), nbytes


def held_bytes() -> dict[str, int]:
    """Return the bytes that are held now, by kind. Kinds without any are left out."""
    totals: defaultdict[str, int] = defaultdict(int)
    for (_, kind), (_, nbytes) in list(_notes.items()):
        totals[kind] += nbytes
    return dict(totals)
