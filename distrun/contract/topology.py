"""The topology: a rank's place in the job, in the same form under every launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distrun.errors import UsageError
from distrun.host.numerals import MOST_RANKS


@dataclass(frozen=True, repr=False)
class Topology:
    """A rank's place in the job, on its host and across the hosts.

    The six numbers mean the same as in Horovod. Each index counts from 0 and is smaller than its size.

    Raises:
        UsageError: an index is outside its size, or a part is larger than the whole.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    """Index of this host among the hosts that have a rank with this local rank."""
    cross_size: int
    """The number of hosts that have a rank with this local rank."""
    hostname: str

    def __post_init__(self) -> None:
        for name in ("size", "local_size", "cross_size"):
            value = getattr(self, name)
            if not 1 <= value <= max(self.size, 1):
                limit = "at least 1" if name == "size" else f"between 1 and the size, {self.size}"
                raise UsageError(f"{name} {value} must be {limit}: {_REMEDY}")
        if self.size > MOST_RANKS:
            raise UsageError(f"size {self.size} is more than the {MOST_RANKS} ranks that a job can have: {_REMEDY}")
        for part in ("", "local_", "cross_"):
            index, count = getattr(self, f"{part}rank"), getattr(self, f"{part}size")
            if not 0 <= index < count:
                raise UsageError(f"{part}rank {index} must be between 0 and {count - 1} ({part}size - 1): {_REMEDY}")

    def __repr__(self) -> str:
        return (
            f"rank {self.rank}({self.size}), local {self.local_rank}({self.local_size}), "
            f"host {self.cross_rank}({self.cross_size}) on {self.hostname}"
        )


_REMEDY = "check the variables that the launcher gave this process, or start the script with `distrun`"


def local_ranks(places: Sequence[Sequence[int]], rank: int) -> tuple[int, ...]:
    """Return the ranks that share a host with `rank`, including itself, in rising order.

    Args:
        places: the local rank, local size and cross rank of each rank.
        rank: one of these ranks.
    """
    # The cross rank counts the hosts that have a rank with this local rank. Every host has local rank 0.
    sizes = [size for _, size in sorted((cross, size) for local, size, cross in places if local == 0)]

    def host(place: Sequence[int]) -> int:
        local, _, cross = place
        return [number for number, size in enumerate(sizes) if size > local][cross]

    own = host(places[rank])
    return tuple(other for other, place in enumerate(places) if host(place) == own)
