"""A rail: one rank of each host, which together move their share of what the hosts send each other.

The sums that cross a rail are formed in the order of the hosts, so that all ranks hold the same bits. Sends are posted
and never waited for one by one: while a rank combines one piece of an array, its other pieces are on the wire in both
directions.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.wire_format import wire_format
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import CHUNK, Reduction
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links, Ticket

SCRATCH = 64 << 20
"""Bytes received from other hosts and not combined yet, at most: with many hosts, the parts of a piece are smaller."""

Stages = tuple[Reduction | None, Reduction]
"""How the arrays of a host's ranks are combined (None if every host has one rank), and how the hosts' results are."""

Transfer = tuple[int, Iterable[Flat], Iterable[Flat]]
"""A host, the arrays to send there, and the arrays in which to receive what it sends."""


class _Piece:
    """Consecutive elements of a large reduction on their way: cut into a part for each host, which combines that
    part."""

    def __init__(self, start: int, stop: int, hosts: int, shares: Sequence[Flat]) -> None:
        size = stop - start
        bounds = [start + size * host // hosts for host in range(hosts + 1)]
        self.parts = [slice(bounds[host], bounds[host + 1]) for host in range(hosts)]
        self.shares = shares
        """The buffers for the other hosts' elements of our own part, by host."""
        self.tickets: list[Ticket] = []
        self.results: list[Flat] = []
        """The buffers for the parts that the other hosts have combined."""


class Rail:
    """One rank's side of its rail. Ranks call it in the same order; those without a rail (`HostLayout.has_rail`) do
    not."""

    def __init__(self, links: Links, hosts: HostLayout) -> None:
        self._links = links
        self._hosts = hosts
        self._place = object()
        """The thing by which `Feedback` knows this rail."""

    # The rail's share of an array ------------------------------------------------------------------------------------

    def share(self, count: int) -> tuple[int, int]:
        """Return where this rail's share of `count` elements begins and ends."""
        rail, rails = self._hosts.position, self._hosts.rails
        return count * rail // rails, count * (rail + 1) // rails

    def shares(self, ranks: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield this rail's share of the elements of `ranks`, taken as one array.

        Args:
            ranks: which ranks' elements to divide among the rails, in this order.
            counts: the number of elements of each rank of the job.

        Yields:
            A rank, and where the share begins and ends in that rank's elements.
        """
        first, last = self.share(sum(counts[rank] for rank in ranks))
        at = 0
        for rank in ranks:
            start, stop = max(first, at), min(last, at + counts[rank])
            if start < stop:
                yield rank, start - at, stop - at
            at += counts[rank]

    def share_of(self, arrays: Sequence[Flat]) -> Iterator[Flat]:
        """Yield this rail's share of several arrays, taken as one."""
        for index, start, stop in self.shares(range(len(arrays)), [array.size for array in arrays]):
            yield arrays[index][start:stop]

    # Copies ----------------------------------------------------------------------------------------------------------

    def swap(self, transfers: Iterable[Transfer], what: str) -> None:
        """Send and receive arrays, and wait for all of them."""
        tickets: list[Ticket] = []
        for host, sent, received in transfers:
            for array in sent:
                self._links.send(host, array)
            tickets += [self._links.receive(host, array) for array in received]
        self._links.wait(tickets, what)
        self._links.flush(what)

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        """Copy the array of host `root` to all others.

        The root sends each of them a part, and they send their parts to each other (scatter and allgather: R. Thakur,
        R. Rabenseifner, W. Gropp, 2005), so that no host sends more than about one array.
        """
        others = [host for host in range(self._hosts.count) if host != root]
        bounds = [array.size * index // len(others) for index in range(len(others) + 1)]
        parts = {host: array[bounds[i] : bounds[i + 1]] for i, host in enumerate(others)}
        if self._hosts.own == root:
            for host, part in parts.items():
                self._links.send(host, part)
        else:
            self._links.wait([self._links.receive(root, parts[self._hosts.own])], what)
            tickets = []
            for host in self._hosts.others:
                if host != root:
                    self._links.send(host, parts[self._hosts.own])
                    tickets.append(self._links.receive(host, parts[host]))
            self._links.wait(tickets, what)
        self._links.flush(what)

    # Reductions ------------------------------------------------------------------------------------------------------

    def reduce_whole(
        self,
        sources: Sequence[Flat],
        targets: Sequence[Flat],
        how: Stages,
        what: str,
        feedback: Feedback | None = None,
    ) -> None:
        """Combine the `sources` of all ranks of all hosts into all `targets`, in one step: everything to every host.

        Both list the flat arrays of this host's ranks. Each host combines everything for itself, in the same order.
        """
        within, between = how
        ours = sources[0]
        if within is not None:
            ours = np.empty_like(ours)
            within.combine(sources, [ours])
        wire = wire_format(between.wire, ours.dtype, feedback)
        if feedback is not None:
            feedback.begin(self._place, 0, ours.size, _units(how))
        step = CHUNK // ours.itemsize
        posted = []
        for start in range(0, ours.size, step):
            chunk = slice(start, min(ours.size, start + step))
            sent = wire.encode(ours[chunk], start)
            shares = list(np.empty((self._hosts.count, sent.size), wire.dtype))
            shares[self._hosts.own] = sent  # rounded as for the other hosts: all must add up the same numbers
            tickets = []
            for host in self._hosts.others:
                tickets += [self._links.send(host, sent), self._links.receive(host, shares[host])]
            posted.append((chunk, shares, tickets))
        for chunk, shares, tickets in posted:
            self._links.wait(tickets, what)
            parts = [wire.decoded(share, chunk.stop - chunk.start, ours.dtype, chunk.start) for share in shares]
            between.combine(parts, [target[chunk] for target in targets])

    def reduce(
        self,
        sources: Sequence[Flat],
        targets: Sequence[Flat],
        how: Stages,
        what: str,
        first: int = 0,
        feedback: Feedback | None = None,
    ) -> None:
        """Combine the `sources` of all ranks of all hosts into all `targets`: a reduce-scatter, then an allgather.

        Both list the rail's share, which begins at the operation's element `first`, of the flat arrays of this host's
        ranks; a source may be its rank's target.

        Three steps follow each other, and overlap for consecutive pieces: at most `depth` pieces are in each of them,
        which is why as many sets of receive buffers are enough.
        """
        hosts = self._hosts.count
        work = _Reduction(self._links, self._hosts, sources, targets, how, what, first, feedback)
        depth = work.wire.depth
        if feedback is not None:
            feedback.begin(self._place, first, sources[0].size, _units(how))
        part = min(CHUNK, SCRATCH // (depth * hosts)) // sources[0].itemsize
        room = work.wire.most(part + 1)
        dtype = work.wire.dtype
        shares = self._scratch(depth * hosts * room * dtype.itemsize).view(dtype).reshape(depth, hosts, room)
        sent: deque[_Piece] = deque()
        combined: deque[_Piece] = deque()
        for number, start in enumerate(range(0, sources[0].size, part * hosts)):
            piece = _Piece(start, min(sources[0].size, start + part * hosts), hosts, shares[number % depth])
            work.scatter(piece)
            sent.append(piece)
            if len(sent) == depth:
                work.combine(sent[0])
                combined.append(sent.popleft())
            if len(combined) == depth:
                work.spread(combined.popleft())
        for piece in sent:
            work.combine(piece)
            combined.append(piece)
        for piece in combined:
            work.spread(piece)
        self._links.flush(what)

    def _scratch(self, nbytes: int) -> Flat:
        return self._kept_scratch[:nbytes] if nbytes <= self._kept_scratch.size else np.empty(nbytes, np.uint8)

    @functools.cached_property
    def _kept_scratch(self) -> Flat:
        return np.empty(min(SCRATCH, 4 * self._hosts.count * CHUNK) * 9 // 8 + 4096, np.uint8)


def _units(how: Stages) -> tuple[float, float]:
    """Return the `units` of a reduction's losses, see `Feedback.begin`."""
    within, between = how
    share = 1.0 if within is None else 1.0 / within.prescale
    return share, share * between.divisor / (between.prescale * between.postscale)


class _Reduction:
    """The steps that each piece of one reduction goes through."""

    def __init__(
        self,
        links: Links,
        hosts: HostLayout,
        sources: Sequence[Flat],
        targets: Sequence[Flat],
        how: Stages,
        what: str,
        first: int,
        feedback: Feedback | None,
    ) -> None:
        self._links = links
        self._hosts = hosts
        self._sources = sources
        self._targets = targets
        self._within, self._between = how
        self._what = what
        self._first = first
        self.wire = wire_format(self._between.wire, sources[0].dtype, feedback)
        own = hosts.position if len(targets) > 1 else 0
        self._target = targets[own]
        self._peer_targets = [target for index, target in enumerate(targets) if index != own]
        self._ours = sources[0] if self._within is None else self._target
        """Our host's share of the sum: the arrays of its ranks, combined."""

    def scatter(self, piece: _Piece) -> None:
        """Combine our host's arrays, and send each host our share of its part."""
        for host in (*self._hosts.others, self._hosts.own):
            part = piece.parts[host]
            if self._within is not None:
                self._within.combine([source[part] for source in self._sources], [self._ours[part]])
            if host != self._hosts.own:
                self._links.send(host, self._encoded(self._ours, part))
        length = self._length(piece.parts[self._hosts.own])
        for host in self._hosts.others:
            piece.tickets.append(self._links.receive(host, piece.shares[host][:length]))

    def combine(self, piece: _Piece) -> None:
        """Combine all hosts' shares of our own part, and send the result to all hosts."""
        self._links.wait(piece.tickets, self._what)
        mine = piece.parts[self._hosts.own]
        if mine.start < mine.stop:
            count, length, start = mine.stop - mine.start, self._length(mine), self._first + mine.start
            shares = [
                self._ours[mine]
                if host == self._hosts.own
                else self.wire.decoded(share[:length], count, self._ours.dtype, start)
                for host, share in enumerate(piece.shares)
            ]
            self._between.combine(shares, [self._target[mine]])
        result = self._encoded(self._target, mine, are_results=True)
        # Where the wire format rounds, our own copy is replaced by what the other hosts receive: all must hold the same
        # bits.
        self._decode(result, mine)
        for target in self._peer_targets:
            target[mine] = self._target[mine]
        piece.tickets = []
        for host in self._hosts.others:
            self._links.send(host, result)
            # Received in place of our share of that part: it can only come after that host has received the share.
            part = piece.parts[host]
            result_room = np.empty(self._length(part), self.wire.dtype) if self.wire.is_encoded else self._target[part]
            piece.results.append(result_room)
            piece.tickets.append(self._links.receive(host, result_room))

    def spread(self, piece: _Piece) -> None:
        """Receive the parts that the other hosts have combined, and copy them to the local peers' arrays."""
        self._links.wait(piece.tickets, self._what)
        for host, result in zip(self._hosts.others, piece.results, strict=True):
            part = piece.parts[host]
            self._decode(result, part)
            for target in self._peer_targets:
                target[part] = self._target[part]

    def _length(self, part: slice) -> int:
        return self.wire.length(self._first + part.start, part.stop - part.start)

    def _encoded(self, array: Flat, part: slice, are_results: bool = False) -> Flat:
        return self.wire.encode(array[part], self._first + part.start, are_results)

    def _decode(self, raw: Flat, part: slice) -> None:
        self.wire.decode(raw, self._target[part], self._first + part.start)
