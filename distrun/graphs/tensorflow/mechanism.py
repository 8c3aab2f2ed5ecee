"""The choice of the mechanism for collectives in a graph: the kernel if it works, else tf.numpy_function.

The kernel costs less per call. But for large tensors, numpy_function returns results in the ranks' shared memory
without a copy, since TensorFlow keeps the numpy arrays alive. A kernel would have to copy them.

The kernel is registered when this module is imported, so that saved graphs with it can be loaded. It is tested before
its first use, not at import: running it would initialise TensorFlow's devices and threads, which the script must be
able to configure before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from distrun.contract import settings
from distrun.contract.settings import TENSORFLOW_OP
from distrun.errors import UsageError
from distrun.graphs.tensorflow import kernel, numpy_function
from distrun.runtime.collectives.call import Call


class Mechanism(Protocol):
    """Puts collectives into the graph that is being built."""

    def reduce(self, tensors: Sequence[tf.Tensor], collective: Call, /) -> list[tf.Tensor]:
        """Return the results of an allreduce or a broadcast."""
        ...

    def move_rows(
        self, tensors: Sequence[tf.Tensor], splits: tf.Tensor, collective: Call, /
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the results of an allgather, an alltoall or a reducescatter, and the rows of each from each rank.

        `splits` is an int32 vector, empty unless given to an alltoall.
        """
        ...


LARGE = 1 << 20
"""From this many bytes on, a copy costs more than the kernel saves."""


def reduce(tensors: Sequence[tf.Tensor], collective: Call) -> list[tf.Tensor]:
    """Put an allreduce or a broadcast into the graph."""
    way = mechanism()
    is_large = collective.kind == "allreduce" and _nbytes(tensors) >= LARGE
    # If the graph were not ordered, numpy_function would block a thread that other collectives need.
    if is_large and way is kernel and _is_free and kernel.is_ordered():
        way = numpy_function
    return way.reduce(tensors, collective)


def move_rows(tensors: Sequence[tf.Tensor], splits: tf.Tensor, collective: Call) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Put an allgather, an alltoall or a reducescatter into the graph. See `Mechanism`."""
    return mechanism().move_rows(tensors, splits, collective)


def _nbytes(tensors: Sequence[tf.Tensor]) -> int:
    """Return the total bytes of the tensors whose shapes are known."""
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors if tensor.shape.is_fully_defined())


def mechanism() -> Mechanism:
    """Return the mechanism to use, after a test of the kernel the first time."""
    global _mechanism, _is_tried, _is_free
    if not _is_tried:
        _is_tried = True
        _is_free = _choice() == "auto"
        if _mechanism is kernel:
            try:
                _try_kernel()
            except Exception as error:
                _mechanism = _other_than_kernel(error)
    return _mechanism


def _choice() -> str:
    return settings.current().tensorflow_op


def _registered() -> Mechanism:
    if _choice() == "numpy_function":
        return numpy_function
    try:
        kernel.register()
    except Exception as error:
        return _other_than_kernel(error)
    return kernel


def _try_kernel() -> None:
    with tf.init_scope():
        if not tf.executing_eagerly():  # TensorFlow 1: a test session would fix the number of threads of the script's
            return

        @tf.function(autograph=False, jit_compile=False)
        def both(tensor: tf.Tensor) -> list[tf.Tensor]:
            return kernel.reduce([tensor, tensor + 1.0], Call(kernel.PROBE, kernel.PROBE))

        shown = [result.numpy().tolist() for result in both(tf.constant([1.0, 2.0]))]
    if shown != [[1.0, 2.0], [2.0, 3.0]]:
        raise RuntimeError(f"a trial run gave {shown}")


def _other_than_kernel(error: Exception) -> Mechanism:
    told = f"{type(error).__name__}: {error}"
    if _choice() == "kernel":
        raise UsageError(
            f"{TENSORFLOW_OP}=kernel does not work with TensorFlow {tf.__version__} ({told}): "
            "use auto or numpy_function"
        ) from error
    logging.getLogger("distrun").warning(
        "TensorFlow %s does not take distrun's operation (%s), so collectives in graphs go through "
        "tf.numpy_function, which is a little slower; %s=numpy_function silences this",
        tf.__version__,
        told,
        TENSORFLOW_OP,
    )
    return numpy_function


_mechanism: Mechanism = _registered()
_is_tried = False
_is_free = False  # whether the user has not chosen a mechanism
