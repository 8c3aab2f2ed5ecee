"""Train with compressed gradients, and tell this rank's residuals after each step:
`graph_residuals.py FACE FORM [commits]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import lossy_steps
import numpy as np

import distrun
from distrun.graphs import residuals

FACE, FORM = sys.argv[1:3]
COMMITS = sys.argv[3:] == ["commits"]


def owed() -> list[float]:
    """Return the sizes of the residuals, by gradient."""
    found = [places for _, places in sorted(residuals.residuals().items())]
    return [float(np.abs(places[place].lost).sum()) for places in found for place in sorted(places)]


def compression_of(face: Any) -> Any:
    """Return the compression that the test asks for."""
    return face.Compression.powersgd(2) if FORM == "powersgd" else face.Compression.int4


def batch() -> np.ndarray[Any, Any]:
    """Return a batch of this rank's own."""
    return np.random.default_rng().standard_normal((8, 64), np.float32)


def jax_training() -> tuple[Any, Any, Callable[[Any], list[Any]]]:
    """Return `run`, a state, and a step, which returns the weights."""
    import jax
    import jax.numpy as jnp
    import optax

    import distrun.jax as hvd
    from distrun.jax import elastic

    optimizer = hvd.DistributedOptimizer(optax.sgd(1e-4), compression=compression_of(hvd))
    params = {"a": jnp.ones((64, 96)) / 64, "b": jnp.ones((96, 64)) / 96}

    @jax.jit
    def update(params: Any, moments: Any, rows: Any) -> Any:
        gradients = jax.grad(lambda p: (jnp.tanh(rows @ p["a"]) @ p["b"]).sum() ** 2)(params)
        updates, moments = optimizer.update(gradients, moments)
        return optax.apply_updates(params, updates), moments

    def step(state: Any) -> list[Any]:
        state.params, state.moments = update(state.params, state.moments, batch())
        return jax.tree.leaves(state.params)

    return elastic.run, elastic.JaxState(params=params, moments=optimizer.init(params), step=0), step


def tensorflow_training() -> tuple[Any, Any, Callable[[Any], list[Any]]]:
    """See `jax_training`."""
    import tensorflow as tf

    import distrun.tensorflow as hvd
    from distrun.tensorflow import elastic

    weights = [tf.Variable(tf.ones(shape) / 64) for shape in ((64, 96), (96, 64))]

    @tf.function
    def update(rows: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(rows @ weights[0]) @ weights[1]) ** 2
        tape = hvd.DistributedGradientTape(tape, compression=compression_of(hvd))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-4 * gradient)

    def step(_: Any) -> list[Any]:
        update(batch())
        return weights

    return elastic.run, elastic.TensorFlowState(weights, step=0), step


def keras_training() -> tuple[Any, Any, Callable[[Any], list[Any]]]:
    """See `jax_training`."""
    import keras

    import distrun.keras as hvd
    from distrun.keras import elastic

    layers = [keras.layers.Dense(96, "tanh"), keras.layers.Dense(64)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-4), compression=compression_of(hvd)), "mse")

    def step(_: Any) -> list[Any]:
        model.train_on_batch(batch(), batch())
        return model.get_weights()

    return elastic.run, elastic.KerasState(model, step=0), step


distrun.init()
run, state, step = {"jax": jax_training, "tensorflow": tensorflow_training, "keras": keras_training}[FACE]()


@run
def train(state: Any) -> None:
    """Take steps until this process is killed."""
    lossy_steps.train(state, step, owed, COMMITS)


train(state)
