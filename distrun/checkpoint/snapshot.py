"""Copies of tensors in memory. They are written from the copies while training changes the tensors themselves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from distrun.checkpoint.file_format import Entry, layout
from distrun.checkpoint.numpy_arrays import Bytes, Capture


class Snapshot:
    """One copy at a time, in memory that is reused for the next one: fresh memory would cost page faults each time."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._is_pinned = False
        self._copied: Any = None

    def take(self, tensors: Mapping[str, Capture]) -> list[Entry]:
        """Copy tensors as they are now. Returns where they lie in `data`, in order and without gaps.

        Copies from a GPU are queued on the current stream, behind the kernels that compute the tensors. `data` waits
        for them.
        """
        entries = layout(tensors)
        on_gpu = any(tensor.on_gpu for tensor in tensors.values())
        size = entries[-1].stop if entries else 0
        if size > self._memory.size or on_gpu > self._is_pinned:
            self._memory = np.empty(0, np.uint8)  # free the old one first
            self._memory = _pinned(size) if on_gpu else np.empty(size, np.uint8)
            self._is_pinned = on_gpu
        for entry in entries:
            tensors[entry.name].copy(self._memory[entry.start : entry.stop])
        self._copied = sys.modules["torch"].cuda.Event() if on_gpu else None
        if self._copied is not None:
            self._copied.record()
        return entries

    def data(self, entries: list[Entry]) -> Bytes:
        """Wait until the copies are done, and return their memory."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._memory[: entries[-1].stop if entries else 0]


def _pinned(size: int) -> Bytes:
    torch = sys.modules["torch"]
    pinned: Bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return pinned


def shares(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Divide tensors of these `sizes` in bytes among `count` parts: the largest first, each to the part with the fewest
    bytes so far. Returns the names in each part.

    This is the greedy rule for scheduling on identical machines (Graham 1969): no part has more than 4/3 of the least
    possible. All ranks that have the same sizes compute the same shares.
    """
    dealt: list[list[str]] = [[] for _ in range(count)]
    filled = [0] * count
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        part = filled.index(min(filled))
        dealt[part].append(name)
        filled[part] += sizes[name]
    return dealt
