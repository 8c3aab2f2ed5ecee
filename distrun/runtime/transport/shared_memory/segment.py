"""Segments: the memory that each rank shares with the other ranks of its host.

A segment is one memfd: memory without a name in any file system, so nothing is left behind however a rank ends, and no
/dev/shm limit applies. It is larger than the machine's memory but sparse: a page exists once it has been touched. Local
peers get its descriptor at the rendezvous. After this, they can access anything that the owner allocates in it by its
offset.

A process maps a segment in *windows*, each when it is first used, since address space may be limited (`ulimit -v`).
Each area is a window, and so are parts of the heap, each twice as large as the one before. An array lies in one window.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import threading
import weakref
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distrun.errors import BootstrapError
from distrun.host.limits import limit_on

PAGE = 4096
LINE = 8  # 64-bit words in a cache line
RING = 1 << 20  # bytes of a message ring
STAGE = 1 << 20  # bytes of each of the two staging buffers
REASON = PAGE  # bytes for the text of why the owner left or failed
_BYTE = np.dtype(np.uint8)
AREAS = 1024  # subgroups of the host's ranks that there may be: an area takes no memory until it is used
WINDOW = 64 << 20  # bytes of the heap's first window

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
    """Return the bytes of each segment of this host: so many that an array can be as large as the memory, as far as the
    limit on files allows it and a process can map all segments.

    Raises:
        BootstrapError: the limit on the size of files is too low.
    """
    memory = min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), (16 << 40) // local_size)
    heap = Layout(local_size).heap
    largest = WINDOW
    while largest < memory:
        largest *= 2
    wanted, limit = heap + 2 * largest - WINDOW, limit_on("f")
    if limit.value < heap + WINDOW:
        raise BootstrapError(f"ranks share memory in files of {heap + WINDOW} bytes and more, and {limit}")
    return min(wanted, limit.value // PAGE * PAGE)


@lru_cache
def _windows(local_size: int, size: int) -> list[int]:
    """Return the offsets where windows of a segment begin and, at last, its size."""
    layout = Layout(local_size)
    starts = [0, *map(layout.area, range(AREAS)), layout.heap]
    while starts[-1] < size:
        starts.append(layout.heap + 2 * (starts[-1] - layout.heap) + WINDOW)
    return [*starts[: bisect.bisect_left(starts, size)], size]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _map(fd: int, offset: int, size: int) -> NDArray[np.uint8]:
    """Map a part of a file until the last view of the result is gone. Unlike the module `mmap`, keep no descriptor.

    Raises:
        OSError: it cannot be mapped.
    """
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, offset)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, size).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


class _Window(NamedTuple):
    """A part of a segment that is mapped by itself."""

    memory: NDArray[np.uint8]
    start: int
    """The offset of its first byte."""
    stop: int


class Segment:
    """A segment, as far as it is mapped into this process: its own or a peer's."""

    def __init__(self, fd: int, size: int, local_size: int) -> None:
        """Map the first window. `fd` may be closed afterwards.

        Raises:
            BootstrapError: it cannot be mapped.
        """
        self.layout = Layout(local_size)
        self.size = size
        self.windows = _windows(local_size, size)
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd).atexit = False
        self._lock = threading.Lock()
        self._mapped: dict[int, _Window] = {}  # by number
        self._heap: list[tuple[int, int, int]] = []  # windows of the heap: first and last address, offset
        try:
            self._last = first = self._window(0)  # the window that was used last
        except MemoryError as error:
            raise BootstrapError(str(error)) from None
        self.buffer = self.memory(0, first.stop)
        """The first window, which ends where the areas begin."""
        self.words = self.buffer[: self.layout.stage].cast("q")

    def _window(self, number: int) -> _Window:
        """Return a window, and map it if it is not yet.

        Raises:
            MemoryError: it cannot be mapped.
        """
        with self._lock:  # one mapping per window, so that `offset_of` knows all arrays
            if number not in self._mapped:
                start, stop = self.windows[number : number + 2]
                try:
                    memory = _map(self._fd, start, stop - start)
                except OSError as error:
                    raise MemoryError(
                        f"cannot map {stop - start} bytes of shared memory ({error.strerror}): {limit_on('v')}"
                    ) from None
                self._mapped[number] = _Window(memory, start, stop)
                if start >= self.layout.heap:
                    address = memory.__array_interface__["data"][0]
                    self._heap.append((address, address + memory.size, start))
            return self._mapped[number]

    def view(self, offset: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a flat view of `count` elements of `dtype` at byte `offset`.

        Raises:
            MemoryError: the memory cannot be mapped.
        """
        memory, start, stop = self._last
        if not start <= offset < stop:
            number = bisect.bisect(self.windows, offset) - 1
            self._last = memory, start, stop = self._mapped.get(number) or self._window(number)
        offset -= start
        return memory[offset : offset + count * dtype.itemsize].view(dtype)

    def memory(self, start: int, stop: int) -> memoryview:
        """Return the bytes from offset `start` to `stop`, which lie in one window."""
        return self.view(start, stop - start, _BYTE).data

    def offset_of(self, array: NDArray[Any]) -> int:
        """Return the byte offset of a contiguous array if it lies in this segment's heap, else -1."""
        address: int = array.__array_interface__["data"][0]
        for start, stop, offset in self._heap:
            if start <= address and address + array.nbytes <= stop:
                return offset + address - start
        return -1

    def free(self, offset: int, nbytes: int) -> None:
        """Return whole pages of one window to the system. Afterwards they read as zeros."""
        memory = self.view(offset, nbytes, _BYTE)
        _libc.madvise(memory.__array_interface__["data"][0], nbytes, mmap.MADV_REMOVE)

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
    buffers. Adjacent free extents of a window are merged.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        starts = segment.windows[bisect.bisect_left(segment.windows, segment.layout.heap) :]
        self._starts = frozenset(starts)
        self._free: list[tuple[int, int]] = [(start, stop - start) for start, stop in pairwise(starts)]
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
        try:
            owner = _Extent(self._segment.view(offset, size, _BYTE))
        except MemoryError:
            self._returned.append((offset, size))
            raise
        # The garbage collector may run the finaliser in any thread and at any line, even in one that holds the lock. So
        # the finaliser only appends to a list, which is atomic, and `_take` frees the extents.
        weakref.finalize(owner, self._returned.append, (offset, size)).atexit = False
        return np.asarray(owner)[: count * dtype.itemsize].view(dtype)

    @property
    def used(self) -> int:
        """The bytes of the arrays that are in use, in whole pages."""
        with self._lock:
            self._tidy_up()
            return self._segment.size - self._segment.layout.heap - sum(size for _, size in self._free)

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
        raise MemoryError(f"no {size} contiguous bytes left in this rank's shared memory{limit_on('f').hint}")

    def _release(self, offset: int, size: int) -> None:
        index = bisect.bisect(self._free, (offset, 0))
        end = offset + size
        if index < len(self._free) and self._free[index][0] == end and end not in self._starts:
            size += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == offset and offset not in self._starts:
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
