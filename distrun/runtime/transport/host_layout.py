"""The host layout: which ranks share a host, and which ranks of different hosts make a rail."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class HostLayout:
    """Which ranks share a host. Hosts are numbered in the order of their lowest ranks.

    A *rail* joins one rank of each host: rail i is the i-th rank of each. There are as many rails as the smallest host
    has ranks, so every rail has a rank on every host. Each rail carries an equal share of the data between the hosts.
    """

    ranks: tuple[tuple[int, ...], ...]
    """The ranks of each host, in rising order, by the host's number."""
    rank: int
    """The number of this rank."""

    @classmethod
    def of(cls, names: Sequence[Hashable], rank: int) -> HostLayout:
        """Return the layout of `rank`, given the name of each rank's host."""
        by_name: dict[Hashable, list[int]] = {}
        for index, name in enumerate(names):
            by_name.setdefault(name, []).append(index)
        return cls(tuple(tuple(ranks) for ranks in by_name.values()), rank)

    def of_set(self, ranks: Sequence[int]) -> HostLayout:
        """Return the layout of `ranks`, which include this rank. In it, ranks are numbered by position in `ranks`."""
        host_of = {rank: host for host, those in enumerate(self.ranks) for rank in those}
        return HostLayout.of([host_of[rank] for rank in ranks], ranks.index(self.rank))

    @property
    def count(self) -> int:
        """The number of hosts."""
        return len(self.ranks)

    @cached_property
    def own(self) -> int:
        """The number of this rank's host."""
        return next(host for host, ranks in enumerate(self.ranks) if self.rank in ranks)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks of this rank's host, itself included."""
        return self.ranks[self.own]

    @cached_property
    def position(self) -> int:
        """The position of this rank among the ranks of its host."""
        return self.local_ranks.index(self.rank)

    @cached_property
    def rails(self) -> int:
        """The number of rails."""
        return min(len(ranks) for ranks in self.ranks)

    @cached_property
    def most(self) -> int:
        """The number of ranks of the largest host."""
        return max(len(ranks) for ranks in self.ranks)

    @property
    def has_rail(self) -> bool:
        """Whether this rank belongs to a rail, whose number is its `position`."""
        return self.position < self.rails

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The other hosts, beginning with the one after this, so that not every host sends to host 0 first."""
        return tuple((self.own + step) % self.count for step in range(1, self.count))

    def peer(self, host: int) -> int:
        """Return the rank of this rail on `host`."""
        return self.ranks[host][self.position]

    @property
    def peers(self) -> dict[int, int]:
        """The other ranks of this rail, by host. Empty if this rank has no rail."""
        return {host: self.peer(host) for host in self.others} if self.has_rail else {}

    def cross(self) -> tuple[int, int]:
        """Return this rank's (cross_rank, cross_size): its host's index among the hosts with a rank at its position."""
        having = [host for host, ranks in enumerate(self.ranks) if len(ranks) > self.position]
        return having.index(self.own), len(having)
