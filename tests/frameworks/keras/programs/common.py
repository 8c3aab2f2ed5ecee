"""Features that both versions of Keras have, on all backends."""

import os
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from checking import (
    BACKEND,
    RANK,
    ROWS,
    SIZE,
    callbacks,
    data,
    difference,
    feature,
    fit,
    keras,
    loss,
    mine,
    network,
    same_on_all_ranks,
    train,
)

import distrun.keras as hvd

optimizers = keras.optimizers
KINDS = {"new": optimizers, "legacy": optimizers.legacy} if keras.__name__ == "tf_keras" else {"new": optimizers}
FOLDER = Path(os.environ["TEST_FOLDER"])  # of all ranks


@feature("train_on_batch")
def _():
    def run(model, x, y, rows):
        for _ in range(2):
            for start in range(0, len(x), rows):
                model.train_on_batch(x[start : start + rows], y[start : start + rows])

    return train(lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True), run=run)


@feature("custom loop")
def _():
    def run(model, x, y, rows):
        step = {"jax": jax_step, "tensorflow": tensorflow_step, "torch": torch_step}[BACKEND](model)
        for start in range(0, len(x), rows):
            step(x[start : start + rows], y[start : start + rows])

    return train(lambda: optimizers.Adam(1e-2), run=run)


def jax_step(model):
    import jax

    optimizer, objective = model.optimizer, loss()
    optimizer.build(model.trainable_variables)

    def compute(weights, x, y):
        return objective(y, model.stateless_call(weights, [], x)[0])

    @jax.jit
    def update(weights, state, x, y):
        return optimizer.stateless_apply(state, jax.grad(compute)(weights, x, y), weights)

    def step(x, y):
        weights, state = update(
            [v.value for v in model.trainable_variables], [v.value for v in optimizer.variables], x, y
        )
        for variable, value in zip(model.trainable_variables + optimizer.variables, weights + state, strict=True):
            variable.assign(value)

    return step


def tensorflow_step(model):
    import tensorflow as tf

    objective = loss()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = objective(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return step


def torch_step(model):
    objective = loss()

    def step(x, y):
        import torch

        model.zero_grad()
        objective(torch.tensor(y), model(torch.tensor(x))).backward()
        with torch.no_grad():
            model.optimizer.apply([v.value.grad for v in model.trainable_weights], model.trainable_weights)

    return step


@feature("jit_compile=True")
def _():
    if BACKEND == "torch":
        return compiled_by_torch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = train(lambda: optimizers.SGD(0.1), jit_compile=True)
    outcome["warned"] = sum("turned jit_compile off" in str(warning.message) for warning in caught)
    return outcome


def compiled_by_torch():
    """All of a training step takes a minute to compile; this is the part that distrun is in."""
    import torch

    optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1))
    weights = [keras.Variable([1.0, 2.0])]
    optimizer.build(weights)
    step = torch.compile(lambda gradients: optimizer.apply(gradients, weights), backend="eager")
    for number in range(2):
        step([torch.tensor([RANK + 1.0, float(number)])])
    mean = (SIZE + 1) / 2
    expected = [1.0 - 0.2 * mean, 2.0 - 0.1]
    return {
        "same": same_on_all_ranks(weights),
        "difference": difference(weights, [np.array(expected)]),
        "moved": 1.0,
        "warned": 0,
    }


@feature("the optimizer of a trained model")
def _():
    model = network()
    model.compile(optimizers.SGD(0.1), loss())
    model.fit(*data(), batch_size=ROWS, verbose=0, shuffle=False)
    hvd.DistributedOptimizer(model.optimizer)  # what was compiled for the plain one must not be used any more
    fit(model)
    return {"same": same_on_all_ranks(model.get_weights())}


def embedding(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Embedding(11, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((6,), dtype="int32"), *layers])


def words():
    """Words for `embedding`, and their labels."""
    x, y = data()
    return (np.abs(x) * 4).astype("int32") % 11, y


@feature("embeddings")
def _():
    return train(lambda: optimizers.Adam(1e-2), embedding, given=words())


@feature("MetricAverageCallback")
def _():
    model = network()
    model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.0)), loss(), metrics=["accuracy"])
    x, y = data()
    part = mine(x), mine(y)
    history = fit(model, validation_data=part, callbacks=callbacks())
    whole = dict(zip(("loss", "accuracy"), model.evaluate(x, y, verbose=0), strict=True))
    own = dict(zip(("loss", "accuracy"), model.evaluate(*part, verbose=0), strict=True))
    return {
        "difference": max(abs(history[f"{kind}{name}"][0] - whole[name]) for name in whole for kind in ("", "val_")),
        "own": max(abs(whole[name] - own[name]) for name in whole),
    }


@feature("BestModelCheckpoint and OnRankZero")
def _():
    model = network()
    model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1)), loss())
    written = hvd.callbacks.OnRankZero(keras.callbacks.ModelCheckpoint(str(FOLDER / f"epoch.{RANK}.keras")))
    logged = hvd.callbacks.OnRankZero(keras.callbacks.CSVLogger(str(FOLDER / f"log.{RANK}.csv")))
    bar = hvd.callbacks.OnRankZero(keras.callbacks.ProgbarLogger())
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(FOLDER / f"best.{RANK}.keras"))
    fit(model, epochs=2, verbose=2, callbacks=[*callbacks(), best, written, logged, bar])
    files = [(FOLDER / name).exists() for name in (f"epoch.{RANK}.keras", f"log.{RANK}.csv", f"best.{RANK}.keras")]
    return {"files": files, "same": same_on_all_ranks(model.get_weights())}


@feature("LearningRateScheduleCallback with momentum correction")
def _():
    outcome = {}
    for kind, made in KINDS.items():
        for corrected in (True, False):
            model = network()
            model.compile(hvd.DistributedOptimizer(made.SGD(0.5, momentum=0.9)), loss())
            schedule = hvd.callbacks.LearningRateScheduleCallback(
                0.5, lambda epoch: 0.1**epoch, start_epoch=1, momentum_correction=corrected
            )
            logs = fit(model, 4, epochs=2, callbacks=[schedule])
            outcome[f"{kind}, {corrected}"] = [
                difference(model.get_weights(), momentum_by_hand(*data(4), corrected)),
                [round(rate, 6) for rate in logs["lr"]],
            ]
    return outcome


def momentum_by_hand(x, y, corrected):
    """Train two epochs by SGD with momentum in numpy, on Keras's gradients, the second at a tenth of the rate."""
    weights = [weight.astype("float64") for weight in network().get_weights()]
    speeds = [0.0] * len(weights)
    for epoch, rate in enumerate((0.5, 0.05)):
        if epoch and corrected:
            speeds = [speed * 0.1 for speed in speeds]
        for start in range(0, len(x), ROWS):
            slopes = gradients(weights, x[start : start + ROWS], y[start : start + ROWS])
            speeds = [0.9 * speed - rate * slope for speed, slope in zip(speeds, slopes, strict=True)]
            weights = [weight + speed for weight, speed in zip(weights, speeds, strict=True)]
    return weights


def gradients(weights, x, y):
    kernel, bias, last, offset = weights
    hidden = np.tanh(x @ kernel + bias)
    scores = np.exp(hidden @ last + offset)
    errors = (scores / scores.sum(1, keepdims=True) - np.eye(3)[y]) / len(x)
    inner = (errors @ last.T) * (1 - hidden**2)
    return [x.T @ inner, inner.sum(0), hidden.T @ errors, errors.sum(0)]


@feature("mixed precision, an infinity on one rank")
def _():
    outcome = {}
    for kind, made in KINDS.items():
        with mixed_precision():
            model = network()
            model.compile(hvd.DistributedOptimizer(made.SGD(0.05)), loss())
            x, y = (mine(array) for array in data())
            rows = ROWS // SIZE
            if RANK == SIZE - 1:
                x[2 * rows], x[4 * rows] = 1e30, np.inf
            model.fit(x, y, batch_size=rows, verbose=0, shuffle=False, callbacks=callbacks())
        optimizer = model.optimizer
        outcome[kind] = [
            int(optimizer.iterations),
            same_on_all_ranks(model.get_weights()),
            all(bool(np.isfinite(weight).all()) for weight in model.get_weights()),
            float(optimizer.dynamic_scale if hasattr(optimizer, "dynamic_scale") else optimizer.loss_scale),
        ]
    return outcome


@contextmanager
def mixed_precision():
    """Within this context models are made for mixed precision."""
    set_policy = keras.config.set_dtype_policy if len(KINDS) == 1 else keras.mixed_precision.set_global_policy
    set_policy("mixed_float16")
    try:
        yield
    finally:
        set_policy("float32")


# Layers that stay local, and compressors of the user's -----------------------------------------------------------


def two_layers():
    """A model whose second layer differs between the ranks, and is built by the first step on TensorFlow."""
    keras.utils.set_random_seed(1 + RANK)
    return keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])


def step_of(model, **options):
    """The change that one step of SGD at the rate 1 makes, and the gradients of one process on this rank's rows."""
    model.build((None, 6))
    hvd.broadcast_variables(model.layers[0].weights)
    before = model.get_weights()
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0, momentum=0.5), local_layers=model.layers[-1], **options
    )
    model.compile(optimizer, loss())
    fit(model, 1, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    return [old - new for old, new in zip(before, model.get_weights(), strict=True)]


def alone(model, before):
    """The change that the plain optimizer makes on this rank."""
    model.set_weights(before)
    model.compile(keras.optimizers.SGD(1.0), loss())
    fit(model, 1)
    return [old - new for old, new in zip(before, model.get_weights(), strict=True)]


@feature("local layers")
def _():
    outcome = {}
    for scales in (True, False):
        model = two_layers()
        model.build((None, 6))
        hvd.broadcast_variables(model.layers[0].weights)
        before = model.get_weights()
        together = step_of(model, scale_local_gradients=scales)
        own = alone(model, before)
        averaged = hvd.allreduce(own[0])
        factor = SIZE if scales else 1
        outcome[str(scales)] = [
            same_on_all_ranks(together[:2]),
            float(np.abs(together[0] - averaged).max()),
            float(np.abs(together[2] * factor - own[2]).max()),
            same_on_all_ranks(together[2:]),
        ]
    return outcome


@feature("local layers, built later")
def _():
    model = two_layers()
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.Adam(1e-2), local_layers=model.layers[1:])
    model.compile(optimizer, loss())
    fit(model, epochs=2, callbacks=callbacks())
    first, last = model.layers
    return [same_on_all_ranks(first.get_weights()), same_on_all_ranks(last.get_weights())]


class Negated:
    """A compressor of the user's; it notes its calls."""

    calls = 0

    @classmethod
    def compress(cls, tensor):
        cls.calls += 1
        return -tensor, "context"

    @staticmethod
    def decompress(tensor, ctx):
        assert ctx == "context"
        return -tensor


@feature("a compressor of one's own")
def _():
    model = network(1 + RANK)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=Negated), loss())
    fit(model, callbacks=callbacks())
    calls = Negated.calls
    value = hvd.allreduce(RANK + 1.0, compression=Negated)
    return {
        "same": same_on_all_ranks(model.get_weights()),
        "called": calls > 0 and calls % len(model.trainable_variables) == 0,
        "value": float(value),
    }
