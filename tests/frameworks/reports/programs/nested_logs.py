"""A train_step that returns the results of all metrics, as in Keras's guide: those of compiled metrics are nested."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf


class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, self(x))
        return {metric.name: metric.result() for metric in self.metrics}


keras.utils.set_random_seed(1)
inputs = keras.Input((4,))
model = Own(inputs, keras.layers.Dense(1)(inputs))
model.compile("sgd", "mse", metrics=["mae"])
x = np.random.RandomState(0).rand(64, 4).astype("float32")
history = model.fit(x, x.sum(1, keepdims=True), batch_size=16, epochs=1, verbose=0).history
numbers = [*history["loss"], *history["mae"], *model.get_weights()[0].ravel()]
print("loss, mae and weights", *(f"{number:.5f}" for number in numbers))
