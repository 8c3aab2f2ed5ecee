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
    """The number of samples of each rank."""
    rank: int
    is_whole: bool = False
    """Whether every rank has all samples, because there are fewer samples than ranks."""

    @property
    def size(self) -> int:
        """The number of samples of this rank."""
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
    """Return a rank's part of a batch. The sizes of the parts differ by at most one, or two if `uneven` makes them.

    Args:
        count: the number of samples of the batch.
        ranks: the number of ranks. A batch with fewer samples is not cut: each rank has all of it.
        rank: the rank that the part is for.
        uneven: make sure that not all parts are equal, if every rank would have at least two samples.
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
    """Yield a rank's parts, each with all ranks' samples, where each rank takes a whole batch at a time.

    If fewer batches than ranks are left at the end, they are cut like one batch. The sizes of the first parts are made
    unequal, like `cut` does.
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
