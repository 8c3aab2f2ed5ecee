"""Keras: the cost that data parallelism adds to a step of fit, with keras.distribution and with distrun.keras."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from benchmarks.frameworks.ranks import (
    ALONE,
    BATCH,
    LARGE,
    RATE,
    SMALL,
    TENSORS_200,
    Size,
    Training,
    Ways,
    main,
    meeting,
)

DATA_PARALLEL, DISTRUN = "DataParallel", "distrun"


def data_parallel() -> Ways:
    """Return the trainings by Keras itself, which can do so on JAX only.

    It takes over all models made and fitted from then on.
    """
    keras.distribution.initialize(*meeting())
    distribution = keras.distribution.DataParallel(devices=keras.distribution.list_devices(), auto_shard_dataset=False)
    return {
        ALONE: _training,
        DATA_PARALLEL: lambda size: _training(size, distribution=distribution),
    }


def distrun() -> Ways:
    """Return the trainings by distrun's optimizer."""
    import distrun.keras as dk

    dk.init()
    return {
        ALONE: _training,
        DISTRUN: lambda size: _training(size, dk.DistributedOptimizer),
    }


def _training(
    size: Size, wrap: Callable[[Any], Any] = lambda optimizer: optimizer, distribution: Any = None
) -> Training:
    keras.distribution.set_distribution(distribution)
    model = _model(size)
    model.compile(wrap(keras.optimizers.SGD(RATE)), loss="mse")
    features, targets = size.batch()

    def run(count: int) -> float:
        keras.distribution.set_distribution(distribution)
        clock = Clock()
        x, y = (np.tile(array, (count + 1, 1)) for array in (features, targets))
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[clock])
        return clock.seconds / count

    return Training(run, model.get_weights)


def _model(size: Size) -> Any:
    widths = size.widths[1:]
    layers = [keras.layers.Dense(width, activation="relu") for width in widths[:-1]]
    model = keras.Sequential([keras.Input(size.widths[:1]), *layers, keras.layers.Dense(widths[-1])])
    model.set_weights([array for layer in size.weights() for array in layer])
    return model


class Clock(keras.callbacks.Callback):
    """The seconds from the end of the first step of an epoch to that of the last.

    It has no `on_train_batch_end`, since with one Keras waits for each step; without, JAX runs ahead, as it should.
    """

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if batch == 1:
            if keras.backend.backend() == "jax":
                self.model.jax_state_sync()
            self._settle()
            self._begun = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self._settle()
        self.seconds = time.perf_counter() - self._begun

    def _settle(self) -> None:
        """Wait until the weights are computed."""
        keras.ops.convert_to_numpy(self.model.trainable_variables[-1])


if __name__ == "__main__":
    main((SMALL, TENSORS_200, LARGE), {DATA_PARALLEL: data_parallel, DISTRUN: distrun})
