"""Segments: the memory that each rank shares with the other ranks of its host.

A segment is one memfd: memory without a name in any file system, so nothing is left behind however a rank ends, and no
/dev/shm limit applies. It is as large as the machine's memory but sparse: a page exists once it has been touched. All
local peers map all of it at the rendezvous. After this, they can access anything that the owner allocates in it by its
offset.
"""

from __future__ import annotations

import bisect
import mmap
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import BootstrapError

PAGE = 4096
LINE = 8  # 64-bit words in a cache line
RING = 1 << 20  # bytes of a message ring
STAGE = 1 << 20  # bytes of each of the two staging buffers
REASON = PAGE  # bytes for the text of why the owner left or failed
AREAS = 1024  # subgroups of the host's ranks that there may be: an area takes no memory until it is used

RUNNING, LEFT, FAILED = 0, 1, 2

# Words of the header. Each has a cache line of its own, so that a write to one does not slow down reads of another.
STATE = 0 * LINE
SLEEPING = 1 * LINE
SERVICE_SLEEPING = 2 * LINE
EPOCH = 3 * LINE
WANTED = 4 * LINE  # 1: a peer waits for something that the owner has submitted or may yet submit


@dataclass(frozen=True)
class Layout:
    """The offsets, in bytes, of the parts of a segment on a host with `local_size` ranks."""

    local_size: int

    @property
    def line_words(self) -> int:
        """The number of words that a rank may show its peers in one exchange."""
        return 16 + 2 * self.local_size

    @property
    def lines(self) -> int:
        """The offset of the two lines of words for exchanges, which are used in turn."""
        return PAGE

    @property
    def reason(self) -> int:
        return _pages(self.lines + 2 * 8 * self.line_words)

    @property
    def stage(self) -> int:
        return self.reason + REASON

    def ring(self, index: int) -> int:
        """Return the offset of a message ring.

        Ring 0 is from the owner to its coordinator. Ring 1 + r, in the coordinator's segment, is from it to rank r.
        """
        return self.stage + 2 * STAGE + index * (RING + PAGE)

    def area(self, index: int) -> int:
        """Return the offset of an area, the memory for the exchanges of a subgroup.

        It begins with a word for the owner's epoch, on a cache line of its own, and two lines of words. Two staging
        buffers follow.
        """
        return self.ring(1 + self.local_size) + index * self.area_size

    @property
    def area_words(self) -> int:
        """The bytes of an area's words, up to its two staging buffers."""
        return _pages(8 * (LINE + 2 * self.line_words))

    @property
    def area_size(self) -> int:
        return self.area_words + 2 * STAGE

    @property
    def heap(self) -> int:
        return self.area(AREAS)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def segment_size(local_size: int) -> int:
    """Return the bytes of each segment of this host: its memory size, limited so that a process can map all
    segments."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Layout(local_size).heap + max(1 << 30, _pages(min(memory, (32 << 40) // local_size)))


class Segment:
    """A segment, mapped into this process: its own or a peer's."""

    def __init__(self, fd: int, size: int, local_size: int) -> None:
        self.layout = Layout(local_size)
        try:
            self._map = mmap.mmap(fd, size)
        except OSError as error:
            raise BootstrapError(
                f"cannot map {size} bytes of shared memory ({error}): each rank maps that much address space for "
                "every rank of its host, of which it uses little; raise the limit on it (ulimit -v unlimited)"
            ) from None
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.buffer = memoryview(self._map)
        self.words = self.buffer[: self.layout.stage].cast("q")
        self.address: int = self.bytes.__array_interface__["data"][0]

    def view(self, offset: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a flat view of `count` elements of `dtype` at byte `offset`."""
        return self.bytes[offset : offset + count * dtype.itemsize].view(dtype)

    def offset_of(self, array: NDArray[Any]) -> int:
        """Return the byte offset of a contiguous array if it lies in this segment's heap, else -1."""
        offset: int = array.__array_interface__["data"][0] - self.address
        inside = self.layout.heap <= offset and offset + array.nbytes <= self.bytes.size
        return offset if inside else -1

    def free(self, offset: int, nbytes: int) -> None:
        """Return whole pages to the system. Afterwards they read as zeros."""
        self._map.madvise(mmap.MADV_REMOVE, offset, nbytes)

    @property
    def reason(self) -> str:
        """Why the owner left or failed. Valid once its state is `LEFT` or `FAILED`."""
        raw = bytes(self.buffer[self.layout.reason : self.layout.reason + REASON])
        return raw.split(b"\0", 1)[0].decode(errors="replace")

    @reason.setter
    def reason(self, text: str) -> None:
        raw = text.encode()[: REASON - 1] + b"\0"
        self.buffer[self.layout.reason : self.layout.reason + len(raw)] = raw


def new_segment_fd(size: int) -> int:
    """Return a new sparse memfd of `size` bytes, closed on exec."""
    fd = os.memfd_create("distrun", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


class Heap:
    """Allocates arrays in the owner's segment. The memory of an array is free again when the last view of it is gone.

    It is a first-fit allocator over a list of free extents, sorted by offset, in whole pages: a job has a few large
    buffers. Adjacent free extents are merged.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._free: list[tuple[int, int]] = [(segment.layout.heap, segment.bytes.size - segment.layout.heap)]
        self._returned: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self.is_ours = True
        """False in a forked child, which must not touch the parent's heap: its arrays are in ordinary memory."""

    def empty(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a flat, uninitialised array of `count` elements that the local peers can see.

        Raises:
            MemoryError: the segment has no free extent of this size.
        """
        if not self.is_ours:
            return np.empty(count, dtype)
        size = _pages(max(1, count * dtype.itemsize))
        with self._lock:
            offset = self._take(size)
        owner = _Extent(self._segment.bytes[offset : offset + size])
        # The garbage collector may run the finaliser in any thread and at any line, even in one that holds the lock. So
        # the finaliser only appends to a list, which is atomic, and `_take` frees the extents.
        weakref.finalize(owner, self._returned.append, (offset, size)).atexit = False
        return np.asarray(owner)[: count * dtype.itemsize].view(dtype)

    @property
    def used(self) -> int:
        """The bytes of the arrays that are in use, in whole pages."""
        with self._lock:
            self._tidy_up()
            return self._segment.bytes.size - self._segment.layout.heap - sum(size for _, size in self._free)

    def _tidy_up(self) -> None:
        while self._returned:
            self._release(*self._returned.pop())

    def _take(self, size: int) -> int:
        self._tidy_up()
        for index, (offset, free) in enumerate(self._free):
            if free >= size:
                if free == size:
                    del self._free[index]
                else:
                    self._free[index] = offset + size, free - size
                return offset
        raise MemoryError(f"no {size} contiguous bytes left in this rank's shared memory")

    def _release(self, offset: int, size: int) -> None:
        index = bisect.bisect(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == offset:
            offset, before = self._free.pop(index - 1)
            size += before
            index -= 1
        self._free.insert(index, (offset, size))


class _Extent:
    """Owns an extent of the heap: numpy keeps it alive as the base of every view of it."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = {
            "data": (memory.__array_interface__["data"][0], False),
            "shape": memory.shape,
            "typestr": "|u1",
            "version": 3,
        }
        self._memory = memory
