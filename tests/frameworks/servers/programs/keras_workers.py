"""Workers of parameter servers: synchronous ones train as one process does, and others train."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
from expecting import raises

import distrun.keras as distrun
from distrun.errors import NotOfferedError, UsageError
from distrun.keras.library import attach
from distrun.keras.low_communication.embeddings import whole
from distrun.methods.servers.session import Session

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
    """The workers' batches are the halves of one process's batches."""
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


ROWS = 12


def embedded(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Embedding(ROWS, 3, name="words"), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,), dtype="int32"), *layers])


EMBEDDING_OPTIMIZERS = {
    "SGD of rows": lambda: keras.optimizers.SGD(0.5),
    "Adagrad of rows": lambda: keras.optimizers.Adagrad(0.3),
    "clipped SGD of rows": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1),
}


def check_rows(name, make):
    """Workers that pull and push rows train as one process does, and of the embedding nothing but those travels."""
    words = np.random.default_rng(1).integers(0, ROWS // 2, (32, 4)).astype("int32")  # the other half is in no batch
    words[0] = -1, 3, 3, 0  # the last row, and one that is there twice
    targets = words.sum(1, keepdims=True).astype("float32") / 20
    model, alone = embedded(distrun.rank()), embedded(0)
    optimizer = distrun.AsyncOptimizer(make(), staleness=0, model=model)
    model.compile(optimizer, "mse")
    alone.compile(with_whole_gradients(make()), "mse")
    size, rank = distrun.size(), distrun.rank()
    is_clipped = name.startswith("clipped")  # each worker clips its own gradients: the same data make that the same
    mine = np.arange(32) if is_clipped else np.arange(32).reshape(-1, size, 4)[:, rank].reshape(-1)
    with travelling() as travelled:
        fit(model, words[mine], targets[mine], 4)
    fit(alone, words, targets, 4 if is_clipped else 4 * size)
    batches = [set((words[mine[start : start + 4]] % ROWS).flat) for start in range(0, mine.size, 4)]
    assert travelled == [(way, batch) for batch in batches for way in ("pulled", "pushed")], travelled
    optimizer.synchronize()
    for one, other in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)
    optimizer.close()
    model.predict(words, verbose=0)  # it pulls nothing more
    with raises(UsageError, "this worker has left its parameter servers"):
        optimizer.synchronize()


def with_whole_gradients(optimizer):
    """Have Keras add up what a batch holds of one row: on TensorFlow its Adagrad squares each summand by itself."""
    plain = optimizer.apply
    attach(optimizer, "apply", lambda grads, *rest: plain([whole(grad) for grad in grads], *rest))
    return optimizer


@contextlib.contextmanager
def travelling():
    """Yields a list, of which rows of an embedding were pulled and pushed meanwhile."""
    found = []

    def rows(self, parameter, indices, staleness):
        found.append(("pulled", set(indices.tolist())))
        return plain_rows(self, parameter, indices, staleness)

    def push(self, rates, present, sparse, staleness, ahead):
        found.extend(("pushed", set(indices.tolist())) for indices, _ in sparse.values())
        plain_push(self, rates, present, sparse, staleness, ahead)

    plain_rows, plain_push = Session.rows, Session.push
    Session.rows, Session.push = rows, push
    try:
        yield found
    finally:
        Session.rows, Session.push = plain_rows, plain_push


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
    with raises(NotOfferedError, "Adam as it is set changes rows of words that have no gradient"):
        distrun.AsyncOptimizer(keras.optimizers.Adam(), model=embedded(0))
    for name, make in OPTIMIZERS.items():
        check_synchronous(name, make)
    for name, make in EMBEDDING_OPTIMIZERS.items():
        check_rows(name, make)
    check_asynchronous()
    print("all is well", flush=True)


main()
