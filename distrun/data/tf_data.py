"""A rank's part of a tf.data.Dataset: another tf.data.Dataset, which runs in TensorFlow's own threads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from distrun.data.plan import Division, Plan, StreamPlan
from distrun.data.position import Position
from distrun.data.waiting import FIRST_LOOK, Judge, tell

_LARGEST = 2**31 - 2
"""TensorFlow uses 31 bits of a seed, and 0 means no seed."""
_LOOKS = tuple(FIRST_LOOK << doubled for doubled in range(32))


def length(dataset: Any) -> int | None:
    """Return the number of elements, or None if the dataset does not know it or is infinite."""
    number = int(dataset.cardinality())
    return number if number >= 0 else None


def seeds(dataset: Any) -> list[tuple[int, int]]:
    """Return the seeds of every `shuffle` in the dataset. Two zeros mean that it has no seed."""
    found = [pair for source in dataset._inputs() for pair in seeds(source)]
    if hasattr(dataset, "_seed") and hasattr(dataset, "_seed2"):
        found.append((int(dataset._seed), int(dataset._seed2)))
    return found


def reshuffles(dataset: Any) -> bool:
    """Whether a `shuffle` in the dataset has another order in each iteration."""
    return bool(getattr(dataset, "_reshuffle_each_iteration", False)) or any(map(reshuffles, dataset._inputs()))


def divided(dataset: Any, plan: Plan | StreamPlan) -> Any:
    """Return this rank's elements, or batches of them. Each iteration is the next epoch."""
    epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
    division = plan.division
    mine = dataset
    if division.shuffle:

        def epoch_of(_: Any) -> Any:
            number = epoch.read_value()
            with tf.control_dependencies([epoch.assign(number + 1)]):
                return _shuffled(dataset, plan, tf.identity(number))

        mine = tf.data.Dataset.range(1).flat_map(epoch_of)
    mine = _part(mine, dataset, plan, _Deal.of(plan))
    if isinstance(plan, Plan):
        mine = mine.apply(tf.data.experimental.assert_cardinality(plan.steps))
    mine.padded, mine.dropped = getattr(plan, "padded", None), getattr(plan, "dropped", None)
    mine.set_epoch = epoch.assign
    mine.position = None
    return mine


def elastic(dataset: Any, plan: Plan | StreamPlan, position: Position) -> Any:
    """Return this rank's elements of the rest of an epoch, divided among the ranks present when an iteration begins."""

    def begin() -> Any:
        position.begin(None)
        return np.array([position.epoch, *_Deal.of(position.plan)], np.int64)

    def numbers(_: Any) -> Any:
        return tuple(tf.unstack(tf.ensure_shape(tf.numpy_function(begin, [], tf.int64), (1 + len(_Deal._fields),))))

    def rest(epoch: Any, *deal: Any) -> Any:
        mine = _shuffled(dataset, plan, epoch) if plan.division.shuffle else dataset
        return _part(mine, dataset, plan, _Deal(*deal))

    position.bind(plan)
    # Computing the numbers in the function of `flat_map` would crash TensorFlow 2.21.0, which asks it for its length.
    mine = tf.data.Dataset.range(1).map(numbers).flat_map(rest)
    mine.padded, mine.dropped = getattr(plan, "padded", None), getattr(plan, "dropped", None)
    mine.position = position
    for name in ("set_epoch", "advance", "state_dict", "load_state_dict"):
        setattr(mine, name, getattr(position, name))
    return mine


def watched(dataset: Any, judge: Judge) -> Any:
    """Return a dataset with the same elements that measures waiting times. See `waiting.Stopwatch`.

    A clock is read before and after each element, by the thread that asks for it. Python runs only when a check is due.
    """

    def look(steps: Any, spent: Any) -> Any:
        tell(judge.look(int(steps), *map(float, spent)))
        return np.zeros(2)

    def measure(state: Any, timed: Any) -> Any:
        (steps, spent, got), (asked, element, gets) = state, timed  # spent: waited, worked
        spent += tf.where(steps > 0, [0.0, asked - got], nothing)
        spent = tf.cond(
            tf.reduce_any(steps == _LOOKS), lambda: tf.numpy_function(look, [steps, spent], tf.float64), lambda: spent
        )
        spent += tf.where(steps >= 0, [gets - asked, 0.0], nothing)
        return (steps + 1, tf.ensure_shape(spent, (2,)), gets), element

    nothing = tf.zeros(2, tf.float64)
    clock = tf.data.Dataset.counter().map(lambda _: tf.timestamp())
    start = (tf.constant(-1, tf.int64), nothing, tf.constant(0.0, tf.float64))
    timed = tf.data.Dataset.zip(clock, dataset, clock).scan(start, measure)
    return timed.apply(tf.data.experimental.assert_cardinality(dataset.cardinality()))


class _Deal(NamedTuple):
    """The numbers in a plan. They are tensors where they are not known before an iteration begins."""

    rank: Any
    ranks: Any
    start: Any
    left: Any
    padded: Any
    steps: Any

    @classmethod
    def of(cls, plan: Plan | StreamPlan) -> _Deal:
        division = plan.division
        if isinstance(plan, StreamPlan):
            return cls(division.rank, division.ranks, plan.start, 0, 0, 0)
        return cls(division.rank, division.ranks, plan.start, plan.left - plan.dropped, plan.padded, plan.steps)


def _shuffled(dataset: Any, plan: Plan | StreamPlan, epoch: Any) -> Any:
    """Return the elements in the order of an epoch, which depends on nothing else, such as the seed of a dropout.

    It has to be called inside a function of a graph.
    """
    division = plan.division
    buffer = plan.samples if isinstance(plan, Plan) and division.shuffle is True else division.buffer
    tf.random.set_seed(1 + division.seed % _LARGEST)  # affects only this function's graph
    return dataset.shuffle(buffer, seed=epoch)


def _part(mine: Any, dataset: Any, plan: Plan | StreamPlan, deal: _Deal) -> Any:
    """Return this rank's part of `mine`, elements in order, which are padded with the first elements of `dataset`."""
    division = plan.division
    mine = mine.skip(deal.start)
    if isinstance(plan, StreamPlan) and dataset.cardinality() != tf.data.INFINITE_CARDINALITY:
        return _dealt_by_rounds(mine, division, deal)
    if isinstance(plan, Plan):
        mine = mine.take(deal.left).concatenate(dataset.take(deal.padded))
    return _dealt(mine, division, deal)


def _dealt(dataset: Any, division: Division, deal: _Deal) -> Any:
    mine = dataset.shard(deal.ranks, deal.rank)
    size = division.batch_size
    if size is None:
        return mine
    if division.pad or division.drop_remainder:
        return mine.batch(size, drop_remainder=division.drop_remainder)
    # The last batch may have one more. So batches do not end after a fixed count, but where the batch's number changes.
    last = tf.cast(deal.steps, tf.int64) - 1
    return mine.enumerate().group_by_window(
        lambda place, _: tf.minimum(place // size, last),
        lambda _, members: members.map(lambda _, element: element).batch(size + 1),
        window_size_func=lambda step: tf.where(step < last, tf.constant(size, tf.int64), size + 1),
    )


def _dealt_by_rounds(dataset: Any, division: Division, deal: _Deal) -> Any:
    """Deal a dataset whose last round is not known beforehand. If it is incomplete, it is extended by its own items."""

    def one_round(*components: Any) -> Any:
        samples = tf.data.Dataset.zip(components if len(components) > 1 or is_tuple else components[0])
        missing = -samples.cardinality() % tf.cast(deal.ranks, tf.int64)
        return _dealt(samples.concatenate(samples.repeat().take(missing)), division, deal)

    is_tuple = isinstance(dataset.element_spec, tuple)
    size = deal.ranks * (division.batch_size or 1)
    return dataset.window(size, drop_remainder=division.drop_remainder).flat_map(one_round)
