"""The division of samples among the ranks: pure arithmetic, the same on every rank.

The ranks deal the samples out like cards: rank r takes every sample whose place in the common order is r modulo the
number of ranks. So the ranks' k-th batches are together the k-th batch of one process whose batches are as large as all
of theirs.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError


@dataclass(frozen=True)
class Division:
    """The settings of a division, whatever is divided. `shard` tells what each field means for users."""

    rank: int
    ranks: int
    batch_size: int | None = None
    shuffle: bool | int = False
    seed: int = 0
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            _whole("batch_size", self.batch_size, 1, "give the samples that each rank takes at a time, or None")
        _whole("shuffle", self.shuffle, 0, "give True, False or the number of samples to choose from")
        _whole("seed", self.seed, 0, "give the same one to every rank")

    @property
    def round(self) -> int:
        """The samples that all ranks together take at a time."""
        return self.ranks * (self.batch_size or 1)

    @property
    def buffer(self) -> int:
        """The samples of a stream among which to choose at random; 0: keep their order.

        Raises:
            UsageError: nobody said how many.
        """
        if self.shuffle is True:
            raise UsageError(
                "shuffle=True does not work for data of unknown length, which is shuffled a part at a time: give the "
                "number of samples to choose from, as in shuffle=10_000"
            )
        return int(self.shuffle)


@dataclass(frozen=True)
class Plan:
    """A division of a known number of samples."""

    division: Division
    samples: int

    def __post_init__(self) -> None:
        round_, ranks = self.division.round, self.division.ranks
        if self.samples < ranks:
            raise UsageError(
                f"{_count(self.samples, 'sample')} cannot be divided among {ranks} ranks: start fewer ranks or give "
                "more data"
            )
        if self.division.drop_remainder and self.samples < round_:
            raise UsageError(
                f"drop_remainder=True leaves nothing of {_count(self.samples, 'sample')}, since {ranks} ranks take "
                f"{round_} at a time: choose a smaller batch_size or drop_remainder=False"
            )

    @property
    def padded(self) -> int:
        """The number of samples that are taken twice in an epoch, so that all ranks get as many."""
        return 0 if self.division.drop_remainder else -self.samples % self.division.ranks

    @property
    def dropped(self) -> int:
        """The number of samples that are left out of an epoch."""
        return self.samples % self.division.round if self.division.drop_remainder else 0

    @property
    def per_rank(self) -> int:
        """The samples of each rank in an epoch."""
        return (self.samples + self.padded - self.dropped) // self.division.ranks

    @property
    def steps(self) -> int:
        """The batches of each rank in an epoch, the last of which may be smaller, alike on all ranks."""
        return -(-self.per_rank // (self.division.batch_size or 1))

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """This rank's samples in the order of an epoch."""
        rank, ranks = self.division.rank, self.division.ranks
        places = np.arange(rank, self.per_rank * ranks, ranks) % self.samples  # padding starts over
        return self._order(epoch)[places] if self.division.shuffle else places

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return generator(self.division.seed, epoch).permutation(self.samples)


def generator(seed: int, epoch: int) -> np.random.RandomState:
    """Random numbers of an epoch. RandomState's are the same in every version of numpy; default_rng's may change."""
    return np.random.RandomState([seed % 2**32, seed // 2**32 % 2**32, epoch])


def _whole(name: str, value: Any, least: int, remedy: str) -> None:
    """Complain about a setting that is not a whole number of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (value is True and name != "shuffle"):
        raise UsageError(f"{name}={value!r} is not a whole number >= {least}: {remedy}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
