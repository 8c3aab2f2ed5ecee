"""A plain script: it trains models in many ways, and writes down what came of each. It knows nothing of ranks."""

import json
import os
import sys

import keras
import numpy as np
from keras import layers
from keras_steps import OwnStep

RESULTS = {}
ROWS = 38  # the last batch of 12 has 2 rows, less than there are ranks
X = np.random.default_rng(0).normal(size=(ROWS, 5)).astype("float32")
Y = (X @ np.arange(5.0)[:, None] + 1).astype("float32")
CLASSES = (np.abs(X[:, 0] * 3).astype(int) % 3).astype("int32")


def case(function):
    only = sys.argv[2:]
    if only and function.__name__ not in only:
        return function
    keras.utils.set_random_seed(7)
    model, outcome = function()
    outcome = {name: np.asarray(value, np.float64).reshape(-1).tolist() for name, value in outcome.items()}
    outcome["weights"] = [float(np.abs(np.asarray(each)).sum()) for each in model.get_weights()]
    RESULTS[function.__name__] = outcome
    print("done", function.__name__, flush=True)
    return function


def regression(**options):
    model = keras.Sequential([layers.Input((5,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    model.compile(**{"optimizer": keras.optimizers.SGD(0.05, momentum=0.9), "loss": "mse", **options})
    return model


@case
def arrays():
    model = regression(metrics=["mae", keras.metrics.RootMeanSquaredError()])
    history = model.fit(X, Y, batch_size=12, epochs=3, validation_split=0.2)
    return model, history.history


@case
def weighted():
    model = regression(optimizer=keras.optimizers.Adam(0.01), weighted_metrics=["mae"])
    history = model.fit(
        X, Y, sample_weight=np.linspace(0.5, 1.5, ROWS), batch_size=12, epochs=2, validation_data=(X[:9], Y[:9])
    )
    return model, history.history


@case
def classes():
    inputs = layers.Input((5,))
    outputs = layers.Dense(3, activation="softmax", kernel_regularizer="l2")(layers.Dense(9, activation="relu")(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        X,
        CLASSES,
        batch_size=12,
        epochs=4,
        class_weight={0: 1.0, 1: 2.0, 2: 0.5},
        callbacks=[keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.5)],
        shuffle=False,
    )
    return model, {**history.history, "evaluate": model.evaluate(X, CLASSES, verbose=0)}


@case
def curves():
    inputs = layers.Input((5,))
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(inputs))
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(), keras.metrics.Precision(), "accuracy"])
    target = (X[:, :1] > 0).astype("float32")
    return model, model.fit(X, target, batch_size=12, epochs=3).history


@case
def masked():
    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Embedding(9, 4, mask_zero=True),
            layers.LSTM(5, return_sequences=True),
            layers.Dense(3),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(3)
    words = random.integers(1, 9, (ROWS, 6)) * (np.arange(6) < random.integers(1, 7, (ROWS, 1)))
    return model, model.fit(words, words % 3, batch_size=12, epochs=2).history


@case
def two_outputs():
    inputs = {"a": layers.Input((5,), name="a"), "b": layers.Input((5,), name="b")}
    both = layers.Concatenate()([inputs["a"], inputs["b"]])
    model = keras.Model(inputs, {"u": layers.Dense(1, name="u")(both), "v": layers.Dense(2, name="v")(both)})
    model.compile("rmsprop", {"u": "mse", "v": "mae"}, loss_weights={"u": 1.0, "v": 0.5}, metrics={"u": ["mae"]})
    history = model.fit({"a": X, "b": X[::-1]}, {"u": Y, "v": X[:, :2]}, batch_size=12, epochs=2)
    return model, history.history


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[index * 10 : index * 10 + 10], Y[index * 10 : index * 10 + 10]


@case
def sequence():
    model = regression()
    return model, model.fit(Sequence(), epochs=2).history


@case
def generator():
    def batches():
        while True:
            for index in range(4):
                yield X[index * 10 : index * 10 + 10], Y[index * 10 : index * 10 + 10]

    model = regression()
    return model, model.fit(batches(), epochs=2, steps_per_epoch=5).history


@case
def own_step():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dense(1)
            self.tracker = keras.metrics.Mean(name="loss")

        def call(self, x):
            return self.inner(x)

        @property
        def metrics(self):
            return [self.tracker]

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(keras.ops.abs(y - y_pred))

    model = Own()
    model.compile(keras.optimizers.SGD(0.1))
    return model, model.fit(X, Y, batch_size=12, epochs=2).history


@case
def own_train_step():
    inputs = layers.Input((5,))
    hidden = layers.BatchNormalization()(layers.Dense(6, activation="tanh")(inputs))
    model = OwnStep(inputs, layers.Dense(1)(hidden))
    model.own_loss = lambda y, output: keras.ops.mean(keras.ops.square(y - output)) + 0.1 * keras.ops.mean(output)
    model.compile(keras.optimizers.SGD(0.05))
    model.fit(X, Y, batch_size=12, epochs=2)
    return model, {"predict": model.predict(X, verbose=0)}


@case
def own_step_of_keras_losses():
    loss = keras.losses.MeanSquaredError(reduction="sum")
    inputs = layers.Input((5,))
    model = OwnStep(inputs, layers.Dense(1)(inputs))
    model.own_loss = lambda y, output: loss(y, output)
    model.compile(keras.optimizers.SGD(0.002))
    model.fit(X, Y, batch_size=12, epochs=2)
    return model, {"predict": model.predict(X, verbose=0)}


@case
def nested_logs():
    class Nested(keras.Sequential):
        def train_step(self, *given):
            result = super().train_step(*given)
            logs, *state = result if isinstance(result, tuple) else (result,)
            more = {} if state else {"text": "words"}  # JAX computes no text
            logs = {"loss": logs.pop("loss"), "compile_metrics": {**logs, "list": [None]}, "none": None, **more}
            return (logs, *state) if state else logs

    model = Nested([layers.Input((5,)), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    history = model.fit(X, Y, batch_size=12, epochs=2, verbose=0).history  # Keras's progress bar takes numbers alone
    return model, {name: history[name] for name in ("loss", "mae")}  # Keras flattens the nest


@case
def added_loss():
    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
            return inputs

    hidden = layers.Dense(4, activity_regularizer="l2")
    model = keras.Sequential([layers.Input((5,)), hidden, Penalty(), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model, model.fit(X, Y, batch_size=12, epochs=2).history


@case
def accumulated_in_two_fits():
    model = regression(optimizer=keras.optimizers.SGD(0.05, gradient_accumulation_steps=3))
    losses = [model.fit(X, Y, batch_size=12).history["loss"] for _ in range(3)]
    return model, {"losses": losses}


@case
def own_parts():
    class Scale(layers.Layer):
        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, inputs):
            return inputs * self.factor / keras.ops.max(1 + keras.ops.abs(inputs), axis=-1, keepdims=True)

    class Hits(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="hits")
            self.hits = self.add_variable((), "zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.hits.assign(self.hits + keras.ops.sum(keras.ops.cast(keras.ops.abs(y_true - y_pred) < 1, "float32")))

        def result(self):
            return self.hits + 0.0

    def loss(y_true, y_pred):
        return keras.ops.mean(keras.ops.log(keras.ops.cosh(y_pred - y_true)), axis=-1)

    def within(y_true, y_pred):
        return keras.ops.cast(keras.ops.abs(y_true - y_pred) < 2, "float32")

    model = keras.Sequential([layers.Input((5,)), Scale(), layers.Dense(4, activation="tanh"), layers.Dense(1)])
    model.compile("adam", loss, metrics=[Hits(), within])
    return model, model.fit(X, Y, batch_size=12, epochs=2).history


@case
def own_callbacks():
    class Best(keras.callbacks.Callback):
        loss, saved = np.inf, 0

        def on_train_batch_end(self, batch, logs):
            if logs["loss"] < self.loss:
                self.loss = logs["loss"]
                self.saved += 1
                self.model.save_weights(os.path.join(sys.argv[1], "best_batch.weights.h5"))

    class Evaluated(keras.callbacks.ModelCheckpoint):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, {"own": self.model.evaluate(X[:9], Y[:9], verbose=0)})

    best, path = Best(), os.path.join(sys.argv[1], "evaluated.weights.h5")
    checkpoint = Evaluated(path, monitor="own", mode="min", save_best_only=True, save_weights_only=True)
    model = regression()
    # Parts of one size, so that the loss until each batch is the mean of the ranks'.
    history = model.fit(X[:36], Y[:36], batch_size=12, epochs=3, shuffle=False, callbacks=[best, checkpoint])
    model.load_weights(path)
    return model, {**history.history, "saved": best.saved, "best": best.loss}


@case
def schedule():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.7)
    model = regression(optimizer=keras.optimizers.SGD(rate), run_eagerly=True)
    return model, model.fit(X, Y, batch_size=12, epochs=2).history


@case
def saved():
    folder = sys.argv[1]
    best = os.path.join(folder, "best.weights.h5")
    model = regression()
    callbacks = [
        keras.callbacks.ModelCheckpoint(best, monitor="loss", save_best_only=True, save_weights_only=True),
        keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
        keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        keras.callbacks.BackupAndRestore(os.path.join(folder, "backup")),
        keras.callbacks.TerminateOnNaN(),
    ]
    history = model.fit(X, Y, batch_size=12, epochs=4, callbacks=callbacks, validation_data=(X[:7], Y[:7]))
    model.load_weights(best)
    path = os.path.join(folder, "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    with open(os.path.join(folder, "log.csv")) as log:
        lines = len(log.readlines())
    again = loaded.fit(X, Y, batch_size=12, epochs=1).history["loss"]
    return loaded, {**history.history, "lines": lines, "again": again}


@case
def batches():
    model = regression(metrics=["mae"])
    losses = []
    for _ in range(2):
        for start in range(0, ROWS, 12):
            losses.append(model.train_on_batch(X[start : start + 12], Y[start : start + 12]))
    return model, {"losses": losses, "predict": model.predict(X, verbose=0)}


if keras.backend.backend() != "torch":

    @case
    def executions():
        model = regression(steps_per_execution=3)
        return model, model.fit(X, Y, batch_size=5, epochs=2).history


if keras.backend.backend() != "jax":

    @case
    def mixed():
        keras.config.set_dtype_policy("mixed_float16")
        model = regression(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), 64.0))
        keras.config.set_dtype_policy("float32")
        return model, model.fit(X, Y, batch_size=12, epochs=2).history


@case
def compiled():
    model = regression(jit_compile=keras.backend.backend() != "torch")
    return model, model.fit(X, Y, batch_size=12, epochs=2).history


@case
def dataset():
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(ROWS).batch(12).prefetch(1)
    model = regression()
    history = model.fit(data, epochs=2, validation_data=tf.data.Dataset.from_tensor_slices((X, Y)).batch(10))
    return model, history.history


if keras.backend.backend() == "torch":

    @case
    def loader():
        import torch

        data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
        model = regression()
        return model, model.fit(torch.utils.data.DataLoader(data, batch_size=12, shuffle=True), epochs=2).history


with open(os.path.join(sys.argv[1], f"{os.environ.get('DISTRUN_RANK', 0)}.json"), "w") as file:
    json.dump(RESULTS, file)
