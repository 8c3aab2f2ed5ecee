"""Collectives through MPI (mpi4py), for ranks that mpirun or srun started.

MPI moves the bytes and does nothing else; the arithmetic is that of `Reduction`, in rank order. MPI's own allreduce may
combine in another order on every rank, and on x86 the sum of two NaNs is one or the other depending on that order; it knows
neither bfloat16 nor a rounding towards zero. So each rank combines its slice of everybody's array, as in shared memory, and
a job gives the same bits whichever backend it uses. Over the wire that is the least traffic a reduction can have.

Nothing here blocks inside MPI. A blocking call burns a core while it waits and never returns when a neighbour is dead; we
post non-blocking ones, look at them now and then, and meanwhile sleep where the neighbours' bells and deaths wake us.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distrun.errors import JobAbortedError, StallError, UsageError
from distrun.runtime.backends.base import Backend, Flat
from distrun.runtime.neighbourhood import FOREVER, Neighbourhood
from distrun.runtime.reduction import Reduction
from distrun.runtime.segment import FAILED, STATE
from distrun.tensor_fusion.packing import pack, unpack

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("distrun")

SMALL = 64 << 10
"""Bytes a rank receives up to which everybody gets everything and combines it for itself: one message instead of two."""
PIECE = 16 << 20
"""Bytes of a large reduction that are under way at a time: enough to fill the wire, and the memory it takes is reused."""
LARGEST_MESSAGE = 1 << 30
"""Bytes in one MPI message; counts in MPI before 4.0 have 32 bits, so what is larger goes in several."""
SHORTEST_NAP, LONGEST_NAP = 0.0005, 0.01
"""Seconds between two looks at requests under way. MPI makes progress only while somebody looks."""
LAST_WORDS = 0.2
"""Seconds during which what a rank sent before it left or died may still come out of MPI's queues."""

_abandoned: list[list[MPI.Request]] = []
"""Requests that will never be complete, kept because MPI may write into their buffers as long as we live."""


class MPIBackend(Backend):
    """The ranks of a neighbourhood, which are also the ranks of MPI_COMM_WORLD."""

    name = "MPI"

    def __init__(self, neighbourhood: Neighbourhood) -> None:
        """Collective: all ranks construct it.

        Raises:
            UsageError: these ranks were not started by an MPI launcher, or MPI does not support threads.
        """
        from mpi4py import MPI

        self._hood = neighbourhood
        self.rank = neighbourhood.own
        self.size = neighbourhood.size
        self._testall = MPI.Request.Testall
        self._byte = MPI.BYTE
        self._long = MPI.INT64_T
        self._error = MPI.Exception
        self._check(MPI.COMM_WORLD, MPI.Query_thread() == MPI.THREAD_MULTIPLE)
        self._comm, request = MPI.COMM_WORLD.Idup()  # ours alone: the script may use MPI as well
        self._complete([request], "init()")

    def _check(self, world: MPI.Intracomm, may_use_threads: bool) -> None:
        if (world.rank, world.size) != (self._hood.ranks[self.rank], self.size):
            raise UsageError(
                f"DISTRUN_BACKEND=mpi: to MPI this process is rank {world.rank} of {world.size}, to the job it is rank "
                f"{self._hood.ranks[self.rank]} of {self.size}: start the script with mpirun or srun (and with the MPI that "
                "mpi4py finds), or unset DISTRUN_BACKEND"
            )
        if not may_use_threads:
            raise UsageError(
                "DISTRUN_BACKEND=mpi: MPI was initialised without MPI_THREAD_MULTIPLE, and the engine has a thread of its own: "
                "leave mpi4py.rc.thread_level as it is, or unset DISTRUN_BACKEND"
            )

    # Reductions -----------------------------------------------------------------------------------------------------

    def allreduce(self, inputs: Sequence[Flat], outputs: Sequence[Flat], reduction: Reduction, what: str) -> None:
        count = sum(part.size for part in inputs)
        source = inputs[0] if len(inputs) == 1 else np.empty(count, inputs[0].dtype)
        if len(inputs) > 1:
            pack(inputs, source)
        target = outputs[0] if len(outputs) == 1 else source if len(inputs) > 1 else np.empty_like(source)
        if source.nbytes * (self.size - 1) <= SMALL:
            self._allreduce_small(source, target, reduction, what)
        else:
            piece = PIECE // source.itemsize
            for start in range(0, count, piece):
                self._allreduce_piece(source[start : start + piece], target[start : start + piece], reduction, what)
        if len(outputs) > 1:
            unpack(target, outputs)

    def _allreduce_small(self, source: Flat, target: Flat, reduction: Reduction, what: str) -> None:
        everything = np.empty(self.size * source.size, source.dtype)
        request = self._comm.Iallgather(self._bytes(source), self._bytes(everything))
        self._complete([request], what)
        reduction.combine(list(everything.reshape(self.size, source.size)), [target])

    def _allreduce_piece(self, source: Flat, target: Flat, reduction: Reduction, what: str) -> None:
        """Combine a slice of everybody's source, then give it to everybody. `target` may be `source`."""
        stops = [source.size * (rank + 1) // self.size for rank in range(self.size)]
        slices = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        mine = target[slices[self.rank]]
        self._reduce([source[part] for part in slices], mine, reduction, what)
        self._transfer([mine] * self.size, [target[part] for part in slices], what)

    def reducescatter(self, array: Flat, counts: Sequence[int], reduction: Reduction, what: str) -> Flat:
        output = np.empty(counts[self.rank], array.dtype)
        self._reduce(_cut(array, counts), output, reduction, what)
        return output

    def _reduce(self, parts: Sequence[Flat], output: Flat, reduction: Reduction, what: str) -> None:
        """Combine into `output` what each rank has as its part number `self.rank`."""
        own = parts[self.rank]
        received = list(self._scratch(self.size * own.nbytes).view(own.dtype).reshape(self.size, own.size))
        received[self.rank] = own
        self._transfer(parts, received, what)
        if own.size:
            reduction.combine(received, [output])

    def _scratch(self, nbytes: int) -> Flat:
        return self._kept_scratch[:nbytes] if nbytes <= PIECE + 4096 else np.empty(nbytes, np.uint8)

    @functools.cached_property
    def _kept_scratch(self) -> Flat:
        return np.empty(PIECE + 4096, np.uint8)  # a rank's share is rounded up, by an element per rank at most

    # Copies ---------------------------------------------------------------------------------------------------------

    def allgather(self, array: Flat, what: str) -> tuple[Flat, list[int]]:
        shown = np.empty(self.size, np.int64)
        request = self._comm.Iallgather([np.array([array.size], np.int64), self._long], [shown, self._long])
        self._complete([request], what)
        counts = [int(count) for count in shown]
        output = np.empty(sum(counts), array.dtype)
        parts = _cut(output, counts)
        parts[self.rank][:] = array
        self._transfer([array] * self.size, parts, what)
        return output, counts

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        self._complete((self._comm.Ibcast([piece, self._byte], root) for piece in _pieces(array)), what)

    def alltoall(self, array: Flat, splits: Sequence[int], what: str) -> tuple[Flat, list[int]]:
        shown = np.empty(self.size, np.int64)
        request = self._comm.Ialltoall([np.array(splits, np.int64), self._long], [shown, self._long])
        self._complete([request], what)
        counts = [int(count) for count in shown]
        output = np.empty(sum(counts), array.dtype)
        sent, received = _cut(array, splits), _cut(output, counts)
        received[self.rank][:] = sent[self.rank]
        self._transfer(sent, received, what)
        return output, counts

    def barrier(self, what: str) -> None:
        self._complete([self._comm.Ibarrier()], what)

    # Moving and waiting ---------------------------------------------------------------------------------------------

    def _bytes(self, array: Flat) -> list[Any]:
        return [array.view(np.uint8), self._byte]

    def _transfer(self, sent: Sequence[Flat], received: Sequence[Flat], what: str) -> None:
        """Send each other rank its array and receive one from it; the sizes are known on both sides.

        Our own places in the lists are skipped. Messages between two ranks arrive in the order in which they were sent, so
        one tag is enough.
        """
        self._complete(self._messages(sent, received), what)

    def _messages(self, sent: Sequence[Flat], received: Sequence[Flat]) -> Iterator[MPI.Request]:
        others = [
            (self.rank + offset) % self.size for offset in range(1, self.size)
        ]  # not everybody to rank 0 at first
        for rank in others:
            for piece in _pieces(received[rank]):
                yield self._comm.Irecv([piece, self._byte], rank)
        for rank in others:
            for piece in _pieces(sent[rank]):
                yield self._comm.Isend([piece, self._byte], rank)

    def _complete(self, posting: Iterable[MPI.Request], what: str) -> None:
        """Post requests and wait until all of them are complete.

        Raises:
            JobAbortedError: a neighbour ended, left or failed before they were.
            StallError: they were not within the stall timeout.
        """
        requests: list[MPI.Request] = []
        try:
            for request in posting:
                requests.append(request)  # one by one: if posting one fails, the ones before it are known
            if not self._testall(requests):
                self._wake_others()
                self._wait(requests, what)
            self._wake_others()
        except BaseException as error:
            _abandoned.append(requests)
            _abort_at_exit()
            if isinstance(error, self._error):
                raise JobAbortedError(f"{what}: MPI reports: {error}") from error
            raise

    def _wake_others(self) -> None:
        """MPI tells nobody that something has come; our bells do, to those who sleep."""
        for index in self._hood.others:
            self._hood.bells[index].ring()

    def _wait(self, requests: list[MPI.Request], what: str) -> None:
        started = time.monotonic()
        patience = self._hood.patience
        limit = patience.timeout or float("inf")
        next_warning = patience.warning or float("inf")
        nap = SHORTEST_NAP
        while not self._look(requests, what, nap):
            nap = min(LONGEST_NAP, nap * 1.5)
            waited = time.monotonic() - started
            if waited >= limit:
                raise StallError(f"gave up after {waited:.0f} s: {self._waiting_for(what)}")
            if waited >= next_warning:
                log.warning("waiting for %.0f s: %s", waited, self._waiting_for(what))
                next_warning *= 2

    def _look(self, requests: list[MPI.Request], what: str, nap: float) -> bool:
        """Sleep for `nap` seconds at most; whether the requests are complete."""

        def ready() -> bool:
            return bool(self._testall(requests))

        try:
            return self._hood.wait(ready, lambda: self._waiting_for(what), time.monotonic() + nap, FOREVER)
        except JobAbortedError:
            # Somebody is gone, but may have done all that was asked of it before.
            deadline = time.monotonic() + LAST_WORDS
            while not ready():
                if time.monotonic() > deadline:
                    raise
                time.sleep(SHORTEST_NAP)
            return True

    def _waiting_for(self, what: str) -> str:
        return f"{what}, which has begun and waits in MPI for one of {self._hood.describe(self._hood.others)}"

    def close(self) -> None:
        """Let go of the communicator, or, where the job has failed, see to it that this process can end.

        A rank that left before others failed does wait for them in MPI_Finalize, so that it does not cut off their stories.
        """
        states = [segment.words[STATE] for segment in self._hood.segments]
        if states[self.rank] == FAILED or _abandoned:
            _abort_at_exit()
        elif FAILED not in states:
            self._comm.Free()


def _abort_at_exit() -> None:
    """Let this process end though the job has failed.

    mpi4py finalises MPI when the interpreter ends, and MPI_Finalize waits for all ranks, also for dead ones. So a rank on
    which the job has failed aborts MPI instead, which is as late: its script has told its story and run its exit handlers.
    """
    from mpi4py.run import set_abort_status

    set_abort_status(1)


def _cut(array: Flat, counts: Sequence[int]) -> list[Flat]:
    parts = []
    start = 0
    for count in counts:
        parts.append(array[start : start + count])
        start += count
    return parts


def _pieces(array: Flat) -> Iterator[Flat]:
    """The array's bytes, in as many messages as it takes; none for an empty one."""
    raw = array.view(np.uint8)
    for start in range(0, raw.size, LARGEST_MESSAGE):
        yield raw[start : start + LARGEST_MESSAGE]
