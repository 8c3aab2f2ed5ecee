"""The state of a share in memory that outlives its server: a server that dies at any point of an update loses nothing.

The memory is a file without a name (memfd), whose descriptor the host's agent holds. The share of each optimizer is a
*block* of it. An update is made in *chunks*. The results of a chunk are first written to a scratch area. Then a mark is
set, the results are copied to their places, and the mark is cleared. A server that finds the mark set after a restart
repeats the copy, which is idempotent. The update under way and its next chunk are recorded as well: a worker without an
answer pushes the same gradient again, and the update continues with this chunk. Clocks and numbers of steps are stored
twice, and one word selects the valid copy, so they change atomically.

Only processes fail here, not the memory, so the writes before a failure are visible in program order.

A replica on another server would cost the traffic of every update, and would lose the last ones unless each update
waited for it. The chunks are small enough for the cache, so the scratch area costs one more copy.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from distrun.methods.servers.clocks import slowest
from distrun.methods.servers.rules import Array

CHUNK = 1 << 16
"""The number of elements of a chunk, such that its arrays stay in cache."""
_MAGIC = 0x6469737472756E31
_ALIGNMENT = mmap.ALLOCATIONGRANULARITY
_WORDS = 16


class _Word(IntEnum):
    """The indices of the words at the beginning of a block."""

    MAGIC = 0
    SIZE = 1
    """Bytes of the block."""
    DESCRIPTION = 2
    """Bytes of the description."""
    IS_READY = 3
    """Whether the parameters have their first values."""
    CURRENT = 4
    """Which of the two copies of the counts is valid."""
    OWNER = 5
    """The worker whose update is under way, or -1."""
    CLOCK = 6
    NEXT = 7
    """The next chunk of that update."""
    IS_MARKED = 8
    """Whether the scratch area must be copied."""
    PLACE = 9
    COUNT = 10
    """The number of elements of the chunk, or of its rows."""
    WIDTH = 11
    """The width of a row, or 0 if the chunk is contiguous."""
    AFTERWARDS = 12
    """The value of `NEXT` after the chunk has been copied."""
    OPTIMIZER = 13


class Block:
    """The state of one share."""

    def __init__(self, fd: int, offset: int, workers: int, parts: int, size: int, slots: int) -> None:
        """Open a block that `create` has made or `scan` has found, and complete an interrupted copy. Each part of the
        share has its own number of steps, and `slots` is the number of arrays of the optimizer's state.
        """
        bytes_ = int.from_bytes(os.pread(fd, 8, offset + 8 * _Word.SIZE), "little")
        self._map = mmap.mmap(fd, bytes_, offset=offset)
        self._words = np.frombuffer(self._map, np.int64, _WORDS)
        place = _WORDS * 8 + _rounded(int(self._words[_Word.DESCRIPTION]), 8)
        counts = 1 + workers + parts
        self._counts = np.frombuffer(self._map, np.int64, 2 * counts, place).reshape(2, counts)
        self._indices = np.frombuffer(self._map, np.int64, CHUNK, place := place + 16 * counts)
        self._scratch = np.frombuffer(self._map, np.float32, (1 + slots) * CHUNK, place := place + 8 * CHUNK)
        self._scratch = self._scratch.reshape(1 + slots, CHUNK)
        place += 4 * (1 + slots) * CHUNK
        self.arrays: NDArray[np.float32] = np.frombuffer(self._map, np.float32, (1 + slots) * size, place)
        """The parameters in row 0, and the arrays of the optimizer's state in the other rows."""
        self.arrays = self.arrays.reshape(1 + slots, size)
        self._workers = workers
        self._recover()

    # Counts -----------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of updates so far."""
        return int(self._counts[self._words[_Word.CURRENT]][0])

    @property
    def clocks(self) -> list[int]:
        """The number of steps whose gradients each worker has pushed."""
        clocks: list[int] = self._counts[self._words[_Word.CURRENT]][1 : 1 + self._workers].tolist()
        return clocks

    @property
    def steps(self) -> NDArray[np.int64]:
        """The number of updates of each part. Read-only."""
        steps: NDArray[np.int64] = self._counts[self._words[_Word.CURRENT]][1 + self._workers :]
        return steps

    def write_counts(self, version: int, clocks: Sequence[int], steps: NDArray[np.int64]) -> None:
        """Replace all counts atomically."""
        other = 1 - int(self._words[_Word.CURRENT])
        copy = self._counts[other]
        copy[0], copy[1 : 1 + self._workers], copy[1 + self._workers :] = version, clocks, steps
        self._words[_Word.CURRENT] = other

    def restore(self, version: int, clocks: Sequence[int], steps: NDArray[np.int64], arrays: Array) -> None:
        """Fill a new block with the state of another one."""
        self.arrays[...] = arrays
        self.write_counts(version, clocks, steps)
        self.set_ready()

    @property
    def is_ready(self) -> bool:
        """Whether the parameters have their first values."""
        return bool(self._words[_Word.IS_READY])

    def set_ready(self) -> None:
        """Record that the parameters have their first values."""
        self._words[_Word.IS_READY] = 1

    # Updates ----------------------------------------------------------------------------------------------------------

    @property
    def owner(self) -> int:
        """The worker whose update is under way, the number of workers for an update of all, or -1 for none.

        When an update is about to begin, another one is under way only if a server died in the middle of it. That one
        must be completed first.
        """
        return int(self._words[_Word.OWNER])

    def begin(self, owner: int, clock: int) -> int:
        """Begin an update, or resume it. Return the number of the first chunk that has not been written."""
        words = self._words
        if (words[_Word.OWNER], words[_Word.CLOCK]) == (owner, clock):
            return int(words[_Word.NEXT])
        # The owner is set last: a server that dies before has not begun the update.
        words[_Word.OWNER] = -1
        words[_Word.CLOCK], words[_Word.NEXT] = clock, 0
        words[_Word.OWNER] = owner
        return 0

    def write_chunk(self, number: int, place: int, results: Sequence[Array]) -> None:
        """Write the results of the chunk `number`: at most `CHUNK` contiguous elements from the element `place` on."""
        for row, result in zip(self._scratch, results, strict=False):
            row[: result.size] = result
        self._commit(place, results[0].size, 0, number + 1)

    def write_rows(self, number: int, place: int, indices: NDArray[np.int64], results: Sequence[Array]) -> None:
        """Write the results of some rows of a table, at most `CHUNK` elements in all.

        The table begins at the element `place`. The rows are not repeated, and `results` have the shape (rows, width).
        """
        rows, width = results[0].shape
        for row, result in zip(self._scratch, results, strict=False):
            row[: result.size] = result.reshape(-1)
        self._indices[:rows] = indices
        self._commit(place, rows, width, number + 1)

    def finish(self, version: int, clocks: Sequence[int], steps: NDArray[np.int64]) -> None:
        """End an update, and set the counts after it."""
        self.write_counts(version, clocks, steps)
        self._words[_Word.OWNER] = -1

    def _commit(self, place: int, count: int, width: int, afterwards: int) -> None:
        words = self._words
        words[_Word.PLACE], words[_Word.COUNT], words[_Word.WIDTH] = place, count, width
        words[_Word.AFTERWARDS] = afterwards
        words[_Word.IS_MARKED] = 1
        self._copy()

    def _copy(self) -> None:
        words = self._words
        place, count, width = int(words[_Word.PLACE]), int(words[_Word.COUNT]), int(words[_Word.WIDTH])
        for target, source in zip(self.arrays, self._scratch, strict=True):
            if width:
                rest = target[place:]
                rows = rest[: rest.size // width * width].reshape(-1, width)
                rows[self._indices[:count]] = source[: count * width].reshape(count, width)
            else:
                target[place : place + count] = source[:count]
        words[_Word.NEXT] = words[_Word.AFTERWARDS]
        words[_Word.IS_MARKED] = 0

    def _recover(self) -> None:
        """Complete the work of a process that died in the middle of it."""
        words, owner = self._words, self.owner
        if words[_Word.IS_MARKED]:
            self._copy()
        if owner >= 0:
            clock = self.clocks[owner] if owner < self._workers else slowest(self.clocks)
            if clock > words[_Word.CLOCK]:
                words[_Word.OWNER] = -1


def create(fd: int, optimizer: int, description: bytes, workers: int, parts: int, size: int, slots: int) -> Block:
    """Add a block to a memory, and return it."""
    offset = _rounded(os.fstat(fd).st_size, _ALIGNMENT)
    bytes_ = _WORDS * 8 + _rounded(len(description), 8) + 16 * (1 + workers + parts)
    bytes_ += 8 * CHUNK + 4 * (1 + slots) * (CHUNK + size)
    end = _rounded(offset + bytes_, _ALIGNMENT)
    os.ftruncate(fd, end)
    words = np.zeros(_WORDS, np.int64)
    words[_Word.SIZE], words[_Word.DESCRIPTION], words[_Word.OWNER] = end - offset, len(description), -1
    words[_Word.OPTIMIZER] = optimizer
    os.pwrite(fd, words.tobytes() + description, offset)
    os.pwrite(fd, _MAGIC.to_bytes(8, "little"), offset)  # last: a block without it is incomplete and ignored
    return Block(fd, offset, workers, parts, size, slots)


def scan(fd: int) -> list[tuple[int, int, bytes]]:
    """Return the blocks of a memory, as (offset, optimizer, description). Drop an incomplete last one."""
    found = []
    offset, end = 0, os.fstat(fd).st_size
    while offset < end:
        words = np.frombuffer(os.pread(fd, _WORDS * 8, offset), np.int64)
        if words[_Word.MAGIC] != _MAGIC:
            os.ftruncate(fd, offset)  # its server died before it was complete
            break
        description = os.pread(fd, int(words[_Word.DESCRIPTION]), offset + _WORDS * 8)
        found.append((offset, int(words[_Word.OPTIMIZER]), description))
        offset += int(words[_Word.SIZE])
    return found


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
