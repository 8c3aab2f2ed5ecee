"""Gradients that are combined by Adasum, each by itself, eagerly and in a graph."""

import numpy as np
import tensorflow as tf

import distrun.tensorflow as hvd

SHAPES = [(3,), (2, 2)]


def gradient_of(rank: int, place: int) -> np.ndarray:
    return np.random.default_rng([rank, place]).normal(size=SHAPES[place])


def formula(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - product / (2 * of_a)) * a + (1 - product / (2 * of_b)) * b


def gradients() -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        parts = [tf.reduce_sum(variable * gradient_of(hvd.rank(), place)) for place, variable in enumerate(variables)]
        loss = tf.add_n(parts)
    return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, variables)


hvd.init()
variables = [tf.Variable(tf.zeros(shape, tf.float64)) for shape in SHAPES]
for compute in (gradients, tf.function(gradients)):
    for place, found in enumerate(compute()):
        assert np.allclose(found.numpy(), formula(gradient_of(0, place), gradient_of(1, place))), (place, found)
