"""Collectives as nodes of a graph by tf.numpy_function: public, slower for small tensors, and bound to this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from distrun.graphs import arrays
from distrun.runtime.collectives.call import Call


def reduce(tensors: Sequence[tf.Tensor], collective: Call) -> list[tf.Tensor]:
    """Return the results of a new node for an allreduce or a broadcast."""

    def execute(*given: Any) -> list[Any]:
        return arrays.reduce([np.asarray(each) for each in given], collective)

    results = tf.numpy_function(execute, tensors, [tensor.dtype for tensor in tensors], name=collective.kind)
    return [tf.ensure_shape(result, tensor.shape) for result, tensor in zip(results, tensors, strict=True)]


def move_rows(tensors: Sequence[tf.Tensor], splits: tf.Tensor, collective: Call) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the results of a new node for an allgather, an alltoall or a reducescatter."""

    def execute(splits: Any, *given: Any) -> list[Any]:
        results, received = arrays.move_rows(
            [np.asarray(each) for each in given], splits if splits.size else None, collective
        )
        return [*results, received]

    types = [*[tensor.dtype for tensor in tensors], tf.int32]
    *results, received = tf.numpy_function(execute, [splits, *tensors], types, name=collective.kind)
    received.set_shape([len(tensors), None])
    return results, received
