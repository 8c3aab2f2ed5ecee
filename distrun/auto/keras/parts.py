"""The rows of a batch that a rank computes, and whether they count in metrics.

The whole batch is the script's own. A rank has consecutive rows of it. If there are fewer rows than ranks, all ranks
compute all rows, and only rank 0's count in metrics.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Part(NamedTuple):
    """A rank's part of a batch: three integers, or with TensorFlow three scalar tensors."""

    start: Any
    stop: Any
    total: Any
    """The number of rows of the whole batch."""

    @property
    def rows(self) -> Any:
        """The number of rows of the part."""
        return self.stop - self.start


def part_of(total: Any, rank: int, size: int) -> Part:
    """Return a rank's part of a batch of `total` rows, given the number of ranks (`size`)."""
    if total < size:
        return Part(0, total, total)
    return Part(total * rank // size, total * (rank + 1) // size, total)


def counts(part: Part, rank: int, size: int) -> Any:
    """Whether this rank's part counts in the metrics."""
    return rank == 0 or part.total >= size
