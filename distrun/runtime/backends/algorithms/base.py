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
"""The most bytes that are received from other hosts and not yet combined. With many hosts, parts of a piece are
smaller."""
ARENA_LIMIT = 4 << 20
"""Bytes of the largest operation whose memory an `Arena` keeps."""
_ALIGNMENT = 64  # bytes of a cache line

Steps = Generator[Sequence[Ticket], None, None]
"""The steps of one piece. Each posts sends and receives and yields the tickets of the receives, which must be complete
before the next step begins."""


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
        """`sources` are the share of the arrays of this host's ranks, which begins at the element `first` of the
        operation. `targets` receive the result: a source may be its rank's target. `position` is this rank's place
        among the ranks of its host, and `stages` are the arithmetic, within the host and between hosts."""
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
        """Return a part of this host's contribution: its ranks' arrays, combined now unless there is only one."""
        within = self.stages.within
        if within is None:
            return self._sources[0][part]
        within.combine([source[part] for source in self._sources], [self.target[part]])
        return self.target[part]

    def length(self, part: slice) -> int:
        """Return the length of a part's encoded array."""
        return self.wire.length(self._first + part.start, part.stop - part.start)

    def encoded(self, array: Flat, part: slice) -> Flat:
        """Return `array`, the elements of a part, encoded for the wire."""
        return self.wire.encode(array, self._first + part.start)

    def decoded(self, raw: Flat, part: slice, room: Flat | None = None) -> Flat:
        """Return the elements of a part, decoded from `raw`.

        They are `raw` itself if it is not encoded, else in `room`, which has at least their size, or a new array.
        """
        count, start = part.stop - part.start, self._first + part.start
        if room is None:
            return self.wire.decoded(raw, count, self.dtype, start)
        return self.wire.decode(raw, room[:count], start)

    def incoming(self, part: slice) -> Flat:
        """Return an array to receive the result of a part, for `settle`."""
        if not self.wire.is_encoded:
            return self.target[part]
        return self.wire.incoming(self._first + part.start, part.stop - part.start)

    def settle(self, raw: Flat, part: slice) -> None:
        """Write the result of a part, encoded in `raw`, into the targets of all ranks of this host.

        The host that has computed the result does so as well: if the wire format rounds, its own copy is replaced by
        what the others receive, so that all hold the same bits.
        """
        self.wire.decode(raw, self.target[part], self._first + part.start)
        self._show(part)

    def settled(self, part: slice) -> Flat:
        """Return the result of a part, which is in this rank's target, encoded, and settle it."""
        raw = self.wire.encode_results(self.target[part], self._first + part.start)
        self._show(part)
        return raw

    def _show(self, part: slice) -> None:
        for target in self._peer_targets:
            target[part] = self.target[part]


class Algorithm(ABC):
    """A way of reducing arrays over the hosts of a rail, on one of its ranks.

    All ranks of a rail hold the same bits afterwards: one of them computes the result of an element, and the others
    receive it. The order in which the contributions to an element are added depends on the algorithm.
    """

    name: ClassVar[str]
    is_stepwise: ClassVar[bool] = True
    """Whether sums over some of the hosts are sent, and rounded, before the result is complete."""

    def __init__(self, links: Links, hosts: HostLayout, order: Sequence[int], scratch: Scratch) -> None:
        """`order` has the hosts as the algorithm arranges them: those with slow links are last."""
        self._links = links
        self._hosts = hosts
        self._order = list(order)
        self._place = self._order.index(hosts.own)
        self._scratch = scratch

    @property
    @abstractmethod
    def partners(self) -> Sequence[int]:
        """The hosts that this one must be connected with."""

    @abstractmethod
    def reduce(self, share: RailShare, what: str) -> None:
        """Combine the arrays of all hosts into the targets of `share`. Sends may still be pending: see
        `Links.flush`."""


class Scratch:
    """Memory to receive arrays of other hosts. It is kept because the first touch of new memory is slow."""

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
    """Memory for the arrays that one operation needs until it ends, kept for the next operation.

    The C library returns the memory of small operations to the kernel, and the page faults of new memory take longer
    than these operations take to compute.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._used = 0

    def begin(self, nbytes: int) -> Empty:
        """Begin an operation of `nbytes` bytes and return the function that makes its arrays.

        The arrays of the previous operation are overwritten.
        """
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
    """Return `piece` divided into `count` parts of about equal length."""
    size = piece.stop - piece.start
    bounds = [piece.start + size * index // count for index in range(count + 1)]
    return [slice(bounds[index], bounds[index + 1]) for index in range(count)]


def chunk_elements(itemsize: int, rows: int = 1) -> int:
    """Return the number of elements of a part such that `rows` parts fit into the scratch memory."""
    return max(1, min(CHUNK, SCRATCH // rows) // itemsize)


def run(links: Links, pieces: Iterable[Steps], window: int, what: str, stride: int = 1) -> None:
    """Move pieces through their steps, several at a time, so that the links are busy while this rank computes.

    In every round, one more piece starts, if the window allows it. Each of the others, the youngest first, takes its
    next step `stride` rounds after its last one. All ranks do this in the same order, so both ends of a link know which
    message comes next. For this, a piece has the same number of steps on all ranks. In some of them a rank may have
    nothing to do.

    Args:
        links: wait for the tickets of the steps.
        pieces: the steps of each piece.
        window: the most pieces that are under way at a time.
        what: names the operation in error messages.
        stride: rounds from one step of a piece to its next.
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
