"""Facts about the world as tensors: in a graph, they are evaluated each time it runs.

A graph may outlive the world where it was made: after `shutdown` and `init`, and in an elastic job, where an old rank
continues to use the functions that it has traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from distrun.errors import UsageError
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.runtime.world import world


@tf.autograph.experimental.do_not_convert
def scalar(fact: Callable[[], float], name: str | None = None, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Return the result of `fact` as a scalar tensor."""
    world.current()
    if tf.executing_eagerly():
        return tf.constant(fact(), dtype, name=name)
    found = tf.numpy_function(lambda: np.array(fact(), dtype.as_numpy_dtype), [], dtype, name=name)
    found.set_shape([])
    return found


def may_change() -> bool:
    """Return whether the graph that is being built may run in other worlds, so it must have no constants of this
    one."""
    return not tf.executing_eagerly() and world.is_elastic()


def number(fact: Callable[[], float], dtype: tf.DType) -> Any:
    """Return the result of `fact`, as a scalar tensor of `dtype` if it may change, else as a number."""
    return scalar(fact, dtype=dtype) if may_change() else fact()


def stay_out(process_set: ProcessSet) -> None:
    """Make a graph fail if it runs in a world where this rank belongs to `process_set`.

    The rank does not belong to it now, so the graph that is being built skips the operations of the set.
    """
    if may_change() and not process_set.included():
        tf.numpy_function(lambda: _check_out(process_set), [], tf.int32)


def _check_out(process_set: ProcessSet) -> np.int32:
    if process_set.included():
        raise UsageError(
            f"this function was traced when the rank did not belong to {process_set!r}, and now rank {world.rank()} "
            "does: make the tf.function inside the function that elastic.run calls, so that it is traced again"
        )
    return np.int32(0)
