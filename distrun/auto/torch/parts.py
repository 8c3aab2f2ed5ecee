"""Cutting batches into the parts of the ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

Index = TypeVar("Index")


@dataclass(frozen=True)
class Part:
    """A rank's part of a batch."""

    sizes: tuple[int, ...]
    """The samples of each rank."""
    rank: int
    is_whole: bool = False
    """Whether every rank has all samples, as there are too few for all of them."""

    @property
    def size(self) -> int:
        """The samples of this rank."""
        return self.sizes[self.rank]

    @property
    def is_uneven(self) -> bool:
        """Whether some rank has more samples than another."""
        return len(set(self.sizes)) > 1

    def take(self, batch: Sequence[Index]) -> list[Index]:
        """Return this rank's samples of a batch."""
        if self.is_whole:
            return list(batch)
        start = sum(self.sizes[: self.rank])
        return list(batch[start : start + self.size])


def cut(count: int, ranks: int, rank: int, uneven: bool = False) -> Part:
    """Return the part of a batch that is a rank's: as many as the others', or one more.

    Args:
        count: the samples of the batch.
        ranks: the number of ranks. A batch with fewer samples is not cut: each rank has all of it.
        rank: whose part it is.
        uneven: cut it so that not all parts are equal, if it has more samples than there are ranks.
    """
    if count < ranks:
        return Part((count,) * ranks, rank, is_whole=True)
    each, left = divmod(count, ranks)
    sizes = [each + (other < left) for other in range(ranks)]
    if uneven and not left and each > 1 and ranks > 1:
        sizes[0] += 1
        sizes[-1] -= 1
    return Part(tuple(sizes), rank)


def pooled(batches: Iterable[Sequence[Index]], ranks: int, rank: int) -> Iterator[tuple[Part, list[Index]]]:
    """Yield the parts of a rank where each rank takes a whole batch at a time, and the samples of all ranks.

    The last batches, fewer than there are ranks, are cut like one batch.
    """
    rest = iter(batches)
    is_first = True
    while group := list(islice(rest, ranks)):
        samples = [sample for batch in group for sample in batch]
        if len(group) < ranks:
            part = cut(len(samples), ranks, rank)
        else:
            sizes = [len(batch) for batch in group]
            if is_first and len(set(sizes)) == 1 and sizes[0] > 1:
                sizes[0], sizes[-1] = sizes[0] + 1, sizes[-1] - 1
            part = Part(tuple(sizes), rank)
        is_first = False
        yield part, samples
