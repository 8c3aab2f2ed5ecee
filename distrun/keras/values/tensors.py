"""The collectives of `distrun.keras` with tensors of TensorFlow as results, as Horovod's Keras modules have them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from distrun.keras import values
from distrun.keras.choice import CHOSEN

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _of_tensors(function: Function) -> Function:
    """Return `function`, made to take values as `tf.constant` does and to return a tf.Tensor if TensorFlow is Keras's
    backend and runs eagerly. Otherwise it returns numpy arrays as before."""

    @functools.wraps(function)
    def collective(value: Any, *args: Any, **options: Any) -> Any:
        if CHOSEN.BACKEND != "tensorflow":
            return function(value, *args, **options)
        import tensorflow as tf

        if not tf.executing_eagerly():
            return function(value, *args, **options)
        return tf.convert_to_tensor(function(tf.convert_to_tensor(value), *args, **options))

    return cast(Function, collective)


allgather = _of_tensors(values.allgather)
allreduce = _of_tensors(values.allreduce)
broadcast = _of_tensors(values.broadcast)
reducescatter = _of_tensors(values.reducescatter)
