"""Workers of parameter servers: synchronous ones train as one process does, and others train."""

from __future__ import annotations

import keras
import numpy as np
from expecting import raises

import distrun.keras as distrun
from distrun.errors import NotOfferedError

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "plain SGD": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), clipnorm=1.0),
    "AdamW": lambda: keras.optimizers.AdamW(0.01),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
}
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((64, 6)).astype("float32")
Y = X.sum(1, keepdims=True)


def network(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((6,)), *layers])


def fit(model, x, y, batch, epochs=1):
    model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)


def check_synchronous(name, make):
    """The workers' batches are the halves of those of one process."""
    model, alone = network(distrun.rank()), network(0)  # the parameters of rank 0 count
    optimizer = distrun.AsyncOptimizer(make(), staleness=0)
    model.compile(optimizer, "mse")
    alone.compile(make(), "mse")
    size, rank = distrun.size(), distrun.rank()
    mine = np.arange(64).reshape(-1, size, 8)[:, rank].reshape(-1)
    if name == "plain SGD":  # each worker clips its own gradients: the same data make that the same
        mine = np.arange(64)
    fit(model, X[mine], Y[mine], 8)
    fit(alone, X, Y, 8 if name == "plain SGD" else 8 * size)
    for one, other in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)
    optimizer.close()


def check_asynchronous():
    model = network(3)
    optimizer = distrun.AsyncOptimizer(keras.optimizers.Adam(0.02), staleness=float("inf"))
    model.compile(optimizer, "mse")
    before = model.evaluate(X, Y, verbose=0)
    fit(model, X[distrun.rank() :: 2], Y[distrun.rank() :: 2], 8, epochs=20)
    distrun.barrier()
    optimizer.synchronize()
    after = model.evaluate(X, Y, verbose=0)
    assert after < before / 2, (before, after)
    optimizer.close()


def main():
    distrun.init()
    with raises(NotOfferedError, "RMSprop cannot run on parameter servers"):
        distrun.AsyncOptimizer(keras.optimizers.RMSprop())
    for name, make in OPTIMIZERS.items():
        check_synchronous(name, make)
    check_asynchronous()
    print("all is well", flush=True)


main()
