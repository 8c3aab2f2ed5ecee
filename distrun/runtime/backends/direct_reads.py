"""Large arrays of ordinary memory, which the ranks of a host read out of each other's processes.

Nothing is staged, and three exchanges do for an array of any size: each rank reads its slice of the others' arrays, a
chunk at a time into memory that stays in cache, and combines it with its own; then it reads the others' results to
where they belong. It is done where the kernel allows it to all of the ranks, which they try once, and for arrays in
huge pages: with small ones staging is faster (see `piecewise`).

Of what a rank has read, nothing counts before an exchange to which the owner of that memory comes afterwards. So it
makes no difference what is read out of a process that ends meanwhile, or out of another one that gets its id.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

import numpy as np

from distrun.errors import JobAbortedError
from distrun.runtime import settings
from distrun.runtime.backends.base import Flat
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.reduction import Reduction
from distrun.runtime.shared_memory import peer_memory
from distrun.runtime.transport.local_ranks import LocalRanks

SMALLEST = 4 << 20
"""Bytes from which arrays are read directly: numpy asks for huge pages from here on."""
_SCRATCH = 512 << 10  # bytes of all chunks that are read before they are combined: they stay in the second-level cache
_SMALLEST_CHUNK = 128 << 10
_NONCE = struct.Struct("qq")
_GRACE = 5.0  # seconds in which the end of a process whose memory could not be read comes to light


class DirectReads:
    """The ranks of a host, as they read each other's memory. All of them call the same methods, but for `shown`."""

    def __init__(self, local_ranks: LocalRanks) -> None:
        self._local_ranks = local_ranks
        self._own = local_ranks.own
        self._size = local_ranks.size
        self._chunk = max(_SMALLEST_CHUNK, _SCRATCH // max(1, self._size - 1))
        self._processes: list[int] | None = None  # by position; empty: not allowed; None: not tried yet
        self._scratch: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []

    def shown(self, source: Flat, target: Flat) -> tuple[int, int]:
        """Return the addresses of this rank's arrays for the others to read; zeros if they should not."""
        if source.nbytes < SMALLEST or self._processes == [] or not peer_memory.is_in_huge_pages(source):
            return 0, 0
        try:  # memory of a device's driver cannot be read so
            for array in (source, target):
                peer_memory.read(os.getpid(), peer_memory.address_of(array), np.empty(1, np.uint8))
        except OSError:
            return 0, 0
        return peer_memory.address_of(source), peer_memory.address_of(target)

    def are_possible(self, what: str) -> bool:
        """Whether all of these ranks may read all others' memory. They try it at the first call."""
        if self._processes is None:
            self._processes = self._try(what)
        return bool(self._processes)

    def _try(self, what: str) -> list[int]:
        """Let each rank read a random number out of every other's memory; return the process ids if all could.

        A process that has the id of a rank in another process namespace does not have the rank's number.
        """
        nonce = os.urandom(_NONCE.size)
        memory = np.frombuffer(nonce, np.uint8)
        words = os.getpid(), peer_memory.address_of(memory), *_NONCE.unpack(nonce)
        shown = self._local_ranks.exchange(words, what)
        is_allowed = settings.current().read_peers and all(
            self._has_nonce(process, address, _NONCE.pack(*wanted)) for process, address, *wanted in shown
        )
        allowed = self._local_ranks.exchange((int(is_allowed),), what)
        return [words[0] for words in shown] if all(word for (word,) in allowed) else []

    def _has_nonce(self, process: int, address: int, wanted: bytes) -> bool:
        found = np.empty(_NONCE.size, np.uint8)
        try:
            peer_memory.read(process, address, found)
        except OSError:
            return False
        return found.tobytes() == wanted

    def allreduce(
        self, source: Flat, target: Flat, shown: Sequence[tuple[int, int]], reduction: Reduction, what: str
    ) -> None:
        """Reduce `source` into `target`, which may be the same. Each rank combines its slice.

        Args:
            shown: by position, the addresses of each rank's source and target.
        """
        count, nbytes = source.size, source.itemsize
        bounds = [count * rank // self._size for rank in range(self._size + 1)]
        step = self._chunk // nbytes
        if not self._scratch:
            self._scratch = [np.empty(self._chunk, np.uint8) for _ in range(self._size)]
        for first in range(bounds[self._own], bounds[self._own + 1], step):
            last = min(first + step, bounds[self._own + 1])
            sources = [chunk[: (last - first) * nbytes].view(source.dtype) for chunk in self._scratch]
            sources[self._own] = source[first:last]
            for peer in self._local_ranks.others:
                self._read(peer, shown[peer][0] + first * nbytes, sources[peer], what)
            reduction.combine(sources, [target[first:last]])
        self._local_ranks.exchange((), what)
        for peer in self._local_ranks.others:
            start, stop = bounds[peer], bounds[peer + 1]
            self._read(peer, shown[peer][1] + start * nbytes, target[start:stop], what)
        self._local_ranks.exchange((), what)

    def _read(self, peer: int, address: int, target: Flat, what: str) -> None:
        assert self._processes
        try:
            peer_memory.read(self._processes[peer], address, target)
        except OSError as error:
            # Most likely it has ended, which is told in better words to whoever waits for it.
            self._local_ranks.wait(lambda: False, lambda: what, waking_clock.now() + _GRACE)
            raise JobAbortedError(
                f"{what}: cannot read {target.nbytes} bytes of the memory of {self._local_ranks.describe([peer])}: "
                f"{error.strerror}; {settings.READ_PEERS}=0 has ranks stage what others read"
            ) from None
