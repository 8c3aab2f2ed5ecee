"""Direct exchange: each host combines its part of all hosts' arrays, and sends the result to all.

A reduce-scatter and an allgather, by pairwise exchange (R. Thakur, R. Rabenseifner, W. Gropp: Optimization of
Collective Communication Operations in MPICH, 2005). Each host sends and receives 2(n-1)/n of the array, in two steps,
and adds all contributions at once, in the order of the hosts. An element is rounded once each way on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distrun.runtime.backends.algorithms.base import Algorithm, RailShare, Steps, chunk_elements, cut, divided, run
from distrun.runtime.backends.base import Flat

PIECE = 256 << 10
"""Bytes that are received and combined at a time of an array that is sent whole."""


class Direct(Algorithm):
    """Links every host with every other one."""

    name = "direct"
    is_stepwise = False

    @property
    def partners(self) -> Sequence[int]:
        return self._hosts.others

    def reduce(self, share: RailShare, what: str) -> None:
        hosts, depth = self._hosts.count, share.wire.depth
        part = chunk_elements(share.dtype.itemsize, depth * hosts)
        most = share.wire.most(part + 1)
        shares = self._scratch.rows(depth * hosts, most, share.wire.dtype).reshape(depth, hosts, most)
        # One piece is combined at a time, in the same memory, which stays in cache.
        room = part + 1 if share.wire.is_encoded else 0
        decoded = [np.empty(room, share.dtype) for _ in range(hosts)]
        pieces = (
            self._steps(share, divided(piece, hosts), shares[number % depth], decoded)
            for number, piece in enumerate(cut(share.size, part * hosts))
        )
        # At most `depth` pieces are in each step, so `depth` sets of receive buffers are enough.
        run(self._links, pieces, 2 * depth, what, stride=depth - 1)

    def _steps(
        self, share: RailShare, parts: Sequence[slice], shares: Sequence[Flat], decoded: Sequence[Flat]
    ) -> Steps:
        """Yield the steps of one piece, divided into `parts` by host.

        `shares` are the buffers to receive other hosts' elements of this host's part, by host, and `decoded` the
        buffers to decode them.
        """
        links, hosts, own = self._links, self._hosts, self._hosts.own
        # Scatter: combine the arrays of this host's ranks, and send each host its part.
        for host in hosts.others:
            links.send(host, share.encoded(share.ours(parts[host]), parts[host]))
        mine = parts[own]
        contribution = share.ours(mine)
        length = share.length(mine)
        yield [links.receive(host, shares[host][:length]) for host in hosts.others]
        # Combine the contributions of all hosts to this host's part, and send the result to all hosts.
        if mine.start < mine.stop:
            arrived = [
                contribution if host == own else share.decoded(shares[host][:length], mine, decoded[host])
                for host in range(hosts.count)
            ]
            share.stages.between.combine(arrived, [share.target[mine]])
        result = share.settled(mine)
        tickets, incomings = [], []
        for host in hosts.others:
            links.send(host, result)
            # Received over this host's contribution to that part, whose send may still be pending. It is safe: the
            # result can only come after that host has received the contribution.
            incomings.append(share.incoming(parts[host]))
            tickets.append(links.receive(host, incomings[-1]))
        yield tickets
        # Write the results of the other hosts into the targets.
        for host, incoming in zip(hosts.others, incomings, strict=True):
            share.settle(incoming, parts[host])

    def reduce_whole(self, share: RailShare, what: str) -> None:
        """Reduce a small array in one step: every host receives everything and combines it, in the same order.

        The array is sent in one piece: two ranks that send each other several pieces take half as long again. It is
        received and combined in pieces: only the last one is combined when nothing moves any more.
        """
        links, hosts, whole = self._links, self._hosts, slice(0, share.size)
        sent = share.encoded(share.ours(whole), whole)
        tickets = [links.send(host, sent) for host in hosts.others]
        is_cut = links.are_streams and not share.wire.is_encoded and sent.nbytes > PIECE
        length = PIECE // sent.itemsize if is_cut else sent.size
        rows = self._scratch.rows(hosts.count, length, share.wire.dtype)
        for part in cut(share.size, length) if is_cut else (whole,):
            ours = sent[part] if is_cut else sent
            received = [ours if host == hosts.own else row[: ours.size] for host, row in enumerate(rows)]
            links.wait([links.receive(host, received[host]) for host in hosts.others], what)
            links.wait(tickets, what, (share.size - part.stop) * sent.itemsize)  # it may be sent from the target
            # This host's contribution is rounded as the others receive it: all must add the same numbers.
            arrived = [share.decoded(raw, part) for raw in received]
            share.stages.between.combine(arrived, [target[part] for target in share.targets])

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        """Copy the array of host `root` to all others.

        The root sends each of the others a part, and they send their parts to each other (scatter and allgather), so no
        host sends more than about one array.
        """
        hosts, links = self._hosts, self._links
        others = [host for host in range(hosts.count) if host != root]
        parts = dict(zip(others, divided(slice(0, array.size), len(others)), strict=True))
        if hosts.own == root:
            for host, part in parts.items():
                links.send(host, array[part])
            return
        mine = array[parts[hosts.own]]
        links.wait([links.receive(root, mine)], what)
        tickets = []
        for host in hosts.others:
            if host != root:
                links.send(host, mine)
                tickets.append(links.receive(host, array[parts[host]]))
        links.wait(tickets, what)
