"""Collectives between hosts: shared memory inside each host, rails in between.

Data crosses the wire once per host, for any number of ranks on the host. A large array is divided among the rails (see
`HostLayout`), which work in parallel. Rail 0 alone moves small arrays.

The algorithm between the hosts depends on the size of the array, the number of hosts and the links: see `algorithms`.
With each of them, all ranks hold the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from distrun.contract.settings import AUTO, QUANTISED
from distrun.runtime.backends.algorithms.choice import SHARED_FROM, WHOLE, choose
from distrun.runtime.backends.base import Backend, Flat, result_array, source_and_target, split
from distrun.runtime.backends.local_arrays import LocalArrays
from distrun.runtime.backends.rail import Rail, Transfer
from distrun.runtime.backends.wire_format import wire_format
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Average, Reduction, Sum, reduction
from distrun.runtime.operations.request import CUDA, Request
from distrun.runtime.operations.wire import ENCODED_DTYPES, is_small
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.shared_memory.segment import STAGE
from distrun.tensor_fusion.packing import pack, unpack


class HierarchicalBackend(Backend):
    """The backend of ranks on several hosts."""

    name = "hierarchical"

    def __init__(
        self, local_ranks: LocalRanks, hosts: HostLayout, links: Links, wire: str = "", algorithm: str = AUTO
    ) -> None:
        """`links` are this rank's with its rail. `wire` is the type for float32 and float64 between hosts, one of
        `WIRE_DTYPES` or "" for their own, unless a request asks for another, and `algorithm` is one of `ALGORITHMS`."""
        self._wire = wire
        self._algorithm = algorithm
        self._local_ranks = local_ranks
        self._local = LocalArrays(local_ranks)
        self._hosts = hosts
        self._links = links
        self._is_alone = local_ranks.size == 1
        self.rank = hosts.rank
        self.size = sum(len(ranks) for ranks in hosts.ranks)
        self._order = [rank for ranks in hosts.ranks for rank in ranks]
        self._rail = Rail(links, hosts, algorithm)

    def empty(self, count: int, dtype: np.dtype[Any]) -> Flat:
        return self._local_ranks.heap.empty(count, dtype)

    @property
    def shared_bytes(self) -> int:
        return self._local_ranks.shared_bytes

    @property
    def host_ranks(self) -> Sequence[Sequence[int]]:
        return self._hosts.ranks

    def close(self) -> None:
        self._links.close()

    def wire_of(self, request: Request) -> str:
        if request.kind not in ("allreduce", "reducescatter") or request.dtype not in ENCODED_DTYPES:
            return ""
        wire = request.wire or self._wire
        if wire in QUANTISED:
            # The GPU's kernels quantise float32 alone, and what goes through the hosts' memory does not depend on that.
            is_exact = request.device == CUDA and request.dtype != "float32"
            if is_exact or request.op not in (Sum, Average) or all(map(is_small, request.shapes)):
                return ""
        return wire

    def quantisation_of(self, request: Request) -> str:
        wire = request.wire or self._wire
        return wire if wire in QUANTISED else ""

    # Reductions -----------------------------------------------------------------------------------------------------

    def allreduce(
        self,
        inputs: Sequence[Flat],
        outputs: Sequence[Flat],
        reduction: Reduction,
        what: str,
        feedback: Feedback | None = None,
    ) -> None:
        if reduction.is_accumulated:
            wide = _in_accumulator(reduction)
            values = np.concatenate([part.astype(wide.element.storage) for part in inputs])
            self.allreduce([values], [values], wide, what)
            unpack(values.astype(outputs[0].dtype), outputs)
            return
        count = sum(map(len, inputs))
        # All ranks must come to the same decision, so it depends only on what they agree on.
        nbytes = count * inputs[0].itemsize
        if choose(nbytes, self._hosts.count, wire=reduction.wire, wanted=self._algorithm) == WHOLE:
            self._allreduce_in_one_step(inputs, outputs, count, reduction, what, feedback)
        elif self._is_alone:
            source, target = source_and_target(inputs, outputs)
            self._rail.reduce([source], [target], reduction, source.nbytes, what, feedback=feedback)
            if target is not outputs[0]:
                unpack(target, outputs)
        else:
            self._allreduce_shared(inputs, outputs, count, reduction, what, feedback)

    def _allreduce_in_one_step(
        self,
        inputs: Sequence[Flat],
        outputs: Sequence[Flat],
        count: int,
        reduction: Reduction,
        what: str,
        feedback: Feedback | None,
    ) -> None:
        """Reduce by sending everything to every host.

        Rail 0 moves all of it, or each rail its share of an array of at least `SHARED_FROM` bytes. The ranks of a host
        stage their inputs, and the rails write the result over them.
        """
        dtype = inputs[0].dtype
        if self._is_alone:
            source, target = source_and_target(inputs, outputs)
            sources, targets = [source], [target]
        else:
            offset = self._local_ranks.stage + self._local_ranks.parity * STAGE
            target = self._local_ranks.mine.view(offset, count, dtype)
            pack(inputs, target)
            sources = targets = [segment.view(offset, count, dtype) for segment in self._local_ranks.segments]
            self._local.exchange((), what)
        if self._hosts.rails > 1 and target.nbytes >= SHARED_FROM:
            if self._hosts.has_rail:
                first, last = self._rail.share(count)
                shares = [array[first:last] for array in targets]
                self._rail.reduce_whole(shares, shares, reduction, what, first, feedback)
        elif self._hosts.position == 0:
            self._rail.reduce_whole(sources, targets, reduction, what, 0, feedback)
        self._local.exchange((), what)
        if target is not outputs[0]:
            unpack(target, outputs)

    def _allreduce_shared(
        self,
        inputs: Sequence[Flat],
        outputs: Sequence[Flat],
        count: int,
        reduction: Reduction,
        what: str,
        feedback: Feedback | None,
    ) -> None:
        """Reduce in memory that all ranks of the host see, each rail its share of the array."""
        dtype = inputs[0].dtype
        is_direct = len(outputs) == 1 and self._local.offset_of(outputs[0]) >= 0
        buffer = outputs[0] if is_direct else self.empty(count, dtype)
        if not (len(inputs) == 1 and inputs[0] is buffer):
            pack(inputs, buffer)
        offsets = [words[0] for words in self._local.exchange((self._local.offset_of(buffer),), what)]
        if self._hosts.has_rail:
            first, last = self._rail.share(count)
            starts = [offset + first * dtype.itemsize for offset in offsets]
            views = self._local.views(buffer, starts, [last - first] * len(starts))
            self._rail.reduce(views, views, reduction, buffer.nbytes, what, first, feedback)
        self._local.exchange((), what)
        if not is_direct:
            unpack(buffer, outputs)

    def combine(self, sources: Sequence[Flat], reduction: Reduction, result: Flat) -> None:
        within, between, _ = self._rail.stages(reduction)
        if within is None or reduction.is_accumulated:
            reduction.combine([sources[rank] for rank in self._order], [result])
            return
        shares = []
        for ranks in self._hosts.ranks:
            shares.append(np.empty_like(result))
            within.combine([sources[rank] for rank in ranks], [shares[-1]])
        between.combine(shares, [result])

    def reducescatter(
        self, array: Flat, counts: Sequence[int], reduction: Reduction, what: str, room: Flat | None = None
    ) -> Flat:
        if reduction.is_accumulated:
            wide = _in_accumulator(reduction)
            return self.reducescatter(array.astype(wide.element.storage), counts, wide, what).astype(array.dtype)
        starts = list(accumulate(counts, initial=0))
        source, output = self._local.shown(array), self._local.empty(counts[self.rank], array.dtype)
        words = self._local.exchange((self._local.offset_of(source), self._local.offset_of(output)), what)
        sources = self._local.views(source, [offset for offset, _ in words], [array.size] * len(words))
        outputs = self._local.views(
            output, [offset for _, offset in words], [counts[r] for r in self._hosts.local_ranks]
        )
        within, between, _ = self._rail.stages(reduction)
        wire = wire_format(reduction.wire, array.dtype)

        def ours(start: int, stop: int) -> Flat:
            parts = [part[start:stop] for part in sources]
            if within is None:
                return parts[0]
            combined = np.empty_like(parts[0])
            within.combine(parts, [combined])
            return combined

        if self._hosts.has_rail:
            links = self._rail.links(what)
            for host in self._hosts.others:
                for rank, start, stop in self._rail.shares(self._hosts.ranks[host], counts):
                    first = starts[rank] + start
                    links.send(host, wire.encode(ours(first, starts[rank] + stop), first))
            for rank, start, stop in self._rail.shares(self._hosts.local_ranks, counts):
                count, first = stop - start, starts[rank] + start
                raw = np.empty((self._hosts.count, wire.length(first, count)), wire.dtype)
                links.wait([links.receive(host, raw[host]) for host in self._hosts.others], what)
                shares = [wire.decoded(share, count, array.dtype, first) for share in raw]
                shares[self._hosts.own] = ours(first, first + count)
                target = outputs[self._hosts.local_ranks.index(rank) if len(outputs) > 1 else 0][start:stop]
                between.combine(shares, [target])
            links.flush(what)
        self._local.exchange((), what)
        return output

    # Copies ---------------------------------------------------------------------------------------------------------

    def allgather(self, array: Flat, what: str, room: Flat | None = None) -> tuple[Flat, list[int]]:
        counts = [int(count) for count in self._gather(np.array([array.size]), [1] * self.size, what)]
        return self._gather(array, counts, what, room), counts

    def _gather(self, array: Flat, counts: Sequence[int], what: str, room: Flat | None = None) -> Flat:
        """Return the ranks' arrays, of `counts` elements, one after the other."""
        # First in the order of the hosts, so that everything that a host sends is contiguous.
        starts = dict(zip(self._order, accumulate((counts[rank] for rank in self._order), initial=0), strict=False))
        whole = self._local.common(sum(counts), array.dtype, what)
        whole[starts[self.rank] : starts[self.rank] + array.size] = array
        self._local.exchange((), what)
        if self._hosts.has_rail:
            blocks = [self._block(whole, host, starts, counts) for host in range(self._hosts.count)]
            own = blocks[self._hosts.own]
            self._rail.swap(((host, [own], [blocks[host]]) for host in self._hosts.others), what)
        self._local.exchange((), what)
        if self._is_alone and self._order == sorted(self._order):
            return whole
        output = result_array(room, whole.size, array.dtype)
        np.concatenate([whole[starts[rank] : starts[rank] + counts[rank]] for rank in range(self.size)], out=output)
        self._local.exchange((), what)  # only now may the owner reuse the memory
        return output

    def _block(self, whole: Flat, host: int, starts: dict[int, int], counts: Sequence[int]) -> Flat:
        """Return this rail's share of the part of `whole` that the ranks of `host` contribute."""
        ranks = self._hosts.ranks[host]
        start, stop = starts[ranks[0]], starts[ranks[-1]] + counts[ranks[-1]]
        first, last = self._rail.share(stop - start)
        return whole[start + first : start + last]

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        if self._is_alone:
            whole = array
        else:
            whole = self._local.common(array.size, array.dtype, what)
            if self.rank == root:
                whole[:] = array
            self._local.exchange((), what)
        if self._hosts.has_rail:
            first, last = self._rail.share(array.size)
            host = next(host for host, ranks in enumerate(self._hosts.ranks) if root in ranks)
            self._rail.broadcast(whole[first:last], host, array.nbytes, what)
        self._local.exchange((), what)
        if whole is not array:
            if self.rank != root:
                array[:] = whole
            self._local.exchange((), what)  # only now may the owner reuse the memory

    def alltoall(self, array: Flat, splits: Sequence[int], what: str) -> tuple[Flat, list[int]]:
        table = self._gather(np.array(splits), [self.size] * self.size, what).reshape(self.size, self.size).tolist()
        counts = [table[rank][self.rank] for rank in range(self.size)]
        source, output = self._local.shown(array), self._local.empty(sum(counts), array.dtype)
        words = self._local.exchange((self._local.offset_of(source), self._local.offset_of(output)), what)
        local_ranks = self._hosts.local_ranks
        sources = self._local.views(source, [offset for offset, _ in words], [sum(table[rank]) for rank in local_ranks])
        outputs = self._local.views(
            output, [offset for _, offset in words], [sum(row[rank] for row in table) for rank in local_ranks]
        )
        sent = {rank: split(view, table[rank]) for rank, view in zip(local_ranks, sources, strict=True)}
        received = {
            rank: split(view, [row[rank] for row in table]) for rank, view in zip(local_ranks, outputs, strict=True)
        }
        for rank in local_ranks:
            received[self.rank][rank][:] = sent[rank][self.rank]
        if self._hosts.has_rail:
            self._rail.swap(self._alltoall_transfers(sent, received), what)
        self._local.exchange((), what)
        return output, counts

    def _alltoall_transfers(self, sent: dict[int, list[Flat]], received: dict[int, list[Flat]]) -> Iterator[Transfer]:
        """Yield the transfers of this rail for an alltoall.

        Both sides order the arrays of a pair of hosts by sender, then by receiver.
        """
        local_ranks = self._hosts.local_ranks
        for host in self._hosts.others:
            remote_ranks = self._hosts.ranks[host]
            going = [sent[local][remote] for local in local_ranks for remote in remote_ranks]
            coming = [received[local][remote] for remote in remote_ranks for local in local_ranks]
            yield host, self._rail.share_of(going), self._rail.share_of(coming)

    def barrier(self, what: str) -> None:
        self._local.exchange((), what)
        if self._hosts.position == 0:
            self._rail.barrier(what)
        self._local.exchange((), what)


def _in_accumulator(encoded: Reduction) -> Reduction:
    """Return the reduction `encoded`, of small integers, in the wider type of its sums."""
    wide = encoded.element.accumulator.name
    return reduction(wide, encoded.op, encoded.size, encoded.prescale, encoded.postscale, divisor=encoded.divisor)
