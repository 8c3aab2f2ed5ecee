"""Collectives through MPI (mpi4py), for ranks that mpirun or srun started.

MPI only moves the bytes. `Reduction` does the arithmetic, in rank order. MPI's own allreduce may combine in another
order on every rank, and on x86 the sum of two NaNs is one or the other depending on the order. MPI supports neither
bfloat16 nor rounding towards zero. So each rank combines its slice of every rank's array, as in shared memory, and a
job gives the same bits with either backend. No reduction can have less traffic on the wire.

Nothing here blocks inside MPI. `distrun.runtime.transport.mpi.requests` describes how to wait instead.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distrun.runtime.backends.base import Backend, Flat, result_array, source_and_target, split
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Reduction
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.mpi.requests import Requests
from distrun.tensor_fusion.packing import unpack

if TYPE_CHECKING:
    from mpi4py import MPI

ONE_STEP_LIMIT = 64 << 10
"""The most bytes that a rank receives in one step: every rank is sent everything and combines it for itself, which
takes one message instead of two."""
PIECE = 16 << 20
"""Bytes of a large reduction that are on the wire at a time: enough to keep it busy. The receive buffer is reused."""


class MPIBackend(Backend):
    """The backend of the ranks of a job's only host, or of some of them."""

    name = "MPI"

    def __init__(self, local_ranks: LocalRanks, requests: Requests) -> None:
        """`requests` are on a communicator whose rank numbers are the positions in `local_ranks`."""
        from mpi4py import MPI

        self._local_ranks = local_ranks
        self.rank = local_ranks.own
        self.size = local_ranks.size
        self._byte = MPI.BYTE
        self._long = MPI.INT64_T
        self._requests = requests
        self._comm = requests.comm

    # Reductions -----------------------------------------------------------------------------------------------------

    def allreduce(
        self,
        inputs: Sequence[Flat],
        outputs: Sequence[Flat],
        reduction: Reduction,
        what: str,
        feedback: Feedback | None = None,
    ) -> None:
        source, target = source_and_target(inputs, outputs)
        if source.nbytes * (self.size - 1) <= ONE_STEP_LIMIT:
            self._allreduce_in_one_step(source, target, reduction, what)
        else:
            piece = PIECE // source.itemsize
            for start in range(0, source.size, piece):
                self._allreduce_piece(source[start : start + piece], target[start : start + piece], reduction, what)
        if len(outputs) > 1:
            unpack(target, outputs)

    def _allreduce_in_one_step(self, source: Flat, target: Flat, reduction: Reduction, what: str) -> None:
        everything = np.empty(self.size * source.size, source.dtype)
        request = self._comm.Iallgather(self._bytes(source), self._bytes(everything))
        self._complete([request], what)
        reduction.combine(list(everything.reshape(self.size, source.size)), [target])

    def _allreduce_piece(self, source: Flat, target: Flat, reduction: Reduction, what: str) -> None:
        """Reduce `source` into `target`, which may be the same: each rank combines its slice, and sends it to all."""
        stops = [source.size * (rank + 1) // self.size for rank in range(self.size)]
        slices = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        mine = target[slices[self.rank]]
        self._reduce([source[part] for part in slices], mine, reduction, what)
        self._transfer([mine] * self.size, [target[part] for part in slices], what)

    def reducescatter(
        self, array: Flat, counts: Sequence[int], reduction: Reduction, what: str, room: Flat | None = None
    ) -> Flat:
        output = result_array(room, counts[self.rank], array.dtype)
        self._reduce(split(array, counts), output, reduction, what)
        return output

    def _reduce(self, parts: Sequence[Flat], output: Flat, reduction: Reduction, what: str) -> None:
        """Combine part `self.rank` of every rank's `parts` into `output`, and send the other ranks their parts."""
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
        # A rank's slice is rounded up to whole elements, which adds less than one element for each rank.
        return np.empty(PIECE + 4096, np.uint8)

    # Copies ---------------------------------------------------------------------------------------------------------

    def allgather(self, array: Flat, what: str, room: Flat | None = None) -> tuple[Flat, list[int]]:
        shown = np.empty(self.size, np.int64)
        request = self._comm.Iallgather([np.array([array.size], np.int64), self._long], [shown, self._long])
        self._complete([request], what)
        counts = [int(count) for count in shown]
        output = result_array(room, sum(counts), array.dtype)
        parts = split(output, counts)
        parts[self.rank][:] = array
        self._transfer([array] * self.size, parts, what)
        return output, counts

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        self._complete((self._comm.Ibcast([piece, self._byte], root) for piece in self._requests.pieces(array)), what)

    def alltoall(self, array: Flat, splits: Sequence[int], what: str) -> tuple[Flat, list[int]]:
        shown = np.empty(self.size, np.int64)
        request = self._comm.Ialltoall([np.array(splits, np.int64), self._long], [shown, self._long])
        self._complete([request], what)
        counts = [int(count) for count in shown]
        output = np.empty(sum(counts), array.dtype)
        sent, received = split(array, splits), split(output, counts)
        received[self.rank][:] = sent[self.rank]
        self._transfer(sent, received, what)
        return output, counts

    def barrier(self, what: str) -> None:
        self._complete([self._comm.Ibarrier()], what)

    # Moving and waiting ---------------------------------------------------------------------------------------------

    def _bytes(self, array: Flat) -> list[Any]:
        return [array.view(np.uint8), self._byte]

    def _transfer(self, sent: Sequence[Flat], received: Sequence[Flat], what: str) -> None:
        """Send `sent[rank]` to each other rank and receive `received[rank]` from it. Both sides know the sizes.

        The places of this rank in the lists are skipped. Messages between two ranks arrive in the order in which they
        were sent, so one tag is enough.
        """
        self._complete(self._messages(sent, received), what)

    def _messages(self, sent: Sequence[Flat], received: Sequence[Flat]) -> Iterator[MPI.Request]:
        # Each rank begins with the one after it, so that not all send to rank 0 first.
        others = [(self.rank + offset) % self.size for offset in range(1, self.size)]
        for rank in others:
            yield from self._requests.receive(received[rank], rank)
        for rank in others:
            yield from self._requests.send(sent[rank], rank)

    def _complete(self, posting: Iterable[MPI.Request], what: str) -> None:
        """Post the requests of `posting` and wait until all are complete. Raises what `Requests.complete` raises."""
        requests = self._requests.post(posting)
        self._wake_others()
        self._requests.complete(requests, lambda: self._waiting_for(what))
        self._wake_others()

    def _wake_others(self) -> None:
        """Wake the local peers that sleep, by their doorbells: MPI does not wake a process when a message arrives."""
        for index in self._local_ranks.others:
            self._local_ranks.bells[index].ring()

    def _waiting_for(self, what: str) -> str:
        others = self._local_ranks.describe(self._local_ranks.others)
        return f"{what}, which has begun and waits in MPI for one of {others}"

    def close(self) -> None:
        self._requests.close()
