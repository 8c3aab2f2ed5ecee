"""Recursive halving and doubling: each step exchanges half of the rest with a partner at distance 1, 2, 4 and so on.

A reduce-scatter by recursive vector halving and an allgather by recursive vector doubling (R. Rabenseifner's algorithm,
in R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collective Communication Operations in MPICH, 2005): as many
bytes as in direct exchange, in 2 log2(n) steps. If the number of hosts is not a power of two, each host in excess sends
its array to the host beside it first and receives the result from it at the end. That host carries one more whole array
each way.

The hosts are added in pairs, the pairs' sums in pairs, and so on, for every element in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from distrun.runtime.backends.algorithms.base import Algorithm, RailShare, Steps, chunk_elements, cut, run
from distrun.runtime.backends.base import Flat

WINDOW = 4
"""The number of pieces under way: see `ring.WINDOW`."""


class HalvingDoubling(Algorithm):
    """Links every host with log2(n) others."""

    name = "halving-doubling"

    @property
    def partners(self) -> Sequence[int]:
        distant = [self._host_of(self._core ^ distance) for distance in self._distances] if self._is_core else []
        return distant + ([] if self._pair is None else [self._pair])

    # The first hosts of the order form pairs, the second of each pair being in excess. The first of each pair and the
    # hosts without a pair are the core, whose size is a power of two.

    @property
    def _excess(self) -> int:
        return len(self._order) - (1 << len(self._order).bit_length() - 1)

    @property
    def _distances(self) -> list[int]:
        return [1 << level for level in range(len(self._order).bit_length() - 1)]

    @property
    def _pair(self) -> int | None:
        """The other host of this host's pair, if it belongs to one."""
        return self._order[self._place ^ 1] if self._place < 2 * self._excess else None

    @property
    def _is_core(self) -> bool:
        return self._pair is None or self._place % 2 == 0

    @property
    def _core(self) -> int:
        """The index of this host in the core."""
        return self._place // 2 if self._pair is not None else self._place - self._excess

    def _host_of(self, core: int) -> int:
        return self._order[2 * core if core < self._excess else core + self._excess]

    def reduce(self, share: RailShare, what: str) -> None:
        # The core receives whole pieces from hosts in excess, otherwise at most halves.
        size = chunk_elements(share.dtype.itemsize, WINDOW) * (1 if self._excess else 2)
        rooms = self._scratch.rows(WINDOW, share.wire.most(size), share.wire.dtype)
        steps = self._steps if self._is_core else self._excess_steps
        pieces = (steps(share, piece, rooms[number % WINDOW]) for number, piece in enumerate(cut(share.size, size)))
        run(self._links, pieces, WINDOW, what)

    def _excess_steps(self, share: RailShare, piece: slice, room: Flat) -> Steps:
        pair = self._pair
        assert pair is not None
        self._links.send(pair, share.encoded(share.ours(piece), piece))
        yield ()
        for _ in 2 * self._distances:
            yield ()
        incoming = share.incoming(piece)
        yield [self._links.receive(pair, incoming)]
        share.settle(incoming, piece)

    def _steps(self, share: RailShare, piece: slice, room: Flat) -> Steps:
        links, stages = self._links, share.stages
        ours = share.ours(piece)
        if self._excess:
            if self._pair is None:
                yield ()
            else:
                raw = room[: share.length(piece)]
                yield [links.receive(self._pair, raw)]
                stages.partial.combine([ours, share.decoded(raw, piece)], [share.target[piece]])
                ours = share.target[piece]
        mine = piece
        halves = []
        for distance in self._distances:
            partner = self._host_of(self._core ^ distance)
            kept, sent = _halves(mine, is_upper=bool(self._core & distance))
            links.send(partner, share.encoded(ours[_within(sent, mine)], sent))
            ours = ours[_within(kept, mine)]
            raw = room[: share.length(kept)]
            yield [links.receive(partner, raw)]
            pair = [ours, share.decoded(raw, kept)]
            how = stages.between if distance == self._distances[-1] else stages.partial
            how.combine(pair[::-1] if self._core & distance else pair, [share.target[kept]])
            ours, mine = share.target[kept], kept
            halves.append((partner, kept, sent))
        share.settle(share.encoded(ours, mine), mine)
        for partner, kept, other in reversed(halves):
            links.send(partner, share.encoded(share.target[kept], kept))
            # Received over the half that was sent to the same partner, whose send may still be pending. It is safe: the
            # result can only come after the partner has received that half.
            incoming = share.incoming(other)
            yield [links.receive(partner, incoming)]
            share.settle(incoming, other)
        if self._excess:
            if self._pair is not None:
                links.send(self._pair, share.encoded(share.target[piece], piece))
            yield ()


def _halves(part: slice, is_upper: bool) -> tuple[slice, slice]:
    """Return the half of `part` that this host keeps, and the half that it sends."""
    middle = (part.start + part.stop) // 2
    lower, upper = slice(part.start, middle), slice(middle, part.stop)
    return (upper, lower) if is_upper else (lower, upper)


def _within(part: slice, whole: slice) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)
