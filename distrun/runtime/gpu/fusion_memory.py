"""Fusion memory: where tensors on the GPU are packed, so that they are reduced as one; and where their elements lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from distrun.errors import UsageError
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.memory import FUSION_BUFFERS, note

_SLOT = 16  # bytes; what is packed begins at multiples of it, as fast copies need
_GROWTH = 2 << 20  # bytes; the memory's size is a multiple of it


class Run(NamedTuple):
    """Consecutive elements in memory."""

    pointer: int
    size: int


def runs(buffers: Iterable[DeviceBuffer], sizes: Iterable[int]) -> Iterator[list[Run]]:
    """Where the elements of each tensor lie, in order; `sizes`, all > 0, are those of the tensors, and `buffers`, taken as one
    long array, hold them one after the other."""
    rest = iter(buffers)
    pointer = left = itemsize = 0
    for size in sizes:
        found: list[Run] = []
        while size:
            while not left:
                buffer = next(rest)
                pointer, left, itemsize = buffer.pointer, buffer.size, buffer.itemsize
            count = min(size, left)
            if found and found[-1].pointer + found[-1].size * itemsize == pointer:
                found[-1] = Run(found[-1].pointer, found[-1].size + count)
            else:
                found.append(Run(pointer, count))
            pointer += count * itemsize
            left -= count
            size -= count
        yield found


class Spot(NamedTuple):
    """A place in memory: an address, or an offset in the fusion memory."""

    at: int
    is_offset: bool = False

    def pointer(self, base: int) -> int:
        """The address, where the fusion memory begins at `base`."""
        return base + self.at if self.is_offset else self.at


class Layout:
    """Slots in the fusion memory."""

    def __init__(self) -> None:
        self.nbytes = 0

    def add(self, nbytes: int) -> Spot:
        """One more slot."""
        spot = Spot(self.nbytes, True)
        self.nbytes += -(-nbytes // _SLOT) * _SLOT
        return spot


class FusionMemory:
    """GPU memory in which tensors are packed: one allocation, which grows, used by one operation after the other.

    What a CUDA graph was recorded with belongs to the graph, which uses it whenever it is replayed: it is never freed, and used
    by nothing but graphs from then on.
    """

    def __init__(self, driver: Driver) -> None:
        self._progress_thread = driver
        self._memory: tuple[int, DeviceBuffer] | None = None  # with the stream it belongs to
        self._recorded: list[tuple[int, DeviceBuffer]] = []

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        held = self._recorded if self._memory is None else [*self._recorded, self._memory]
        return sum(buffer.nbytes for _, buffer in held)

    def pointer(self, nbytes: int, stream: int) -> int:
        """So many bytes, for what is queued on `stream` next; their contents are anything. 0 where none are needed.

        Raises:
            UsageError: a CUDA graph is being recorded, and no memory is to be had meanwhile.
        """
        if not nbytes:
            return 0
        is_recorded = self._progress_thread.is_capturing(stream)
        if is_recorded and self._recorded and _serves(self._recorded[-1], nbytes, stream):
            return self._recorded[-1][1].pointer
        if self._memory is None or not _serves(self._memory, nbytes, stream):
            if not is_recorded:
                self._memory = None  # back to its stream's pool, where it is used again behind what is queued
            memory = stream, self._allocate(-(-nbytes // _GROWTH) * _GROWTH, stream, is_recorded)
        else:
            memory, self._memory = self._memory, None
        if is_recorded:
            self._recorded.append(memory)
        else:
            self._memory = memory
        note(FUSION_BUFFERS, self.nbytes, self)
        return memory[1].pointer

    def _allocate(self, nbytes: int, stream: int, is_recorded: bool) -> DeviceBuffer:
        try:
            return self._progress_thread.allocate(nbytes, np.dtype(np.uint8), stream)
        except RuntimeError as error:
            if not is_recorded:
                raise
            raise UsageError(
                f"to pack tensors takes {nbytes >> 20} MiB of the GPU's memory, and CUDA gives none while a graph is recorded "
                f"({error}): carry out the same operations once before"
            ) from error


def _serves(memory: tuple[int, DeviceBuffer], nbytes: int, stream: int) -> bool:
    return memory[0] == stream and memory[1].nbytes >= nbytes
