"""A rank's part of a tf.data.Dataset: a tf.data.Dataset, which does its work in TensorFlow's own threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from distrun.data.plan import Division, Plan
from distrun.data.waiting import FIRST_LOOK, Judge, tell

_LARGEST = 2**31 - 2
"""TensorFlow takes 31 bits of a seed, and 0 for none."""
_LOOKS = tuple(FIRST_LOOK << doubled for doubled in range(32))


def length(dataset: Any) -> int | None:
    """Return the number of elements; None when the dataset does not know, or has no end."""
    number = int(dataset.cardinality())
    return number if number >= 0 else None


def seeds(dataset: Any) -> list[tuple[int, int]]:
    """The seeds of every `shuffle` in it: both 0 means that it has none."""
    found = [pair for source in dataset._inputs() for pair in seeds(source)]
    if hasattr(dataset, "_seed") and hasattr(dataset, "_seed2"):
        found.append((int(dataset._seed), int(dataset._seed2)))
    return found


def divided(dataset: Any, division: Division, plan: Plan | None) -> Any:
    """This rank's elements, or batches of them; without a plan, of a dataset of unknown length or without an end."""
    epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
    is_endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    if division.shuffle:
        buffer = plan.samples if plan and division.shuffle is True else division.buffer
        mine = _shuffled(dataset, buffer, division.seed, epoch)
    else:
        mine = dataset
    if plan is not None:
        mine = mine.take(plan.samples - plan.dropped).concatenate(dataset.take(plan.padded))
    if plan is not None or is_endless:
        mine = _dealt(mine, division)
    else:
        mine = _dealt_by_rounds(mine, division)
    if plan is not None:
        mine = mine.apply(tf.data.experimental.assert_cardinality(plan.steps))
    mine.padded = None if plan is None else plan.padded
    mine.dropped = None if plan is None else plan.dropped
    mine.set_epoch = epoch.assign
    return mine


def watched(dataset: Any, judge: Judge) -> Any:
    """Return a dataset of the same elements that is measured; see `waiting.Stopwatch`.

    A clock is read before and after each element, by the thread that asks for it. Python runs only when a look is due.
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


def _shuffled(dataset: Any, buffer: int, seed: int, epoch: Any) -> Any:
    """Return the elements in another order each time, which depends on nothing else, such as the seed of a dropout."""

    def epoch_of(_: Any) -> Any:
        tf.random.set_seed(1 + seed % _LARGEST)  # of this function's graph alone
        number = epoch.read_value()
        with tf.control_dependencies([epoch.assign(number + 1)]):
            return dataset.shuffle(buffer, seed=tf.identity(number))

    return tf.data.Dataset.range(1).flat_map(epoch_of)


def _dealt(dataset: Any, division: Division) -> Any:
    mine = dataset.shard(division.ranks, division.rank)
    if division.batch_size is None:
        return mine
    return mine.batch(division.batch_size, drop_remainder=division.drop_remainder)


def _dealt_by_rounds(dataset: Any, division: Division) -> Any:
    """Deal out a dataset whose last round nobody knows beforehand. If that is incomplete, it starts over."""

    def deal(*components: Any) -> Any:
        samples = tf.data.Dataset.zip(components if len(components) > 1 or is_tuple else components[0])
        missing = -samples.cardinality() % division.ranks
        return _dealt(samples.concatenate(samples.repeat().take(missing)), division)

    is_tuple = isinstance(dataset.element_spec, tuple)
    return dataset.window(division.round, drop_remainder=division.drop_remainder).flat_map(deal)
