"""The differentiable collectives, with the gradient of each.

Each rank has its own loss, and a gradient is that of the sum of all ranks' losses. Exceptions are allgather and
broadcast, which average over the ranks where the derivative is a sum, as in Horovod. `DistributedGradientTape` averages
in any case. For reducescatter see `reducescatter_gradient_factor`.

In a graph each gradient is an operation that all ranks execute, even if its result is known to be zero. It gets a new
name each time that TensorFlow asks for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from distrun.errors import UsageError
from distrun.graphs.tensorflow import call, call_rows, placed, told_apart
from distrun.graphs.tensorflow.facts import may_change, number
from distrun.runtime.collectives.call import Call, reducescatter_gradient_factor
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.world import world

Gradients = Sequence[Any]


def allreduce(tensors: Sequence[Any], collective: Call) -> list[tf.Tensor]:
    """Allreduce tensors. The gradient is the allreduce of the ranks' gradients, with the same op and factors."""
    collective = placed(collective)

    def backward(gradients: Gradients) -> list[tf.Tensor]:
        if collective.op not in (Average, Sum):
            raise UsageError(
                f"allreduce with op={collective.op} has no gradient here: reduce tf.stop_gradient(tensor) instead"
            )
        return allreduce(gradients, _of_gradient(collective))

    return _differentiable(tensors, lambda given: (call(given, collective), backward))


def allgather(tensors: Sequence[Any], collective: Call) -> list[tf.Tensor]:
    """Allgather tensors. The gradient is this rank's rows of the average of the ranks' gradients."""
    collective = placed(collective)
    rank = number(collective.process_set.rank, tf.int32)

    def forward(given: Sequence[tf.Tensor]) -> Any:
        results, received = call_rows(given, collective)
        starts = tf.reduce_sum(received[:, :rank], axis=1)

        def backward(gradients: Gradients) -> list[tf.Tensor]:
            averaged = allreduce(gradients, _averaging(collective))
            return [
                whole[starts[place] : starts[place] + received[place, rank]] for place, whole in enumerate(averaged)
            ]

        return results, backward

    return _differentiable(tensors, forward)


def reducescatter(tensors: Sequence[Any], collective: Call) -> list[tf.Tensor]:
    """Reducescatter tensors. The gradient is the concatenation of the ranks' gradients, times
    `reducescatter_gradient_factor`."""
    collective = placed(collective)
    factor = number(lambda: reducescatter_gradient_factor(collective), tf.float64)

    def backward(gradients: Gradients) -> list[tf.Tensor]:
        back = _of_gradient(collective)._replace(kind="allgather", op=Average, prescale=1.0, postscale=1.0, wire="")
        return [whole * tf.cast(factor, whole.dtype) for whole in allgather(gradients, back)]

    return _differentiable(tensors, lambda given: (call(given, collective), backward))


def broadcast(tensors: Sequence[Any], collective: Call) -> list[tf.Tensor]:
    """Broadcast tensors. The gradient is the average of the ranks' gradients on the root, and zero on other ranks."""
    collective = placed(collective)

    def backward(gradients: Gradients) -> list[tf.Tensor]:
        averaged = allreduce(gradients, _averaging(collective))
        if may_change():
            is_root = tf.equal(number(world.rank, tf.int32), collective.root)
            return [tf.where(is_root, each, tf.zeros_like(each)) for each in averaged]
        if world.rank() == collective.root:
            return averaged
        with tf.control_dependencies(averaged):  # or the graph would prune the allreduce, which the root needs
            return [tf.zeros_like(each) for each in averaged]

    return _differentiable(tensors, lambda given: (call(given, collective), backward))


def alltoall(tensor: Any, splits: Any, collective: Call) -> tuple[tf.Tensor, tf.Tensor]:
    """Send rows of a tensor to each rank. The gradient of each row comes back from the rank that received it."""
    collective = placed(collective)

    def forward(given: Sequence[tf.Tensor]) -> Any:
        results, received = call_rows(given, collective, splits)

        def backward(gradients: Gradients) -> list[tf.Tensor]:
            return [alltoall(gradients[0], received[0], _of_gradient(collective))[0]]

        return [*results, received[0]], backward

    received, rows = _differentiable([tensor], forward)
    return received, rows


def _of_gradient(collective: Call) -> Call:
    """Return the call for the gradient of another call, with a new name each time in a graph."""
    return told_apart(collective.named("gradient"))


def _averaging(collective: Call) -> Call:
    """Return the allreduce that averages the gradients of another call."""
    return _of_gradient(collective)._replace(kind="allreduce", op=Average, root=-1)


Backward = Callable[[Gradients], Sequence[tf.Tensor]]


def _differentiable(
    tensors: Sequence[Any], forward: Callable[[Sequence[tf.Tensor]], tuple[Sequence[tf.Tensor], Backward]]
) -> list[tf.Tensor]:
    """Return the results of `forward`, and register its `backward` with TensorFlow for tensors that can have a
    gradient: of floating-point and complex numbers."""
    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    places = [place for place, tensor in enumerate(given) if tensor.dtype.is_floating or tensor.dtype.is_complex]

    def both(*tensors: tf.Tensor) -> Any:
        results, backward = forward(tensors)

        def gradient(*gradients: Any) -> list[Any]:
            back: list[Any] = [None] * len(tensors)
            for place, each in zip(places, backward([gradients[place] for place in places]), strict=True):
                back[place] = each
            return back

        return list(results), gradient

    if not places:
        return list(both(*given)[0])
    return list(tf.custom_gradient(both)(*given))
