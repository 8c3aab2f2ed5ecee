"""A rank's part of data that Python can iterate over or index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distrun.data import structures
from distrun.data.plan import Division, Plan, StreamPlan, generator
from distrun.data.position import Position
from distrun.data.waiting import Judge, measured
from distrun.errors import UsageError

Item = TypeVar("Item")


class Shard:
    """The base class of everything that `shard` returns (a tf.data.Dataset gets the same attributes)."""

    position: Position
    """The position in the epoch."""

    def __init__(self, plan: Plan | StreamPlan, position: Position | None = None) -> None:
        # In an array, not in attributes: torch puts it into shared memory, where worker processes see it change.
        self._deal: Any = np.zeros(4, np.int64)
        self._bind(plan, position)

    def _bind(self, plan: Plan | StreamPlan, position: Position | None) -> None:
        self._whole = plan
        self._dealt: tuple[list[int], Any] | None = None
        self.position = Position() if position is None else position
        self.position.bind(plan, self._redealt)

    def _redealt(self) -> None:
        plan = self.position.plan
        deal = (self.position.epoch, plan.start, plan.division.rank, plan.division.ranks)
        for place, number in enumerate(deal):
            self._deal[place] = number

    @property
    def _plan(self) -> Any:
        """The plan for what was left of the epoch at the last deal, in worker processes, too."""
        deal = self._deal.tolist()
        if self._dealt is None or self._dealt[0] != deal:
            _, start, rank, ranks = deal
            division = replace(self._whole.division, rank=rank, ranks=ranks)
            self._dealt = deal, replace(self._whole, division=division, start=start)
        return self._dealt[1]

    @property
    def padded(self) -> int | None:
        """The samples that all ranks together take twice in an epoch. None: not known before its end."""
        return getattr(self._plan, "padded", None)

    @property
    def dropped(self) -> int | None:
        """The samples that all ranks together leave out in an epoch. None: not known before its end."""
        return getattr(self._plan, "dropped", None)

    @property
    def epoch(self) -> int:
        """The epoch whose order is used now, from 0."""
        return int(self._deal[0])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that comes next, for example to continue a job. An epoch that ranks have joined keeps what was
        done of it."""
        self.position.set_epoch(epoch)

    def advance(self, batches: int | None = None) -> None:
        """Note that a step is done. See `Position.advance`."""
        self.position.advance(batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return self.position.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a position. See `Position.load_state_dict`."""
        self.position.load_state_dict(state_dict)

    def _epoch_of(self, items: Callable[[], Iterable[Item]]) -> Iterator[Item]:
        """Iterate over an epoch. It begins when its first item is fetched, since Keras creates iterators and never uses
        them."""
        position = self.position
        position.begin()
        deals = position.deals
        for item in items():
            position.take()
            yield item
            position.check(deals)
        position.end()


class Choice(Shard):
    """The samples of this rank in an epoch, by their indices in all the data."""

    def __init__(self, plan: Plan, position: Position | None = None) -> None:
        super().__init__(plan, position)
        self._chosen: tuple[list[int], NDArray[np.int64]] | None = None

    @property
    def _indices(self) -> NDArray[np.int64]:
        deal = self._deal.tolist()
        if self._chosen is None or self._chosen[0] != deal:
            self._chosen = deal, self._plan.indices(deal[0])
        return self._chosen[1]


class Samples(Choice, Sequence[Any]):
    """This rank's samples of a sequence."""

    def __init__(self, source: Any, plan: Plan, position: Position | None = None) -> None:
        super().__init__(plan, position)
        self._source = source

    def __len__(self) -> int:
        return int(self._plan.per_rank)

    def __getitem__(self, place: Any) -> Any:
        self.position.read()
        if isinstance(place, slice):
            return [self._source[int(index)] for index in self._indices[place]]
        return self._source[int(self._indices[place])]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch."""
        return self._epoch_of(lambda: (self._source[int(index)] for index in self._indices))


class Batches(Choice, Sequence[Any]):
    """This rank's batches of arrays, or of a sequence of samples, which are stacked."""

    def __init__(
        self,
        pick: Callable[[NDArray[np.int64]], Any],
        plan: Plan,
        judge: Judge | None,
        position: Position | None = None,
    ) -> None:
        super().__init__(plan, position)
        self._pick = pick
        self._judge = judge

    def __len__(self) -> int:
        return int(self._plan.steps)

    def __getitem__(self, step: Any) -> Any:
        self.position.read()
        if isinstance(step, slice):
            return [self[place] for place in range(len(self))[step]]
        return self._batch(range(len(self))[step])

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch."""
        return measured(self._epoch_of(lambda: map(self._batch, range(len(self)))), self._judge)

    def _batch(self, step: int) -> Any:
        return self._pick(self._indices[self._plan.batch(step)])


class Stream(Shard, Iterable[Any]):
    """This rank's samples, or batches, of something that can only be iterated over."""

    def __init__(
        self, source: Iterable[Any], division: Division, judge: Judge | None, position: Position | None = None
    ) -> None:
        super().__init__(StreamPlan(division), position)
        self._source = source
        self._judge = judge
        self._begun: int | None = None
        _ = division.buffer  # raises an impossible setting's error here, where the script sees it

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch. It returns a generator, which Keras requires."""
        if self._plan.division.batch_size is None:
            return self._epoch_of(self._samples)
        return measured(self._epoch_of(self._batches), self._judge)

    def _batches(self) -> Iterator[Any]:
        return map(structures.stack, chunks(self._samples(), self._plan.division.batch_size))

    def _samples(self) -> Iterator[Any]:
        begun, self._begun = self._begun, self.position.deals
        if begun not in (None, self._begun) and iter(self._source) is self._source:
            raise UsageError(
                f"a {type(self._source).__name__} can be gone through once, so this rank cannot go through what is "
                "left of its epoch with other ranks: give shard an iterable that starts again each time"
            )
        return deal(self._source, self._plan, self.epoch)


def pick_samples(source: Any) -> Callable[[NDArray[np.int64]], Any]:
    """Return a function that makes batches of samples of a sequence."""
    return lambda indices: structures.stack([source[int(index)] for index in indices])


def deal(source: Iterable[Item], plan: StreamPlan, epoch: int) -> Iterator[Item]:
    """Yield this rank's items of a stream that all ranks read: one of every `ranks` items.

    An incomplete last round is dropped, or extended by its own items until all ranks have the same number.
    """
    division, buffer = plan.division, plan.division.buffer
    items = shuffled(source, buffer, generator(division.seed, epoch)) if buffer else source
    if plan.start:
        items = islice(items, plan.start, None)
    for items_of_all in chunks(items, division.round):
        if len(items_of_all) < division.round:
            if division.drop_remainder:
                return
            missing = -len(items_of_all) % division.ranks
            items_of_all += list(islice(cycle(items_of_all), missing))
        yield from items_of_all[division.rank :: division.ranks]


def chunks(source: Iterable[Item], length: int) -> Iterator[list[Item]]:
    """Yield lists of `length` items each. The last one may be shorter."""
    iterator = iter(source)
    while chunk := list(islice(iterator, length)):
        yield chunk


def shuffled(source: Iterable[Item], buffer: int, random: np.random.RandomState) -> Iterator[Item]:
    """Yield the items in another order: each is chosen at random from the next `buffer` ones."""
    iterator = iter(source)
    waiting = list(islice(iterator, buffer))
    for item in iterator:
        place = random.randint(buffer)
        yield waiting[place]
        waiting[place] = item
    for place in random.permutation(len(waiting)):
        yield waiting[place]
