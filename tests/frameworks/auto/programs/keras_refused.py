"""Trainings that cannot be distributed as they stand; the arguments name them. Each refusal is caught and printed."""

import os
import sys

import keras
import numpy as np
from keras_steps import OwnStep

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


def fit_random(made):
    random = np.random.default_rng(0)
    made.fit(random.normal(size=X.shape), random.uniform(size=Y.shape), batch_size=8, epochs=2)


def fit_own(loss, kind=OwnStep):
    inputs = keras.layers.Input((3,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dropout(0.3)(keras.layers.Dense(4)(inputs)))
    made = kind(inputs, keras.layers.Dense(1)(hidden))
    made.own_loss = loss
    made.compile("sgd")
    rows = np.random.default_rng(0).normal(size=X.shape).astype("float32")
    made.fit(rows, Y, batch_size=8, epochs=2)


def summed_step():
    fit_own(lambda y, output: keras.ops.sum(keras.ops.square(y - output)))


def partly_summed_step():
    def loss(y, output):
        return keras.ops.mean(keras.ops.square(y - output)) + 0.05 * keras.ops.sum(keras.ops.abs(output))

    fit_own(loss)


def contrasted_step():
    fit_own(lambda y, output: keras.ops.mean(keras.ops.logsumexp(output - keras.ops.transpose(output), axis=1)))


def summed_compute_loss():
    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.sum(keras.ops.square(y - y_pred))

    fit_own(None, Own)


def summed_added_loss():
    class Penalty(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(0.01 * keras.ops.sum(keras.ops.square(inputs)))
            return inputs

    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4), Penalty(), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    made.fit(X, Y, batch_size=8)


def root_of_mean():
    def loss(y_true, y_pred):
        return keras.ops.sqrt(keras.ops.mean(keras.ops.square(y_true - y_pred)))

    fit_random(model(loss))


def dice():
    fit_random(model("dice"))


def summed_rows():
    def loss(y_true, y_pred):
        return keras.ops.sum(keras.ops.square(y_true - y_pred), axis=0)

    fit_random(model(loss))


def centered():
    class Center(keras.layers.Layer):
        def call(self, inputs):
            return inputs - keras.ops.mean(inputs, axis=0, keepdims=True)

    inputs = keras.layers.Input((3,))
    made = keras.Model(inputs, keras.layers.Dense(1)(Center()(keras.layers.Dense(4, activation="tanh")(inputs))))
    made.compile("sgd", "mse")
    fit_random(made)


def clipping_step():
    def loss(y, output):
        if keras.backend.backend() == "torch":
            import torch

            torch.nn.utils.clip_grad_norm_([torch.ones(3, requires_grad=True)], 1.0)
        else:
            import tensorflow as tf

            tf.clip_by_global_norm([tf.ones(3)], 1.0)
        return keras.ops.mean(keras.ops.square(y - output))

    fit_own(loss)


def stateful():
    made = keras.Sequential([keras.Input(batch_shape=(4, 5, 3)), keras.layers.GRU(2, stateful=True)])
    made.compile("sgd", "mse")
    made.fit(np.ones((8, 5, 3)), np.ones((8, 2)), batch_size=4)


def maximum_metric():
    class Largest(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.largest = self.add_variable((), "zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(keras.ops.abs(y_true - y_pred))))

        def result(self):
            return self.largest + 0.0

    made = model()
    made.compile("sgd", "mse", metrics=[Largest()])
    fit_random(made)


def training_alone():
    class Trains(keras.callbacks.CSVLogger):
        def on_epoch_end(self, epoch, logs=None):
            self.model.fit(X, Y, batch_size=4)

    model().fit(X, Y, batch_size=4, callbacks=[Trains(os.devnull)])


def different_later():
    made = model()
    made.fit(X, Y, batch_size=4)
    made.fit(np.random.default_rng(int.from_bytes(os.urandom(8), "big")).normal(size=X.shape), Y, batch_size=4)


def distribution():
    name = "DataParallel"  # not where it would be found in the source
    keras.distribution.set_distribution(getattr(keras.distribution, name)())


for case in sys.argv[1:]:
    keras.utils.clear_session()
    try:
        globals()[case]()
    except SystemExit as refusal:
        print(f"\n{case}: {refusal.code}: {refusal.reason}. Write instead: {' '.join(refusal.lines)}", flush=True)
    else:
        print(f"\n{case}: not refused", flush=True)
