"""The interface of an algorithm between hosts, and how the pieces of an array follow each other through its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.wire_format import Empty, WireFormat
from distrun.runtime.operations.reduction import CHUNK
from distrun.runtime.operations.stages import Stages
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links, Ticket

SCRATCH = 64 << 20
"""Bytes received from other hosts and not combined yet, at most: with many hosts, the parts of a piece are smaller."""
ARENA_LIMIT = 4 << 20
"""Bytes of the largest operation whose memory is kept."""
_ALIGNMENT = 64  # bytes of a line of the processor's cache

Steps = Generator[Sequence[Ticket], None, None]
"""A piece on its way: each step posts what is sent and received, and the next one begins when that has come."""


class RailShare:
    """A rail's share of the arrays that are reduced, as the algorithms see it."""

    def __init__(
        self,
        sources: Sequence[Flat],
        targets: Sequence[Flat],
        position: int,
        stages: Stages,
        wire: WireFormat,
        first: int = 0,
    ) -> None:
        """
        Args:
            sources: the share of the arrays of this host's ranks.
            targets: where the result goes; a source may be its rank's target.
            position: the position of this rank among those of its host.
            stages: how arrays are combined.
            wire: how elements travel.
            first: the operation's element with which the share begins.
        """
        own = position if len(targets) > 1 else 0
        self.size = sources[0].size
        self.dtype = sources[0].dtype
        self.targets = targets
        self.target = targets[own]
        self.stages = stages
        self.wire = wire
        self._sources = sources
        self._peer_targets = [target for index, target in enumerate(targets) if index != own]
        self._first = first

    def ours(self, part: slice) -> Flat:
        """Return our host's share of the result: the arrays of its ranks, combined now unless there is just one."""
        within = self.stages.within
        if within is None:
            return self._sources[0][part]
        within.combine([source[part] for source in self._sources], [self.target[part]])
        return self.target[part]

    def length(self, part: slice) -> int:
        """Return the length of the array that travels for a part."""
        return self.wire.length(self._first + part.start, part.stop - part.start)

    def encoded(self, array: Flat, part: slice) -> Flat:
        """Return `array`, the elements of a part, as they travel."""
        return self.wire.encode(array, self._first + part.start)

    def decoded(self, raw: Flat, part: slice, room: Flat | None = None) -> Flat:
        """Return elements of a part that have come, as in memory: where they lie or in `room`, which has their number
        of elements or more, if that is given."""
        count, start = part.stop - part.start, self._first + part.start
        if room is None:
            return self.wire.decoded(raw, count, self.dtype, start)
        return self.wire.decode(raw, room[:count], start)

    def incoming(self, part: slice) -> Flat:
        """Return where the result of a part is received before `settle` is called with it."""
        if not self.wire.is_encoded:
            return self.target[part]
        return self.wire.incoming(self._first + part.start, part.stop - part.start)

    def settle(self, raw: Flat, part: slice) -> None:
        """Hand the result of a part, as it travels, to all ranks of this host.

        The host that has computed it does the same: where the wire format rounds, its own copy is replaced by what the
        others receive, so that all hold the same bits.
        """
        self.wire.decode(raw, self.target[part], self._first + part.start)
        self._show(part)

    def settled(self, part: slice) -> Flat:
        """Settle the result of a part that lies in the target; return it as it travels."""
        raw = self.wire.encode_results(self.target[part], self._first + part.start)
        self._show(part)
        return raw

    def _show(self, part: slice) -> None:
        for target in self._peer_targets:
            target[part] = self.target[part]


class Algorithm(ABC):
    """One way of reducing arrays over the hosts of a rail, for one of its ranks.

    All ranks of a rail hold the same bits afterwards, as one of them computes each element's result and the others take
    it. In which order an element's contributions are added up is the algorithm's business.
    """

    name: ClassVar[str]
    is_stepwise: ClassVar[bool] = True
    """Whether sums of some hosts travel, and are rounded, before the result is formed."""

    def __init__(self, links: Links, hosts: HostLayout, order: Sequence[int], scratch: Scratch) -> None:
        """
        Args:
            links: those with the other hosts.
            hosts: who is where.
            order: the hosts in the order in which they are arranged; the last ones have the slow links.
            scratch: memory to receive in.
        """
        self._links = links
        self._hosts = hosts
        self._order = list(order)
        self._place = self._order.index(hosts.own)
        self._scratch = scratch

    @property
    @abstractmethod
    def partners(self) -> Sequence[int]:
        """The hosts that this one has to be connected with."""

    @abstractmethod
    def reduce(self, share: RailShare, what: str) -> None:
        """Combine the arrays of all hosts into the share's targets. What was sent may still be on its way: see
        `Links.flush`."""


class Scratch:
    """Memory in which arrays of other hosts are received; kept, because new memory is slow to touch."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def rows(self, count: int, length: int, dtype: np.dtype[Any]) -> Flat:
        """Return `count` arrays of `length` elements."""
        nbytes = count * length * dtype.itemsize
        if nbytes > self._memory.size:
            if nbytes > 2 * SCRATCH:
                return np.empty((count, length), dtype)
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes].view(dtype).reshape(count, length)


class Arena:
    """Memory for the arrays that one operation needs until it is over; kept for the next one.

    The C library gives back what a few small operations have needed, and new memory takes longer to touch than they
    take to compute.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._used = 0

    def begin(self, nbytes: int) -> Empty:
        """Begin an operation of so many bytes; return what makes its arrays. Those of the last one are gone."""
        if nbytes > ARENA_LIMIT:
            return np.empty
        if self._used > self._memory.size:
            self._memory = np.empty(self._used, np.uint8)
        self._used = 0
        return self._empty

    def _empty(self, count: int, dtype: np.dtype[Any]) -> Flat:
        start = self._used
        stop = start + count * dtype.itemsize
        self._used = -(-stop // _ALIGNMENT) * _ALIGNMENT
        return self._memory[start:stop].view(dtype) if stop <= self._memory.size else np.empty(count, dtype)


def cut(size: int, length: int) -> Iterator[slice]:
    """Yield consecutive slices of `length` elements, the last perhaps shorter."""
    for start in range(0, size, length):
        yield slice(start, min(size, start + length))


def divided(piece: slice, count: int) -> list[slice]:
    """Return a piece divided into so many parts of about equal length."""
    size = piece.stop - piece.start
    bounds = [piece.start + size * index // count for index in range(count + 1)]
    return [slice(bounds[index], bounds[index + 1]) for index in range(count)]


def chunk_elements(itemsize: int, rows: int = 1) -> int:
    """Return the elements of a part, so that `rows` of them fit into the scratch memory."""
    return max(1, min(CHUNK, SCRATCH // rows) // itemsize)


def run(links: Links, pieces: Iterable[Steps], window: int, what: str, stride: int = 1) -> None:
    """Move pieces through their steps, several at a time, so that the links are busy while this rank computes.

    In every round one more piece sets out, and each of the others, the last one first, takes its next step `stride`
    rounds after the one before. All ranks do the same in the same order, which is how both ends of a link know what
    comes: each piece has the same number of steps everywhere, in some of which a rank may have nothing to do.

    Args:
        links: what tickets are waited for with.
        pieces: their steps.
        window: pieces under way at most.
        what: names the operation in error messages.
        stride: see above.
    """
    waiting = iter(pieces)
    under_way: deque[tuple[int, Steps, Sequence[Ticket]]] = deque()
    now, has_more = 0, True
    while has_more or under_way:
        started = None
        if has_more and len(under_way) < window:
            piece = next(waiting, None)
            if piece is None:
                has_more = False
            else:
                started = now + stride, piece, next(piece)
        going_on: deque[tuple[int, Steps, Sequence[Ticket]]] = deque()
        for due, steps, tickets in under_way:
            if due <= now:
                links.wait(tickets, what)
                posted = next(steps, None)
                if posted is None:
                    continue
                due, tickets = now + stride, posted
            going_on.append((due, steps, tickets))
        under_way = going_on
        if started is not None:
            under_way.appendleft(started)
        now += 1
