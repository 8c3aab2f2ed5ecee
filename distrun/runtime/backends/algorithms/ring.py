"""A ring: each host sends to the next one only, and receives from the previous one only.

A reduce-scatter and an allgather around the ring (P. Patarasuk, X. Yuan: Bandwidth Optimal All-reduce Algorithms for
Clusters of Workstations, 2009): 2(n-1) steps. In each, every host sends and receives 1/n of the array. That is as many
bytes as in direct exchange, over two links per host instead of n-1. The sum of part i begins with host i, so the order
of summation depends on the place of an element in the array.
"""

from __future__ import annotations

from collections.abc import Sequence

from distrun.runtime.backends.algorithms.base import Algorithm, RailShare, Steps, chunk_elements, cut, divided, run
from distrun.runtime.backends.base import Flat

WINDOW = 4
"""The number of pieces under way: one on the wire, one being added, and two more for links with a long delay."""


class Ring(Algorithm):
    """Links every host with the next and the previous one."""

    name = "ring"

    @property
    def partners(self) -> Sequence[int]:
        return list(dict.fromkeys((self._next, self._previous)))

    @property
    def _next(self) -> int:
        return self._order[(self._place + 1) % len(self._order)]

    @property
    def _previous(self) -> int:
        return self._order[self._place - 1]

    def reduce(self, share: RailShare, what: str) -> None:
        part = chunk_elements(share.dtype.itemsize, WINDOW)
        rooms = self._scratch.rows(WINDOW, share.wire.most(part + 1), share.wire.dtype)
        hosts = len(self._order)
        pieces = (
            self._steps(share, divided(piece, hosts), rooms[number % WINDOW])
            for number, piece in enumerate(cut(share.size, part * hosts))
        )
        run(self._links, pieces, WINDOW, what)

    def _steps(self, share: RailShare, parts: Sequence[slice], room: Flat) -> Steps:
        """Yield the steps of one piece, divided into `parts`. Sums of other hosts' elements are received in `room`."""
        count, stages = len(parts), share.stages
        part = parts[self._place]
        outgoing = share.encoded(share.ours(part), part)
        for step in range(1, count):
            self._links.send(self._next, outgoing)
            part = parts[(self._place - step) % count]
            raw = room[: share.length(part)]
            yield [self._links.receive(self._previous, raw)]
            how = stages.between if step == count - 1 else stages.partial
            how.combine([share.decoded(raw, part), share.ours(part)], [share.target[part]])
            outgoing = share.encoded(share.target[part], part)
        share.settle(outgoing, part)
        for step in range(count - 1):
            self._links.send(self._next, outgoing)  # results are passed on encoded, as they were received
            part = parts[(self._place - step) % count]
            # Received over this rank's partial sum, whose send may still be pending. It is safe: the result of this
            # part can only come after the next host has received the sum.
            outgoing = share.incoming(part)
            yield [self._links.receive(self._previous, outgoing)]
            share.settle(outgoing, part)
