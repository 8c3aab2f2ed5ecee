"""A train_step of the script's own whose loss adds up the samples of a batch."""

import keras
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_diabetes

keras.utils.set_random_seed(0)


class Regression(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.sum(ops.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=False))
        return {"loss": loss}


data = load_diabetes(scaled=True)
x, y = 20 * data.data.astype("float32"), data.target.astype("float32")[:, None] / 100
inputs = keras.Input((10,))
model = Regression(inputs, layers.Dense(1)(layers.Dense(16, activation="tanh")(inputs)))
model.compile(keras.optimizers.SGD(1e-4))
model.fit(x, y, batch_size=32, epochs=5, verbose=2)
print(f"test loss {ops.mean(ops.square(y - model(x))):.4f}")
