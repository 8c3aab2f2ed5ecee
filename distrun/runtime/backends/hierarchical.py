"""Collectives between hosts: shared memory inside each of them, links in between.

What crosses the wire crosses it once per host, however many ranks the host has. A large array is divided among the lanes
(see `Hosts`), which work side by side; small ones are the business of lane 0.

A large reduction is a reduce-scatter and an allgather by direct exchange: each host is sent its part of everybody's array,
combines the parts in the order of the hosts, and sends everybody the result. (R. Thakur, R. Rabenseifner, W. Gropp:
Optimization of Collective Communication Operations in MPICH, 2005, call it pairwise exchange.) A ring moves as many bytes,
2(n-1)/n of the array in each direction, but in 2(n-1) steps instead of 2, rounds at each of them, and adds up every part in
another order. The array is cut into pieces that follow each other closely, so both directions of all links stay busy. A small
array is sent whole to everybody and combined by everybody: one step. Either way, all ranks hold the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from distrun.runtime.backends.base import Backend, Flat
from distrun.runtime.backends.rail import Rail
from distrun.runtime.backends.wire_format import WireFormat
from distrun.runtime.operations.reduction import NARROWED, Reduction, reduction, stages
from distrun.runtime.operations.request import Request
from distrun.runtime.shared_memory.segment import STAGE
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links
from distrun.runtime.transport.local_group import LocalGroup
from distrun.tensor_fusion.packing import pack, unpack

CHUNK = 256 << 10
"""Bytes of what was sent whole that are combined while more is coming."""
SMALL = 64 << 10
"""Bytes a host receives up to which everybody is sent everything. At most what staging holds."""
SMALL_PAIR = 1 << 20
"""The same for two hosts, where sending everything costs no more bytes than sending halves twice."""


class HierarchicalBackend(Backend):
    """All ranks of a job on several hosts."""

    name = "hierarchical"

    def __init__(self, local_group: LocalGroup, hosts: HostLayout, links: Links, wire: str = "") -> None:
        """`wire`: the half-precision type in which float32 and float64 are reduced between hosts, unless a request says
        another; empty for none."""
        self._wire = wire
        self._local_group = local_group
        self._hosts = hosts
        self._links = links
        self._segments = local_group.segments
        self._mine = local_group.mine
        self._is_alone = local_group.size == 1
        self.rank = hosts.rank
        self.size = sum(len(ranks) for ranks in hosts.ranks)
        self._order = [rank for ranks in hosts.ranks for rank in ranks]
        self._rail = Rail(links, hosts)

    def empty(self, count: int, dtype: np.dtype[Any]) -> Flat:
        return self._local_group.heap.empty(count, dtype)

    @property
    def shared_bytes(self) -> int:
        return self._local_group.heap.used

    def close(self) -> None:
        self._links.close()

    def wire_of(self, request: Request) -> str:
        if request.kind not in ("allreduce", "reducescatter") or request.dtype not in NARROWED:
            return ""
        return request.wire or self._wire

    def _stages(self, whole: Reduction) -> tuple[Reduction | None, Reduction]:
        """How the ranks of a host are combined, and how hosts are; None where every host has one rank."""
        return stages(whole, self._hosts.count, self._hosts.most) if self._hosts.most > 1 else (None, whole)

    def _exchange(self, words: Sequence[int], what: str) -> list[Sequence[int]]:
        return [words] if self._is_alone else self._local_group.exchange(words, what)

    # Reductions -----------------------------------------------------------------------------------------------------

    def allreduce(self, inputs: Sequence[Flat], outputs: Sequence[Flat], reduction: Reduction, what: str) -> None:
        if reduction.is_widened:
            self._allreduce_widened(inputs, outputs, reduction, what)
            return
        count = sum(part.size for part in inputs)
        nbytes = count * inputs[0].itemsize
        # The way must be the same on all ranks, so it depends on nothing but what they agree on.
        if nbytes * (self._hosts.count - 1) <= SMALL or (self._hosts.count == 2 and nbytes <= SMALL_PAIR):
            self._allreduce_small(inputs, outputs, count, reduction, what)
        elif self._is_alone:
            self._allreduce_alone(inputs, outputs, count, reduction, what)
        else:
            self._allreduce_shared(inputs, outputs, count, reduction, what)

    def _allreduce_widened(self, inputs: Sequence[Flat], outputs: Sequence[Flat], how: Reduction, what: str) -> None:
        """Averages of small integers, whose sums do not fit them."""
        wide = how.element.accumulator
        values = np.concatenate([part.astype(wide) for part in inputs])
        how = reduction(wide.name, how.op, how.size, how.prescale, how.postscale)
        self.allreduce([values], [values], how, what)
        unpack(values.astype(outputs[0].dtype), outputs)

    def _allreduce_small(
        self, inputs: Sequence[Flat], outputs: Sequence[Flat], count: int, reduction: Reduction, what: str
    ) -> None:
        dtype = inputs[0].dtype
        if self._is_alone:
            source = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
            target = outputs[0] if len(outputs) == 1 else source if len(inputs) > 1 else np.empty(count, dtype)
            sources, targets = [source], [target]
        else:
            offset = self._mine.layout.stage + self._local_group.parity * STAGE
            target = self._mine.view(offset, count, dtype)
            pack(inputs, target)
            sources = targets = [segment.view(offset, count, dtype) for segment in self._segments]
            self._local_group.exchange((), what)
        if self._hosts.position == 0:
            self._swap_and_combine(sources, targets, reduction, what)
        self._exchange((), what)
        if target is not outputs[0]:
            unpack(target, outputs)

    def _swap_and_combine(
        self, sources: Sequence[Flat], targets: Sequence[Flat], reduction: Reduction, what: str
    ) -> None:
        """Send our host's share to all hosts, and combine theirs with ours."""
        within, between = self._stages(reduction)
        ours = sources[0]
        if within is not None:
            ours = np.empty_like(ours)
            within.combine(sources, [ours])
        wire_format = WireFormat(reduction.wire, ours.dtype)
        sent = wire_format.encode(ours)
        shares = list(np.empty((self._hosts.count, ours.size), wire_format.dtype))
        shares[self._hosts.own] = sent  # everybody must add up the same numbers
        step = CHUNK // sent.itemsize
        chunks = [slice(start, start + step) for start in range(0, ours.size, step)]
        under_way = []
        for chunk in chunks:
            tickets = []
            for host in self._hosts.others:
                tickets += [self._links.send(host, sent[chunk]), self._links.receive(host, shares[host][chunk])]
            under_way.append(tickets)
        for chunk, tickets in zip(chunks, under_way, strict=True):
            self._links.wait(tickets, what)
            parts = [wire_format.widened(share[chunk], ours.dtype) for share in shares]
            between.combine(parts, [target[chunk] for target in targets])

    def _allreduce_alone(
        self, inputs: Sequence[Flat], outputs: Sequence[Flat], count: int, reduction: Reduction, what: str
    ) -> None:
        """The only rank of its host reduces in whatever memory the arrays lie."""
        source = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        target = outputs[0] if len(outputs) == 1 else source if len(inputs) > 1 else np.empty_like(source)
        self._rail.reduce([source], [target], self._stages(reduction), what)
        if target is not outputs[0]:
            unpack(target, outputs)

    def _allreduce_shared(
        self, inputs: Sequence[Flat], outputs: Sequence[Flat], count: int, reduction: Reduction, what: str
    ) -> None:
        """Ranks that share a host reduce in memory that all of them see."""
        dtype = inputs[0].dtype
        is_direct = len(outputs) == 1 and self._mine.offset_of(outputs[0]) >= 0
        buffer = outputs[0] if is_direct else self.empty(count, dtype)
        if not (len(inputs) == 1 and inputs[0] is buffer):
            pack(inputs, buffer)
        offsets = [words[0] for words in self._local_group.exchange((self._mine.offset_of(buffer),), what)]
        if self._hosts.has_rail:
            first, last = self._share(count)
            views = [
                segment.view(offset + first * dtype.itemsize, last - first, dtype)
                for segment, offset in zip(self._segments, offsets, strict=True)
            ]
            self._rail.reduce(views, views, self._stages(reduction), what)
        self._local_group.exchange((), what)
        if not is_direct:
            unpack(buffer, outputs)

    def _share(self, count: int) -> tuple[int, int]:
        """Our lane's share of so many elements: from, and up to."""
        rail, rails = self._hosts.position, self._hosts.rails
        return count * rail // rails, count * (rail + 1) // rails

    def combine(self, sources: Sequence[Flat], reduction: Reduction) -> Flat:
        """What `allreduce` would make of the ranks' arrays, which are all here, by rank."""
        result = np.empty_like(sources[0])
        within, between = self._stages(reduction)
        if within is None or reduction.is_widened:
            reduction.combine([sources[rank] for rank in self._order], [result])
            return result
        shares = []
        for ranks in self._hosts.ranks:
            shares.append(np.empty_like(result))
            within.combine([sources[rank] for rank in ranks], [shares[-1]])
        between.combine(shares, [result])
        return result

    def reducescatter(self, array: Flat, counts: Sequence[int], reduction: Reduction, what: str) -> Flat:
        if reduction.is_widened:
            return self._reducescatter_widened(array, counts, reduction, what)
        starts = _starts(counts)
        source, output = self._shown(array), self._fresh(counts[self.rank], array.dtype)
        words = self._exchange((self._mine.offset_of(source), self._mine.offset_of(output)), what)
        sources = self._views(source, [offset for offset, _ in words], [array.size] * len(words))
        outputs = self._views(output, [offset for _, offset in words], [counts[r] for r in self._hosts.local_ranks])
        within, between = self._stages(reduction)
        wire_format = WireFormat(reduction.wire, array.dtype)

        def ours(start: int, stop: int) -> Flat:
            parts = [part[start:stop] for part in sources]
            if within is None:
                return parts[0]
            combined = np.empty_like(parts[0])
            within.combine(parts, [combined])
            return combined

        if self._hosts.has_rail:
            for host in self._hosts.others:
                for rank, start, stop in self._cut(self._hosts.ranks[host], counts):
                    self._links.send(host, wire_format.encode(ours(starts[rank] + start, starts[rank] + stop)))
            for rank, start, stop in self._cut(self._hosts.local_ranks, counts):
                raw = np.empty((self._hosts.count, stop - start), wire_format.dtype)
                self._links.wait([self._links.receive(host, raw[host]) for host in self._hosts.others], what)
                shares = [wire_format.widened(share, array.dtype) for share in raw]
                shares[self._hosts.own] = ours(starts[rank] + start, starts[rank] + stop)
                target = outputs[self._hosts.local_ranks.index(rank) if len(outputs) > 1 else 0][start:stop]
                between.combine(shares, [target])
            self._links.flush(what)
        self._exchange((), what)
        return output

    def _reducescatter_widened(self, array: Flat, counts: Sequence[int], how: Reduction, what: str) -> Flat:
        wide = how.element.accumulator
        reduced = self.reducescatter(
            array.astype(wide), counts, reduction(wide.name, how.op, how.size, how.prescale, how.postscale), what
        )
        return reduced.astype(array.dtype)

    # Copies ---------------------------------------------------------------------------------------------------------

    def allgather(self, array: Flat, what: str) -> tuple[Flat, list[int]]:
        counts = [int(count) for count in self._gather(np.array([array.size]), [1] * self.size, what)]
        return self._gather(array, counts, what), counts

    def _gather(self, array: Flat, counts: Sequence[int], what: str) -> Flat:
        """The ranks' arrays one after the other, their sizes being known."""
        # First in the order of the hosts, so that what a host sends is in one piece.
        starts = dict(zip(self._order, _starts([counts[rank] for rank in self._order]), strict=False))
        whole = self._common(sum(counts), array.dtype, what)
        whole[starts[self.rank] : starts[self.rank] + array.size] = array
        self._exchange((), what)
        if self._hosts.has_rail:
            tickets = []
            for host in self._hosts.others:
                self._links.send(host, self._block(whole, self._hosts.own, starts, counts))
                tickets.append(self._links.receive(host, self._block(whole, host, starts, counts)))
            self._links.wait(tickets, what)
            self._links.flush(what)
        self._exchange((), what)
        if self._is_alone and self._order == sorted(self._order):
            return whole
        output = np.concatenate([whole[starts[rank] : starts[rank] + counts[rank]] for rank in range(self.size)])
        self._exchange((), what)  # the memory is its owner's again
        return output

    def _block(self, whole: Flat, host: int, starts: dict[int, int], counts: Sequence[int]) -> Flat:
        """Our lane's share of what comes from a host."""
        ranks = self._hosts.ranks[host]
        start, stop = starts[ranks[0]], starts[ranks[-1]] + counts[ranks[-1]]
        first, last = self._share(stop - start)
        return whole[start + first : start + last]

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        if self._is_alone:
            whole = array
        else:
            whole = self._common(array.size, array.dtype, what)
            if self.rank == root:
                whole[:] = array
            self._exchange((), what)
        if self._hosts.has_rail:
            first, last = self._share(array.size)
            self._rail.broadcast(whole[first:last], self._host_of(root), what)
        self._exchange((), what)
        if whole is not array:
            if self.rank != root:
                array[:] = whole
            self._exchange((), what)  # the memory is its owner's again

    def _host_of(self, rank: int) -> int:
        return next(host for host, ranks in enumerate(self._hosts.ranks) if rank in ranks)

    def alltoall(self, array: Flat, splits: Sequence[int], what: str) -> tuple[Flat, list[int]]:
        table = self._gather(np.array(splits), [self.size] * self.size, what).reshape(self.size, self.size).tolist()
        counts = [table[rank][self.rank] for rank in range(self.size)]
        source, output = self._shown(array), self._fresh(sum(counts), array.dtype)
        words = self._exchange((self._mine.offset_of(source), self._mine.offset_of(output)), what)
        local_ranks = self._hosts.local_ranks
        sources = self._views(source, [offset for offset, _ in words], [sum(table[rank]) for rank in local_ranks])
        outputs = self._views(
            output, [offset for _, offset in words], [sum(row[rank] for row in table) for rank in local_ranks]
        )
        sent = {rank: _split(view, table[rank]) for rank, view in zip(local_ranks, sources, strict=True)}
        received = {
            rank: _split(view, [row[rank] for row in table]) for rank, view in zip(local_ranks, outputs, strict=True)
        }
        for rank in local_ranks:
            received[self.rank][rank][:] = sent[rank][self.rank]
        if self._hosts.has_rail:
            tickets = []
            for host in self._hosts.others:
                pairs = [(one, other) for one in local_ranks for other in self._hosts.ranks[host]]
                for part in self._rail_of(sent[one][other] for one, other in pairs):
                    self._links.send(host, part)
                pairs = [(one, other) for other in self._hosts.ranks[host] for one in local_ranks]
                for part in self._rail_of(received[one][other] for one, other in pairs):
                    tickets.append(self._links.receive(host, part))
            self._links.wait(tickets, what)
            self._links.flush(what)
        self._exchange((), what)
        return output, counts

    def barrier(self, what: str) -> None:
        self._exchange((), what)
        if self._hosts.position == 0:
            token, tokens = np.zeros(1, np.uint8), np.empty((self._hosts.count, 1), np.uint8)
            tickets = []
            for host in self._hosts.others:
                self._links.send(host, token)
                tickets.append(self._links.receive(host, tokens[host]))
            self._links.wait(tickets, what)
        self._exchange((), what)

    # Memory that all ranks of the host see --------------------------------------------------------------------------

    def _common(self, count: int, dtype: np.dtype[Any], what: str) -> Flat:
        """One array for all ranks of this host; it is the first one's, who must not let go of it too soon."""
        if self._is_alone:
            return np.empty(count, dtype)
        array = self.empty(count, dtype) if self._hosts.position == 0 else None
        words = self._local_group.exchange((-1 if array is None else self._mine.offset_of(array),), what)
        return self._segments[0].view(words[0][0], count, dtype) if array is None else array

    def _shown(self, array: Flat) -> Flat:
        """The array, or a copy, where our neighbours see it."""
        if self._is_alone or self._mine.offset_of(array) >= 0:
            return array
        copy = self.empty(array.size, array.dtype)
        copy[:] = array
        return copy

    def _fresh(self, count: int, dtype: np.dtype[Any]) -> Flat:
        """A new array that our neighbours see."""
        return np.empty(count, dtype) if self._is_alone else self.empty(count, dtype)

    def _views(self, own: Flat, offsets: Iterable[int], counts: Iterable[int]) -> list[Flat]:
        """All neighbours' arrays, of which `own` is ours."""
        if self._is_alone:
            return [own]
        return [
            segment.view(offset, count, own.dtype)
            for segment, offset, count in zip(self._segments, offsets, counts, strict=True)
        ]

    def _cut(self, ranks: Iterable[int], counts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Our lane's share of what belongs to some ranks: the rank, and from where to where in what is the rank's."""
        ranks = list(ranks)
        first, last = self._share(sum(counts[rank] for rank in ranks))
        at = 0
        for rank in ranks:
            start, stop = max(first, at), min(last, at + counts[rank])
            if start < stop:
                yield rank, start - at, stop - at
            at += counts[rank]

    def _rail_of(self, views: Iterable[Flat]) -> Iterator[Flat]:
        """Our lane's share of several arrays."""
        views = list(views)
        for index, start, stop in self._cut(range(len(views)), [view.size for view in views]):
            yield views[index][start:stop]


def _starts(counts: Sequence[int]) -> list[int]:
    """Where each of several parts begins."""
    starts = [0]
    for count in counts[:-1]:
        starts.append(starts[-1] + count)
    return starts


def _split(array: Flat, counts: Sequence[int]) -> list[Flat]:
    return [array[start : start + count] for start, count in zip(_starts(counts), counts, strict=True)]
