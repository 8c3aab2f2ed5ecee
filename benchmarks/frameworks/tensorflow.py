"""TensorFlow: the cost that data parallelism adds to a tf.function, with tf.distribute and with distrun.tensorflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.frameworks.ranks import ALONE, LARGE, RATE, SMALL, TENSORS_100, Size, Training, Ways, main, steps

MULTI_WORKER, DISTRUN = "MultiWorkerMirrored", "distrun"


def multi_worker() -> Ways:
    """Return the trainings by tf.distribute, which must be the first to use TensorFlow in its process."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def start(size: Size) -> Training:
        with strategy.scope():
            variables = _variables(size)

        def update(_: tf.distribute.Strategy, gradients: Sequence[Any]) -> None:
            for variable, gradient in zip(variables, gradients, strict=True):
                strategy.extended.update(variable, lambda v, g: v.assign_sub(RATE * g), args=(gradient,))

        def apply(tape: tf.GradientTape, loss: Any) -> None:
            replica = tf.distribute.get_replica_context()
            gradients = replica.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, variables))
            replica.merge_call(update, args=(gradients,))

        step = _step(variables, apply)
        features, targets = map(tf.constant, size.batch())
        return _training(tf.function(lambda: strategy.run(step, (features, targets))), variables)

    return {ALONE: _alone, MULTI_WORKER: start}


def distrun() -> Ways:
    """Return the trainings by distrun's tape."""
    import distrun.tensorflow as dt

    dt.init()

    def start(size: Size) -> Training:
        return _plain(size, lambda tape: dt.DistributedGradientTape(tape))

    return {ALONE: _alone, DISTRUN: start}


def _alone(size: Size) -> Training:
    return _plain(size, lambda tape: tape)


def _plain(size: Size, wrap: Callable[[Any], Any]) -> Training:
    variables = _variables(size)

    def apply(tape: tf.GradientTape, loss: Any) -> None:
        for variable, gradient in zip(variables, wrap(tape).gradient(loss, variables), strict=True):
            variable.assign_sub(RATE * gradient)

    step = tf.function(_step(variables, apply))
    features, targets = map(tf.constant, size.batch())
    return _training(lambda: step(features, targets), variables)


def _training(step: Callable[[], object], variables: Sequence[tf.Variable]) -> Training:
    return Training(steps(step), lambda: (variable.numpy() for variable in variables))


def _variables(size: Size) -> list[tf.Variable]:
    return [tf.Variable(array) for layer in size.weights() for array in layer]


def _step(
    variables: Sequence[tf.Variable], apply: Callable[[tf.GradientTape, Any], None]
) -> Callable[[Any, Any], None]:
    """Return a step of gradient descent; the caller gives the treatment of gradients."""
    layers = list(zip(variables[::2], variables[1::2], strict=True))

    def step(features: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            outputs = features
            for number, (kernel, bias) in enumerate(layers):
                outputs = (outputs if number == 0 else tf.nn.relu(outputs)) @ kernel + bias
            loss = tf.reduce_mean(tf.square(outputs - targets))
        apply(tape, loss)

    return step


if __name__ == "__main__":
    main((SMALL, TENSORS_100, LARGE), {MULTI_WORKER: multi_worker, DISTRUN: distrun})
