"""The reduction of the gradients of a training step, with few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import tensorflow as tf

from distrun.errors import NotOfferedError
from distrun.graphs.gradients import reduce_gradients as reduce_dense
from distrun.graphs.tensorflow import tracing
from distrun.graphs.tensorflow.calls import call
from distrun.graphs.tensorflow.facts import may_change, number
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.reduction import Average, Sum
from distrun.tensor_fusion.buckets import GradientInfo

Perform = Callable[[Sequence[Any], Call], list[tf.Tensor]]
"""Puts a collective on several tensors into the graph."""


@tf.autograph.experimental.do_not_convert
def reduce_gradients(gradients: Sequence[Any], collective: Call, sparse_as_dense: bool = False) -> list[Any]:
    """Return the gradients allreduced by `collective`, which has a name. None stays None.

    tf.IndexedSlices are kept unless `sparse_as_dense`, and refused if the op is neither Average nor Sum.
    """
    results = [
        tf.convert_to_tensor(each) if isinstance(each, tf.IndexedSlices) and sparse_as_dense else each
        for each in gradients
    ]
    if collective.process_set.stays_one() and collective.prescale * collective.postscale == 1.0:
        return results
    collective = tracing.told_apart(collective)
    sparse = [place for place, each in enumerate(results) if isinstance(each, tf.IndexedSlices)]
    dense = [place for place, each in enumerate(results) if each is not None and place not in sparse]
    put = _one_after_the_other()
    if dense:
        given = [tf.convert_to_tensor(results[place]) for place in dense]
        reduced = reduce_dense(given, collective, _Toolkit(), put)
        for place, tensor in zip(dense, reduced, strict=True):
            results[place] = tensor
    if sparse:
        gathered = gather_slices([results[place] for place in sparse], collective.named("sparse"), put)
        for place, slices in zip(sparse, gathered, strict=True):
            results[place] = slices
    if may_change():
        return _together(results)
    _count_reduction()
    return results


_reductions = 0


def reductions() -> int:
    """Return how often all gradients of a step have been reduced here. Graphs count in elastic jobs only."""
    return _reductions


def _count_reduction() -> np.int32:
    global _reductions
    _reductions += 1
    return np.int32(_reductions)


_counters: list[ReferenceType[Any]] = []


def count_after_reductions(variable: Any) -> None:
    """Make a variable that counts steps change only after the gradients of a step have been reduced.

    Otherwise, in a tf.function, it might count a step whose reduction fails.
    """
    _counters.append(ref(variable))


def _together(gradients: Sequence[Any]) -> list[Any]:
    """Return the gradients such that none is available before all are: a failed step must not change some variables
    only."""
    tensors = tf.nest.flatten(gradients, expand_composites=True)
    with tf.control_dependencies([tensor for tensor in tensors if tensor is not None]):
        counted = tf.numpy_function(_count_reduction, [], tf.int32)
    with tf.control_dependencies([counted]):
        together = [tensor if tensor is None else tf.identity(tensor) for tensor in tensors]
        for counter in [each() for each in _counters]:
            if counter is not None:
                tf.convert_to_tensor(counter)  # this read makes the write of the counter wait
    return tf.nest.pack_sequence_as(gradients, together, expand_composites=True)


def gather_slices(slices: Sequence[tf.IndexedSlices], collective: Call, put: Perform = call) -> list[tf.IndexedSlices]:
    """Return the allreduce of `slices` by Average or Sum: the rows of all ranks, scaled, and their indices."""
    if collective.op not in (Average, Sum):
        raise NotOfferedError(
            f"op={collective.op} of tf.IndexedSlices is not offered: use Sum or Average, or tf.convert_to_tensor before"
        )
    tensors = [each.values for each in slices] + [each.indices for each in slices]
    gathered = put(tensors, collective._replace(kind="allgather", prescale=1.0, postscale=1.0, wire=""))
    return [
        tf.IndexedSlices(_scaled(values, collective), indices, given.dense_shape)
        for values, indices, given in zip(gathered, gathered[len(slices) :], slices, strict=False)
    ]


def _scaled(values: tf.Tensor, collective: Call) -> tf.Tensor:
    factor = collective.prescale * collective.postscale
    if factor != 1.0:
        values = values * tf.cast(factor, values.dtype)
    if collective.op is not Average:
        return values
    return values / tf.cast(number(collective.process_set.size, tf.int32), values.dtype)


def _one_after_the_other() -> Perform:
    """Return a `call` whose collectives run one after the other.

    A TensorFlow 1 graph would start them in any order, and with few threads, ranks could wait for different ones.
    """
    last: list[tf.Tensor] = []

    def call_next(tensors: Sequence[tf.Tensor], collective: Call) -> list[tf.Tensor]:
        with tf.control_dependencies(last):
            results = call(tensors, collective)
        last[:] = results[:1]
        return results

    return call_next


class _Toolkit:
    """The operations on tensors that fusing needs. The runtime fuses eager tensors, which costs less."""

    def item(self, tensor: tf.Tensor) -> GradientInfo | None:
        if tf.executing_eagerly() or not tensor.shape.is_fully_defined():
            return None
        return GradientInfo(tensor.shape.num_elements() * tensor.dtype.size, tensor.dtype)

    def join(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)

    def cut(self, joined: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        pieces = tf.split(joined, [tensor.shape.num_elements() for tensor in like])
        return [tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]
