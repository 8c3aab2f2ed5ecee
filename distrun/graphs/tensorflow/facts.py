"""Facts about the world as tensors: in a graph they are found out each time that it runs.

A graph may outlive the world that it was made in: after `shutdown` and `init`, and in an elastic job, where a rank that
was there before goes on with the functions that it has traced.
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
    """Return what `fact` does, as a scalar."""
    world.current()
    if tf.executing_eagerly():
        return tf.constant(fact(), dtype, name=name)
    found = tf.numpy_function(lambda: np.array(fact(), dtype.as_numpy_dtype), [], dtype, name=name)
    found.set_shape([])
    return found


def may_change() -> bool:
    """Whether what is built now may run in other worlds than this one: so it must not hold what is known of this
    one."""
    return not tf.executing_eagerly() and world.is_elastic()


def number(fact: Callable[[], float], dtype: tf.DType) -> Any:
    """Return what `fact` does: as a scalar of a dtype where it may change, else as a number."""
    return scalar(fact, dtype=dtype) if may_change() else fact()


def stay_out(process_set: ProcessSet) -> None:
    """Note that what is built now does nothing about a process set, to which this rank does not belong: a graph fails
    when it runs in a world where the rank does."""
    if may_change() and not process_set.included():
        tf.numpy_function(lambda: _check_out(process_set), [], tf.int32)


def _check_out(process_set: ProcessSet) -> np.int32:
    if process_set.included():
        raise UsageError(
            f"this function was traced when the rank did not belong to {process_set!r}, and now rank {world.rank()} "
            "does: make the tf.function inside the function that elastic.run calls, so that it is traced anew"
        )
    return np.int32(0)
