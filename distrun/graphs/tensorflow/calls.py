"""One collective on several dense tensors: eagerly, in a tf.function, or in a TensorFlow 1 graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from distrun.errors import DistrunError, UsageError
from distrun.graphs import arrays
from distrun.graphs.tensorflow import errors, mechanism, tracing
from distrun.runtime.collectives.call import MOVES_ROWS, Call, check_rows, group_of
from distrun.runtime.operations.dtypes import ELEMENT_TYPES
from distrun.runtime.world import world


@tf.autograph.experimental.do_not_convert
def call(tensors: Sequence[Any], collective: Call) -> list[tf.Tensor]:
    """Return the results of a collective on `tensors`, of any dtypes and shapes. They are not differentiable.

    An eager collective without a name is matched by its order. In a graph, it gets a name.

    Raises:
        UsageError: the elements have an unsupported type, or XLA compiles the graph.
        NotInitializedError: `init()` has not been called.
        CollectiveError: see `Handle.wait`. In a graph, a tf.errors.OpError with its text is raised instead. For the
            classes see `errors`.
    """
    if collective.kind in MOVES_ROWS:
        return call_rows(tensors, collective)[0]
    given, collective = _checked(tensors, collective)
    if tf.executing_eagerly():
        try:
            return [tf.convert_to_tensor(array) for array in arrays.reduce(_shown(given), collective)]
        except DistrunError as error:
            raise errors.for_tensorflow(error) from None
    return mechanism.reduce(given, collective)


@tf.autograph.experimental.do_not_convert
def call_rows(tensors: Sequence[Any], collective: Call, splits: Any = None) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the results of a collective that moves rows, and how many rows of each came from each rank.

    The latter is an int32 tensor [tensors, ranks], or [tensors, 0] after a reducescatter. `splits` are for an alltoall.
    Raises what `call` raises.
    """
    given, collective = _checked(tensors, collective)
    for tensor in given:
        if tensor.shape.rank is not None:
            check_rows(collective.kind, [tuple(tensor.shape)])
    if tf.executing_eagerly():
        rows = None if splits is None else np.asarray(splits)
        try:
            results, received = arrays.move_rows(_shown(given), rows, collective)
        except DistrunError as error:
            raise errors.for_tensorflow(error) from None
        return [tf.convert_to_tensor(result) for result in results], tf.convert_to_tensor(received)
    where = tf.constant([], tf.int32) if splits is None else tf.cast(splits, tf.int32)
    nodes, received = mechanism.move_rows(given, where, collective)
    for node, tensor in zip(nodes, given, strict=True):
        if tensor.shape.rank is not None:
            node.set_shape([None, *tensor.shape[1:]])
    return nodes, received


def _checked(tensors: Sequence[Any], collective: Call) -> tuple[list[tf.Tensor], Call]:
    world.engine()  # raises now, not when the graph runs
    given = [tf.convert_to_tensor(tensor) for tensor in group_of(tensors)]
    for tensor in given:
        _check_dtype(tensor, collective)
    return given, placed(collective)


@tf.autograph.experimental.do_not_convert
def placed(collective: Call) -> Call:
    """Return the collective with a name and the call site, if it has none."""
    name = collective.name
    if not tf.executing_eagerly():
        tracing.refuse_xla(collective.kind)
        name = name or tracing.name_in_graph(collective.kind)
    return collective._replace(name=name, site=collective.site or tracing.site())


def _check_dtype(tensor: tf.Tensor, collective: Call) -> None:
    name = tensor.dtype.name
    if name not in ELEMENT_TYPES:
        known = ", ".join(each for each in ELEMENT_TYPES if hasattr(tf, each))
        raise UsageError(
            f"elements of {tensor.dtype!r} cannot travel (known: {known}): convert the tensor with tf.cast"
        )
    collective.check(name)


def _shown(tensors: Sequence[tf.Tensor]) -> list[np.ndarray[Any, Any]]:
    """Return the memory of eager tensors as arrays. Those without dimensions are scalars, which are copied."""
    return [np.asarray(tensor if tensor.shape.rank else tensor.numpy()) for tensor in tensors]
