"""A binary tree: sums go up to the root, the result comes down, piece after piece.

It takes 2 log2(n) steps with whole pieces, which is the fastest way for small arrays. The hosts with slow links are
leaves. There, every element crosses the link once in each direction, which is the minimum: with direct exchange, in a
ring, or by halving and doubling it is 2(n-1)/n times, almost twice as much. A host with two children carries three
arrays each way. That costs no time if the slow link has at most a third of the bandwidth of the others.

A host adds its own array and its children's, for every element in the same order. (Trees for large arrays are from S.
Jeaugey, Massively Scale Your Deep Learning Training with NCCL 2.4, 2019, which has two of them for equal links.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from distrun.runtime.backends.algorithms.base import Algorithm, RailShare, Steps, chunk_elements, cut, run
from distrun.runtime.backends.base import Flat


class TreePosition(NamedTuple):
    """The place of a host in a tree."""

    parent: int | None
    children: tuple[int, ...]
    depth: int
    height: int
    """The depth of the deepest host of the tree."""

    @property
    def partners(self) -> list[int]:
        """The hosts that it is linked with."""
        return [*self.children, *([] if self.parent is None else [self.parent])]


@lru_cache(maxsize=1024)
def place_in_tree(order: tuple[int, ...], host: int, root: int) -> TreePosition:
    """Return the place of `host` in the tree of hosts whose root is `root`.

    The edges do not depend on `root`: the host at index i of `order` has edges with the hosts at 2i+1 and 2i+2, so the
    last half of the hosts are leaves.
    """
    edges: dict[int, list[int]] = {each: [] for each in order}
    for place in range(1, len(order)):
        above, below = order[(place - 1) // 2], order[place]
        edges[above].append(below)
        edges[below].append(above)
    places: dict[int, tuple[int | None, int]] = {root: (None, 0)}
    waiting: list[int] = [root]
    for each in waiting:  # the list grows during the loop
        for other in edges[each]:
            if other not in places:
                places[other] = each, places[each][1] + 1
                waiting.append(other)
    parent, depth = places[host]
    children = tuple(other for other in edges[host] if other != parent)
    return TreePosition(parent, children, depth, max(depth for _, depth in places.values()))


class Tree(Algorithm):
    """Links every host with at most three others."""

    name = "tree"

    @property
    def partners(self) -> Sequence[int]:
        return self._place_under(self._order[0]).partners

    def _place_under(self, root: int) -> TreePosition:
        return place_in_tree(tuple(self._order), self._hosts.own, root)

    def reduce(self, share: RailShare, what: str) -> None:
        place = self._place_under(self._order[0])
        window = 2 * place.height + 1  # one piece at every level, up and down
        rows = window * max(1, len(place.children))
        part = chunk_elements(share.dtype.itemsize, 2 * window)
        rooms = self._scratch.rows(rows, share.wire.most(part), share.wire.dtype)
        rooms = rooms.reshape(window, -1, rooms.shape[1])
        pieces = (
            self._steps(share, piece, place, rooms[number % window])
            for number, piece in enumerate(cut(share.size, part))
        )
        run(self._links, pieces, window, what)

    def _steps(self, share: RailShare, piece: slice, place: TreePosition, rooms: Sequence[Flat]) -> Steps:
        """Yield the steps of one piece. The children's sums are received in `rooms`."""
        links, stages = self._links, share.stages
        for level in range(place.height, 0, -1):
            if place.depth == level - 1 and place.children:
                length = share.length(piece)
                raws = [room[:length] for room in rooms[: len(place.children)]]
                yield [links.receive(child, raw) for child, raw in zip(place.children, raws, strict=True)]
                how = stages.partial if place.parent is not None else stages.between
                arrived = [share.decoded(raw, piece) for raw in raws]
                how.combine([share.ours(piece), *arrived], [share.target[piece]])
            elif place.depth == level:
                assert place.parent is not None
                sum_ = share.target[piece] if place.children else share.ours(piece)
                links.send(place.parent, share.encoded(sum_, piece))
                yield ()
            else:
                yield ()
        if place.parent is None:
            result = share.settled(piece)
        # The result is received over the sum that was sent up, whose send may still be pending. It is safe: the result
        # can only come after the parent has received the sum.
        for level in range(place.height):
            if place.depth == level:
                for child in place.children:
                    links.send(child, result)
                yield ()
            elif place.depth == level + 1:
                assert place.parent is not None
                result = share.incoming(piece)
                yield [links.receive(place.parent, result)]
                share.settle(result, piece)
            else:
                yield ()

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        """Copy the array of host `root` to all others, along the edges of the tree."""
        place = self._place_under(root)
        part = chunk_elements(array.itemsize)
        pieces = (self._broadcast_steps(array[piece], place) for piece in cut(array.size, part))
        run(self._links, pieces, place.height + 1, what)

    def _broadcast_steps(self, array: Flat, place: TreePosition) -> Steps:
        for level in range(place.height):
            if place.depth == level:
                for child in place.children:
                    self._links.send(child, array)
                yield ()
            elif place.depth == level + 1:
                assert place.parent is not None
                yield [self._links.receive(place.parent, array)]
            else:
                yield ()
