"""Buffers in a GPU's memory, and where new ones come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """Consecutive elements in the memory of this rank's GPU. The counterpart of a flat numpy array."""

    pointer: int
    """The address of the first element."""
    size: int
    """How many elements there are."""
    dtype: np.dtype[Any]
    """What they are stored as; bfloat16 as uint16."""
    owner: Any = None
    """Keeps the memory alive: a torch tensor, a cupy array."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def part(self, start: int, stop: int) -> DeviceBuffer:
        """The elements from `start` up to `stop`, in the same memory."""
        return DeviceBuffer(self.pointer + start * self.dtype.itemsize, stop - start, self.dtype, self.owner)


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An owner whose memory does not come from the arena, and so may be used again without regard to the arena's streams."""

    owner: Any


class Arena(Protocol):
    """A framework's GPU memory and streams. Streams are addresses, as CUDA calls them; 0 is the legacy default stream."""

    def current_stream(self) -> int:
        """The stream on which the framework queues what the calling thread does."""
        ...

    def empty(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        """Uninitialised memory from the framework's pool, for use on `stream`; any thread may ask."""
        ...
