"""Fusion memory: GPU memory where tensors are packed, so that they are reduced as one."""

from __future__ import annotations

import numpy as np

from distrun.errors import UsageError
from distrun.runtime.gpu.buffers import FUSION_BUFFERS, DeviceBuffer, note_held
from distrun.runtime.gpu.driver import Driver

_GROWTH = 2 << 20  # bytes: the memory's size is a multiple of this


class FusionMemory:
    """GPU memory to pack tensors in: one allocation, which grows, and which operations use one after the other.

    Memory that a CUDA graph was captured with belongs to the graph, which uses it at every replay. So it is never
    freed, and only used by graphs afterwards.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._memory: tuple[int, DeviceBuffer] | None = None  # with the stream it was allocated for
        self._captured: list[tuple[int, DeviceBuffer]] = []

    @property
    def nbytes(self) -> int:
        """The bytes held."""
        held = self._captured if self._memory is None else [*self._captured, self._memory]
        return sum(buffer.nbytes for _, buffer in held)

    def pointer(self, nbytes: int, stream: int) -> int:
        """Return the address of `nbytes` uninitialised bytes for the next operation on `stream`, or 0 if `nbytes` is 0.

        Raises:
            UsageError: a CUDA graph is being captured, when CUDA cannot allocate memory.
        """
        if not nbytes:
            return 0
        is_captured = self._driver.is_capturing(stream)
        if is_captured and self._captured and _serves(self._captured[-1], nbytes, stream):
            return self._captured[-1][1].pointer
        if self._memory is None or not _serves(self._memory, nbytes, stream):
            if not is_captured:
                # Freed before the larger one is allocated. It returns to its stream's pool, which reuses it only after
                # the work that is now queued on that stream.
                self._memory = None
            memory = stream, self._allocate(-(-nbytes // _GROWTH) * _GROWTH, stream, is_captured)
        else:
            memory, self._memory = self._memory, None
        if is_captured:
            self._captured.append(memory)
        else:
            self._memory = memory
        note_held(FUSION_BUFFERS, self.nbytes, self)
        return memory[1].pointer

    def _allocate(self, nbytes: int, stream: int, is_captured: bool) -> DeviceBuffer:
        try:
            return self._driver.allocate(nbytes, np.dtype(np.uint8), stream)
        except RuntimeError as error:
            if not is_captured:
                raise
            raise UsageError(
                f"to pack tensors takes {nbytes >> 20} MiB of the GPU's memory, and CUDA gives none while a graph is "
                f"recorded ({error}): carry out the same operations once before"
            ) from error


def _serves(memory: tuple[int, DeviceBuffer], nbytes: int, stream: int) -> bool:
    return memory[0] == stream and memory[1].nbytes >= nbytes
