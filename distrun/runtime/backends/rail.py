"""A lane: one rank of each host, who together move their share of what the hosts send each other."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.wire_format import WireFormat
from distrun.runtime.operations.reduction import Reduction
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links, Ticket

PART = 256 << 10
"""Bytes that one host combines at a time: small enough to be in cache still when they have come."""
SCRATCH = 64 << 20
"""Bytes of what has come from other hosts and is not combined yet, at most: with many hosts, parts are smaller."""

Stages = tuple[Reduction | None, Reduction]
"""How the ranks of a host are combined (None: every host has one), and how the hosts are."""


class _Piece:
    """Some consecutive elements on their way: cut into a part per host, which combines it."""

    def __init__(self, start: int, stop: int, hosts: int, shares: Sequence[Flat]) -> None:
        size = stop - start
        bounds = [start + size * host // hosts for host in range(hosts + 1)]
        self.parts = [slice(bounds[host], bounds[host + 1]) for host in range(hosts)]
        self.shares = shares
        """Where the other hosts' elements of our own part go."""
        self.tickets: list[Ticket] = []
        self.results: list[Flat] = []
        """Where the parts that the hosts have combined go."""


class Rail:
    """A rank's side of its lane."""

    def __init__(self, links: Links, hosts: HostLayout) -> None:
        self._links = links
        self._hosts = hosts

    def reduce(self, sources: Sequence[Flat], targets: Sequence[Flat], how: Stages, what: str) -> None:
        """Combine the `sources` of all ranks of all hosts, and write the result into all `targets`.

        Both list the flat arrays of this host's ranks, all in our hands; a source may be its rank's target.
        """
        hosts = self._hosts.count
        work = _Reduction(self._links, self._hosts, sources, targets, how, what)
        part = min(PART, SCRATCH // (2 * hosts)) // sources[0].itemsize
        dtype = work.wire_format.dtype
        shares = self._scratch(2 * hosts * (part + 1) * dtype.itemsize).view(dtype).reshape(2, hosts, part + 1)
        sent: deque[_Piece] = deque()
        combined: deque[_Piece] = deque()
        for number, start in enumerate(range(0, sources[0].size, part * hosts)):
            piece = _Piece(start, min(sources[0].size, start + part * hosts), hosts, shares[number % 2])
            work.scatter(piece)
            sent.append(piece)
            if len(sent) == 2:
                work.combine(sent[0])
                combined.append(sent.popleft())
            if len(combined) == 2:
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
        return np.empty(min(SCRATCH, 2 * self._hosts.count * PART) + 4096, np.uint8)

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        """Copy the array of host `root` to all others.

        The root sends each of them a part, and they send each other theirs: as few bytes leave each host as can be.
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


class _Reduction:
    """The steps that each piece of one reduction goes through."""

    def __init__(
        self, links: Links, hosts: HostLayout, sources: Sequence[Flat], targets: Sequence[Flat], how: Stages, what: str
    ) -> None:
        self._links = links
        self._hosts = hosts
        self._sources = sources
        self._targets = targets
        self._within, self._between = how
        self._what = what
        self.wire_format = WireFormat(self._between.wire, sources[0].dtype)
        own = hosts.position if len(targets) > 1 else 0
        self._target = targets[own]
        self._local_ranks = [target for index, target in enumerate(targets) if index != own]
        self._ours = sources[0] if self._within is None else self._target
        """Where our host's share is: what its ranks have, combined."""

    def scatter(self, piece: _Piece) -> None:
        """Send each host our share of its part."""
        for host in (*self._hosts.others, self._hosts.own):
            part = piece.parts[host]
            if self._within is not None:
                self._within.combine([source[part] for source in self._sources], [self._ours[part]])
            if host != self._hosts.own:
                self._links.send(host, self.wire_format.encode(self._ours[part]))
        mine = piece.parts[self._hosts.own]
        for host in self._hosts.others:
            piece.tickets.append(self._links.receive(host, piece.shares[host][: mine.stop - mine.start]))

    def combine(self, piece: _Piece) -> None:
        """Combine all hosts' shares of our own part, and send the result to everybody."""
        self._links.wait(piece.tickets, self._what)
        mine = piece.parts[self._hosts.own]
        if mine.start < mine.stop:
            shares = [
                self._ours[mine]
                if host == self._hosts.own
                else self.wire_format.widened(share[: mine.stop - mine.start], self._ours.dtype)
                for host, share in enumerate(piece.shares)
            ]
            self._between.combine(shares, [self._target[mine]])
        result = self.wire_format.encode(self._target[mine])
        self.wire_format.decode(
            result, self._target[mine]
        )  # what travelled was rounded, and everybody must have the same
        for target in self._local_ranks:
            target[mine] = self._target[mine]
        piece.tickets = []
        for host in self._hosts.others:
            self._links.send(host, result)
            # It comes when that host has had our share of it, so that share need not be kept.
            part = self._target[piece.parts[host]]
            piece.results.append(np.empty(part.size, self.wire_format.dtype) if self.wire_format.is_encoded else part)
            piece.tickets.append(self._links.receive(host, piece.results[-1]))

    def spread(self, piece: _Piece) -> None:
        """Hand what the other hosts have combined to our neighbours."""
        self._links.wait(piece.tickets, self._what)
        for host, result in zip(self._hosts.others, piece.results, strict=True):
            part = piece.parts[host]
            self.wire_format.decode(result, self._target[part])
            for target in self._local_ranks:
                target[part] = self._target[part]
