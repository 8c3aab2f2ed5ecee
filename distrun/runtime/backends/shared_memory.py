"""Collectives between the ranks of one host, at the speed of its memory.

All ranks map every rank's segment. A large reduction is divided by elements: rank r combines slice r of all ranks'
buffers, a cache-sized chunk at a time, and writes the result into all of them. Each element is read once per buffer and
written once per buffer, and is computed by exactly one rank, so all ranks hold the same bits. A small reduction is
computed by every rank for itself, in the same order and therefore with the same bits, which saves the second barrier.

Arrays that the ranks show each other must lie in their segments. Arrays allocated with `empty`, such as the fusion
buffers of the framework faces, already do. Others are copied: into a staging buffer that stays in cache, piece by piece
if they are large (see `piecewise`), or whole into the heap if the operation needs all of the array at once (alltoall).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distrun.runtime.backends.base import Backend, Flat, result_array, split
from distrun.runtime.backends.piecewise import PIECEWISE, Pieces
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Reduction
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.shared_memory.segment import STAGE
from distrun.tensor_fusion.packing import pack, unpack

ONE_STEP_LIMIT = 128 << 10
"""The most bytes that a rank reads from its local peers to combine everything for itself. Reading what another core has
just written is slow: beyond this limit, one more barrier costs less. It must not exceed a staging buffer."""

SHORT = 8 << 10
"""Arrays of up to this many bytes are reduced in one step with any number of ranks: the more ranks share a core, the
longer a barrier takes."""


class SharedMemoryBackend(Backend):
    """The backend of a group whose ranks are all on one host."""

    name = "shared memory"

    def __init__(self, local_ranks: LocalRanks) -> None:
        self._local_ranks = local_ranks
        self._segments = local_ranks.segments
        self._mine = local_ranks.mine
        self._stage = local_ranks.stage
        self._pieces = Pieces(local_ranks)
        self.rank = local_ranks.own
        self.size = local_ranks.size

    def empty(self, count: int, dtype: np.dtype[Any]) -> Flat:
        return self._local_ranks.heap.empty(count, dtype)

    @property
    def shared_bytes(self) -> int:
        return self._local_ranks.shared_bytes

    # Reductions -----------------------------------------------------------------------------------------------------

    def allreduce(
        self,
        inputs: Sequence[Flat],
        outputs: Sequence[Flat],
        reduction: Reduction,
        what: str,
        feedback: Feedback | None = None,
    ) -> None:
        count = sum(map(len, inputs))
        dtype = inputs[0].dtype
        nbytes = count * dtype.itemsize
        if nbytes <= SHORT or nbytes * (self.size - 1) <= ONE_STEP_LIMIT:
            self._allreduce_in_one_step(inputs, outputs, count, reduction, what)
            return
        # All ranks must take the same path, so the decision may depend on what they agree on, such as the number of
        # tensors, but not on what each chooses for itself, such as whether it works in place.
        if len(inputs) > 1:
            self._allreduce_fused(inputs, outputs, count, reduction, what)
            return
        source, target = inputs[0], outputs[0]
        offset = self._mine.offset_of(target)
        if offset >= 0 and source is not target:
            target[:] = source
            source = target
        offsets = [words[0] for words in self._local_ranks.exchange((offset,), what)]
        if min(offsets) >= 0:
            self._reduce_slices(offsets, count, dtype, reduction)
            self._local_ranks.exchange((), what)
        else:
            self._pieces.allreduce(source, target, reduction, what)

    def _allreduce_in_one_step(
        self, inputs: Sequence[Flat], outputs: Sequence[Flat], count: int, reduction: Reduction, what: str
    ) -> None:
        """Reduce with one exchange: every rank stages its inputs, then combines those of all ranks for itself."""
        dtype = inputs[0].dtype
        offset = self._stage + self._local_ranks.parity * STAGE
        pack(inputs, self._mine.view(offset, count, dtype))
        self._local_ranks.exchange((), what)
        sources = [segment.view(offset, count, dtype) for segment in self._segments]
        if len(outputs) == 1:
            reduction.combine(sources, outputs)
            return
        result = np.empty(count, dtype)
        reduction.combine(sources, [result])
        unpack(result, outputs)

    def _allreduce_staged(
        self, inputs: Sequence[Flat], outputs: Sequence[Flat], count: int, reduction: Reduction, what: str
    ) -> None:
        """Reduce in the staging buffers: the inputs are still in cache when they are combined."""
        dtype = inputs[0].dtype
        offset = self._stage + self._local_ranks.parity * STAGE
        staged = self._mine.view(offset, count, dtype)
        pack(inputs, staged)
        self._local_ranks.exchange((), what)
        self._reduce_slices([offset] * self.size, count, dtype, reduction)
        self._local_ranks.exchange((), what)
        unpack(staged, outputs)

    def _allreduce_fused(
        self, inputs: Sequence[Flat], outputs: Sequence[Flat], count: int, reduction: Reduction, what: str
    ) -> None:
        """Reduce several tensors: pack them into one buffer, combine them there, and unpack them."""
        if count * inputs[0].itemsize <= STAGE:
            self._allreduce_staged(inputs, outputs, count, reduction, what)
            return
        is_direct = len(outputs) == 1 and self._mine.offset_of(outputs[0]) >= 0
        buffer = outputs[0] if is_direct else self.empty(count, inputs[0].dtype)
        pack(inputs, buffer)
        offsets = [words[0] for words in self._local_ranks.exchange((self._mine.offset_of(buffer),), what)]
        self._reduce_slices(offsets, count, buffer.dtype, reduction)
        self._local_ranks.exchange((), what)
        if not is_direct:
            unpack(buffer, outputs)

    def _reduce_slices(self, offsets: Sequence[int], count: int, dtype: np.dtype[Any], reduction: Reduction) -> None:
        """Combine this rank's slice of all ranks' buffers, in place in all of them. The buffers begin at `offsets`."""
        first, last = count * self.rank // self.size, count * (self.rank + 1) // self.size
        if first < last:
            start = first * dtype.itemsize
            slices = [
                segment.view(offset + start, last - first, dtype)
                for segment, offset in zip(self._segments, offsets, strict=True)
            ]
            reduction.combine(slices, slices)

    def reducescatter(
        self, array: Flat, counts: Sequence[int], reduction: Reduction, what: str, room: Flat | None = None
    ) -> Flat:
        offsets = [words[0] for words in self._local_ranks.exchange((self._show(array),), what)]
        output = result_array(room, counts[self.rank], array.dtype)
        if min(offsets) < 0:
            self._pieces.reducescatter(array, counts, offsets, reduction, output, what)
            self._finish(offsets, what)
            return output
        start = sum(counts[: self.rank]) * array.itemsize
        sources = [
            segment.view(at + start, output.size, array.dtype)
            for segment, at in zip(self._segments, offsets, strict=True)
        ]
        if output.size:
            reduction.combine(sources, [output])
        self._finish(offsets, what)
        return output

    # Copies ---------------------------------------------------------------------------------------------------------

    def allgather(self, array: Flat, what: str, room: Flat | None = None) -> tuple[Flat, list[int]]:
        shown = self._local_ranks.exchange((self._show(array), array.size), what)
        offsets, counts = [words[0] for words in shown], [words[1] for words in shown]
        output = result_array(room, sum(counts), array.dtype)
        if min(offsets) < 0:
            self._pieces.allgather(array, shown, output, what)
        else:
            for part, segment, offset in zip(split(output, counts), self._segments, offsets, strict=True):
                part[:] = segment.view(offset, part.size, array.dtype)
        self._finish(offsets, what)
        return output, counts

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        is_root = self.rank == root
        offsets = [words[0] for words in self._local_ranks.exchange((self._show(array) if is_root else 0,), what)]
        if offsets[root] < 0:
            self._pieces.broadcast(array, root, what)
            return
        if not is_root:
            array[:] = self._segments[root].view(offsets[root], array.size, array.dtype)
        self._finish([offsets[root]], what)

    def alltoall(self, array: Flat, splits: Sequence[int], what: str) -> tuple[Flat, list[int]]:
        offset = self._show(array)
        if offset < 0:
            copy = self.empty(array.size, array.dtype)  # lives until the peers have read it
            copy[:] = array
            offset = self._mine.offset_of(copy)
        shown = self._local_ranks.exchange((offset, *splits), what)
        counts = [words[1 + self.rank] for words in shown]
        output = np.empty(sum(counts), array.dtype)
        for part, segment, words in zip(split(output, counts), self._segments, shown, strict=True):
            skipped = sum(words[1 : 1 + self.rank]) * array.itemsize
            part[:] = segment.view(words[0] + skipped, part.size, array.dtype)
        self._finish([words[0] for words in shown], what)
        return output, counts

    def barrier(self, what: str) -> None:
        self._local_ranks.exchange((), what)

    def _show(self, array: Flat) -> int:
        """Return the offset in this rank's segment where the local peers see `array`, staging a small one if needed.

        Return `PIECEWISE` for a large array in ordinary memory.
        """
        offset = self._mine.offset_of(array)
        if offset >= 0:
            return offset
        if array.nbytes > STAGE:
            return PIECEWISE
        offset = self._stage + self._local_ranks.parity * STAGE
        self._mine.view(offset, array.size, array.dtype)[:] = array
        return offset

    def _finish(self, offsets: Sequence[int], what: str) -> None:
        """Wait until all ranks have read the arrays at `offsets` that lie in a heap, which the owners may then reuse.

        Arrays in staging need no barrier. The two staging buffers are used in turn, so one is overwritten only after
        the next exchange, and a rank takes part in that exchange only after it has finished reading.
        """
        if any(offset >= self._mine.layout.heap for offset in offsets):
            self._local_ranks.exchange((), what)
