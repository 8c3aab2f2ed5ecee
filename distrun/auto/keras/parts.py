"""The rows of a batch that a rank computes, and what its loss must be multiplied by so that the average over the ranks
is the loss of the whole batch.

The whole batch is the script's own. A rank has its consecutive rows of it; when there are fewer rows than ranks, all
ranks compute all of them, and those of rank 0 count in the metrics.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Part(NamedTuple):
    """A rank's part of a batch: numbers, or with TensorFlow scalar tensors."""

    start: Any
    stop: Any
    total: Any
    """The rows of the whole batch."""

    @property
    def rows(self) -> Any:
        """The rows of the part."""
        return self.stop - self.start


def part_of(total: Any, rank: int, size: int) -> Part:
    """Return the part of a rank of a batch of `total` rows."""
    if total < size:
        return Part(0, total, total)
    return Part(total * rank // size, total * (rank + 1) // size, total)


def counts(part: Part, rank: int, size: int) -> Any:
    """Whether the metrics of this rank's part count."""
    return rank == 0 or part.total >= size
