"""The hosts of a job as its ranks see them: who shares one, who talks to whom between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class HostLayout:
    """Which ranks share a host. Hosts are numbered by their lowest ranks; the ranks of a host are in rising order.

    A *lane* joins one rank of each host: lane i is the i-th rank of each. There are as many lanes as the smallest host has
    ranks, so that every lane has a rank on every host; each carries an equal share of what the hosts send each other.
    """

    ranks: tuple[tuple[int, ...], ...]
    """By host."""
    rank: int
    """Our own."""

    @classmethod
    def of(cls, names: Sequence[str], rank: int) -> HostLayout:
        """From the host's name of each rank."""
        by_name: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            by_name.setdefault(name, []).append(index)
        return cls(tuple(tuple(ranks) for ranks in by_name.values()), rank)

    @property
    def count(self) -> int:
        """How many."""
        return len(self.ranks)

    @cached_property
    def own(self) -> int:
        """The number of our own."""
        return next(host for host, ranks in enumerate(self.ranks) if self.rank in ranks)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks of our own, ourselves included."""
        return self.ranks[self.own]

    @cached_property
    def position(self) -> int:
        """Our place among our neighbours."""
        return self.local_ranks.index(self.rank)

    @cached_property
    def rails(self) -> int:
        """How many lanes there are."""
        return min(len(ranks) for ranks in self.ranks)

    @cached_property
    def most(self) -> int:
        """How many ranks the largest host has."""
        return max(len(ranks) for ranks in self.ranks)

    @property
    def has_rail(self) -> bool:
        """Whether we belong to a lane, whose number is our `position`."""
        return self.position < self.rails

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The other hosts, beginning with the one after ours, so that not everybody turns to host 0 first."""
        return tuple((self.own + step) % self.count for step in range(1, self.count))

    def peer(self, host: int) -> int:
        """The rank of our lane on a host."""
        return self.ranks[host][self.position]

    def cross(self) -> tuple[int, int]:
        """Our (cross_rank, cross_size): among the hosts that have a rank at our position."""
        having = [host for host, ranks in enumerate(self.ranks) if len(ranks) > self.position]
        return having.index(self.own), len(having)
