"""A rank's part of data that Python can iterate over or index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distrun.data import structures
from distrun.data.plan import Division, Plan, generator
from distrun.data.waiting import Judge, measured

Item = TypeVar("Item")


class Shard:
    """The base of all that `shard` returns (a tf.data.Dataset has `padded`, `dropped` and `set_epoch` too)."""

    padded: int | None
    """The samples that are taken twice in an epoch, by all ranks together; None: not known before its end."""
    dropped: int | None
    """The samples that are left out of an epoch, by all ranks together; None: not known before its end."""

    def __init__(self, plan: Plan | None) -> None:
        self.padded = None if plan is None else plan.padded
        self.dropped = None if plan is None else plan.dropped
        self._epoch: Any = np.zeros((), np.int64)  # not an int, since worker processes of torch must see it change
        self._next_epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch whose order we have now, from 0."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that comes next, when a job is continued, say."""
        self._epoch[()] = self._next_epoch = epoch

    def _begin_epoch(self) -> None:
        """Called when its first sample is fetched: Keras makes iterators that it never uses."""
        self._epoch[()] = self._next_epoch
        self._next_epoch += 1


class Choice(Shard):
    """The samples of this rank in an epoch, by their places in all the data."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._plan = plan
        self._chosen: tuple[int, NDArray[np.int64]] | None = None

    @property
    def _indices(self) -> NDArray[np.int64]:
        epoch = self.epoch
        if self._chosen is None or self._chosen[0] != epoch:
            self._chosen = epoch, self._plan.indices(epoch)
        return self._chosen[1]


class Samples(Choice, Sequence[Any]):
    """This rank's samples of a sequence."""

    def __init__(self, source: Any, plan: Plan) -> None:
        super().__init__(plan)
        self._source = source

    def __len__(self) -> int:
        return self._plan.per_rank

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self._source[int(index)] for index in self._indices[place]]
        return self._source[int(self._indices[place])]

    def __iter__(self) -> Iterator[Any]:
        """The next epoch."""
        self._begin_epoch()
        for index in self._indices:
            yield self._source[int(index)]


class Batches(Choice, Sequence[Any]):
    """This rank's batches of arrays, or of a sequence of samples, which are stacked."""

    def __init__(self, pick: Callable[[NDArray[np.int64]], Any], plan: Plan, judge: Judge | None) -> None:
        super().__init__(plan)
        self._pick = pick
        self._judge = judge

    def __len__(self) -> int:
        return self._plan.steps

    def __getitem__(self, step: Any) -> Any:
        if isinstance(step, slice):
            return [self[place] for place in range(len(self))[step]]
        return self._batch(range(len(self))[step])

    def __iter__(self) -> Iterator[Any]:
        """The next epoch."""
        return measured(self._batches(), self._judge)

    def _batches(self) -> Iterator[Any]:
        self._begin_epoch()
        for step in range(len(self)):
            yield self._batch(step)

    def _batch(self, step: int) -> Any:
        length = self._plan.division.batch_size or 1
        return self._pick(self._indices[step * length : (step + 1) * length])


class Stream(Shard, Iterable[Any]):
    """This rank's samples, or batches, of something that can only be gone through."""

    def __init__(self, source: Iterable[Any], division: Division, judge: Judge | None) -> None:
        super().__init__(None)
        self._source = source
        self._division = division
        self._judge = judge
        _ = division.buffer  # complains while there is somebody to hear it

    def __iter__(self) -> Iterator[Any]:
        """The next epoch. It is a generator, as Keras wants one."""
        if self._division.batch_size is None:
            return self._samples()
        return measured(map(structures.stack, chunks(self._samples(), self._division.batch_size)), self._judge)

    def _samples(self) -> Iterator[Any]:
        self._begin_epoch()
        yield from deal(self._source, self._division, self.epoch)


def pick_rows(arrays: Any) -> Callable[[NDArray[np.int64]], Any]:
    """Makes batches of rows of a structure of arrays."""
    return partial(structures.take, arrays)


def pick_samples(source: Any) -> Callable[[NDArray[np.int64]], Any]:
    """Makes batches of samples of a sequence."""
    return lambda indices: structures.stack([source[int(index)] for index in indices])


def deal(source: Iterable[Item], division: Division, epoch: int) -> Iterator[Item]:
    """This rank's items of a stream that all ranks read: one of every `ranks`.

    The last round may be incomplete: then it is left out, or starts over until all ranks have as many.
    """
    buffer = division.buffer
    items = shuffled(source, buffer, generator(division.seed, epoch)) if buffer else source
    for items_of_all in chunks(items, division.round):
        if len(items_of_all) < division.round:
            if division.drop_remainder:
                return
            missing = -len(items_of_all) % division.ranks
            items_of_all += list(islice(cycle(items_of_all), missing))
        yield from items_of_all[division.rank :: division.ranks]


def chunks(source: Iterable[Item], length: int) -> Iterator[list[Item]]:
    """Lists of `length` items each; the last may be shorter."""
    iterator = iter(source)
    while chunk := list(islice(iterator, length)):
        yield chunk


def shuffled(source: Iterable[Item], buffer: int, random: np.random.RandomState) -> Iterator[Item]:
    """The items in another order: each is chosen among the next `buffer`."""
    iterator = iter(source)
    waiting = list(islice(iterator, buffer))
    for item in iterator:
        place = random.randint(buffer)
        yield waiting[place]
        waiting[place] = item
    for place in random.permutation(len(waiting)):
        yield waiting[place]
