"""Keras tells the losses of layers in JAX by ids of arrays, and one that is reused must change nothing under `--auto`.

The first argument is "plain" to see that Keras alone takes one for another.
"""

import sys

import keras
import numpy as np
from keras import layers

from distrun.auto.keras import losses


class Reused(set):
    """The ids of a layer's losses, with all of the next call until they are cleared."""

    def __contains__(self, found):
        return super().__contains__("all") or super().__contains__(found)


class Penalty(layers.Layer):
    def call(self, inputs):
        self.add_loss(100 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def total():
    values = [
        [variable.value for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    _, _, found = model.stateless_call(*values, np.ones((4, 2), np.float32), return_losses=True)
    return float(sum(found))


is_plain = "plain" in sys.argv
if not is_plain:
    losses.install()
model = keras.Sequential([layers.Input((2,)), layers.Dense(3, activity_regularizer="l2"), Penalty()])
right = total()
object.__setattr__(model.layers[-1], "_loss_ids", Reused(["all"]))  # Keras would make a plain set of it
assert (total() == right) != is_plain
assert total() == right
