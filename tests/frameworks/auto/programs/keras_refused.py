"""Plain scripts that cannot be distributed as they stand, chosen by the first argument."""

import os
import sys

import keras
import numpy as np

X = np.ones((16, 3), "float32")
Y = np.ones((16, 1), "float32")


def model(loss="mse"):
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    made.compile("sgd", loss)
    return made


def different_data():
    noise = np.random.default_rng(int.from_bytes(os.urandom(8), "big")).normal(size=X.shape)
    model().fit(noise, Y, batch_size=4)


def different_batches():
    x = X * int.from_bytes(os.urandom(4), "big")
    model().train_on_batch(x, Y)


def own_loop():
    optimizer = keras.optimizers.SGD(0.1)
    kernel = keras.Variable(np.ones((3, 1)), dtype="float32")
    for _ in range(3):
        optimizer.apply([keras.ops.ones((3, 1))], [kernel])


def odd_loss():
    def loss(y_true, y_pred):
        return keras.ops.sqrt(keras.ops.sum(keras.ops.square(y_true - y_pred)))

    model(loss).fit(X, Y, batch_size=4)


def no_reduction():
    model(keras.losses.MeanSquaredError(reduction=None)).fit(X, Y, batch_size=4)


def unknown_optimizer():
    hidden = {}

    class Own(keras.Sequential):
        def train_step(self, *given):
            hidden.setdefault("sgd", keras.optimizers.SGD(0.1)).apply([keras.ops.ones((3, 1))], [self.weights[0]])
            return given[0] if len(given) == 2 else {}

    made = Own([keras.layers.Input((3,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", run_eagerly=True)
    made.fit(X, Y, batch_size=4)


def distribution():
    name = "DataParallel"  # not where it would be found in the source
    keras.distribution.set_distribution(getattr(keras.distribution, name)())


print("begins")
globals()[sys.argv[1]]()
