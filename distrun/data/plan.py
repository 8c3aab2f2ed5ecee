"""The division of samples among the ranks: pure arithmetic, the same on every rank.

Samples are dealt to the ranks like cards: rank r takes every sample whose place in the common order is r modulo the
number of ranks. So the k-th batches of all ranks together are the k-th batch of a single process with the total batch
size, and after k steps the done samples are the beginning of the epoch's order. A different number of ranks can
continue from there, as one number defines what is left for them.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError
from distrun.host.ranks import count


@dataclass(frozen=True)
class Division:
    """The settings of a division, for any kind of data. `shard` explains each field to users."""

    rank: int
    ranks: int
    batch_size: int | None = None
    shuffle: bool | int = False
    seed: int = 0
    drop_remainder: bool = False
    pad: bool = True

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            _whole("batch_size", self.batch_size, 1, "give the samples that each rank takes at a time, or None")
        _whole("shuffle", self.shuffle, 0, "give True, False or the number of samples to choose from")
        _whole("seed", self.seed, 0, "give the same one to every rank")

    @property
    def round(self) -> int:
        """The samples that all ranks together take in a step."""
        return self.ranks * (self.batch_size or 1)

    @property
    def buffer(self) -> int:
        """The samples of a stream that each one is chosen from at random, a number. 0: keep their order."""
        if self.shuffle is True:
            raise UsageError(
                "shuffle=True does not work for data of unknown length, which is shuffled a part at a time: give the "
                "number of samples to choose from, as in shuffle=10_000"
            )
        return int(self.shuffle)


@dataclass(frozen=True)
class Plan:
    """A division of a known number of samples, or of the rest of them."""

    division: Division
    samples: int
    start: int = 0
    """The samples that are done, from the beginning of the epoch's order. Only the others are divided."""

    def __post_init__(self) -> None:
        round_, ranks = self.division.round, self.division.ranks
        if self.samples < ranks:
            raise UsageError(
                f"{count(self.samples, 'sample')} cannot be divided among {ranks} ranks: start fewer ranks or give "
                "more data"
            )
        if self.division.drop_remainder and self.samples < round_:
            raise UsageError(
                f"drop_remainder=True leaves nothing of {count(self.samples, 'sample')}, since {ranks} ranks take "
                f"{round_} at a time: choose a smaller batch_size or drop_remainder=False"
            )

    @property
    def left(self) -> int:
        """The samples that are divided."""
        return max(0, self.samples - self.start)

    @property
    def padded(self) -> int:
        """The number of samples that are taken twice in an epoch, so that all ranks get the same number.

        Without padding this is zero, unless there are fewer samples than ranks. Then each rank still gets one.
        """
        if self.division.drop_remainder:
            return 0
        if self.division.pad or 0 < self.left < self.division.ranks:
            return -self.left % self.division.ranks
        return 0

    @property
    def dropped(self) -> int:
        """The number of samples that are left out of an epoch."""
        return self.left % self.division.round if self.division.drop_remainder else 0

    @property
    def per_rank(self) -> int:
        """The samples of this rank. Without padding, some ranks have one more than others."""
        return len(range(self.division.rank, self._dealt, self.division.ranks))

    @property
    def steps(self) -> int:
        """The batches of each rank, the same on all ranks. The last one may be smaller. Without padding, it may differ
        by one sample between ranks, and have one more than the batch size."""
        # A last round without a sample for every rank is joined to the one before it.
        return -(-self._dealt // self.division.round) - (0 < self._dealt % self.division.round < self.division.ranks)

    def batch(self, step: int) -> slice:
        """Return the slice of this rank's samples that batch number `step` consists of."""
        size = self.division.batch_size or 1
        return slice(step * size, None if step == self.steps - 1 else (step + 1) * size)

    def done(self, steps: int) -> int:
        """Return how many samples of the epoch are done after `steps` steps of all ranks."""
        return self.samples if steps >= self.steps else self.start + steps * self.division.round

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return this rank's samples, in the order of an epoch."""
        return self._order(epoch, np.arange(self.division.rank, self._dealt, self.division.ranks))

    def remaining(self, epoch: int) -> NDArray[np.int64]:
        """Return all samples that are divided, in the order of an epoch."""
        return self._order(epoch, np.arange(self.left))

    @property
    def _dealt(self) -> int:
        return self.left + self.padded - self.dropped

    def _order(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        places = (places + self.start) % self.samples  # the padding consists of the first samples of the epoch
        return (
            generator(self.division.seed, epoch).permutation(self.samples)[places] if self.division.shuffle else places
        )


@dataclass(frozen=True)
class StreamPlan:
    """A division of a stream, whose length is not known beforehand, or of the rest of it."""

    division: Division
    start: int = 0
    """The samples that are done, from the beginning of the stream."""

    def done(self, steps: int) -> int:
        """Return how many samples are done after `steps` steps of all ranks, if the stream has that many."""
        return self.start + steps * self.division.round


def generator(seed: int, epoch: int) -> np.random.RandomState:
    """Return a source of random numbers for an epoch. RandomState's never change with numpy, default_rng's may."""
    return np.random.RandomState([seed % 2**32, seed // 2**32 % 2**32, epoch])


def _whole(name: str, value: Any, least: int, remedy: str) -> None:
    """Raise an error for a setting that is not a whole number of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (value is True and name != "shuffle"):
        raise UsageError(f"{name}={value!r} is not a whole number >= {least}: {remedy}")
