"""A `fit` under a launcher that replaces, drops and adds ranks; tells of each batch in a line of JSON.

HOLD names places, `generation:rank:epoch:batch`, at which a rank waits until somebody opens the named pipe `go`,
and it knows of a planned change.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any

import numpy as np

import distrun.keras as dt
from distrun.keras import elastic
from distrun.keras.choice import CHOSEN
from distrun.keras.library import state_of
from distrun.keras.values import array_of
from distrun.runtime.world import regroup, world

keras: Any = CHOSEN.PACKAGE
EPOCHS, STEPS, ROWS = 3, 12, 8


def tell(**facts: Any) -> None:
    print(json.dumps({"generation": world.generation(), "size": dt.size(), "rank": dt.rank(), **facts}), flush=True)


class Batches(keras.utils.Sequence):
    """Batches that are the same in each epoch, and others for each rank."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, place: int) -> Any:
        rows = np.random.RandomState(1000 * dt.rank() + place).rand(ROWS, 6).astype("float32")
        return rows, rows.sum(axis=1, keepdims=True)


class Witness(keras.callbacks.Callback):
    """Tells of what callbacks see, and waits where it is told to."""

    def on_train_begin(self, logs: Any = None) -> None:
        tell(begin=True, rate=float(array_of(self.model.optimizer.learning_rate)))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if f"{world.generation()}:{dt.rank()}:{self.epoch}:{batch}" in os.environ["HOLD"].split():
            tell(held=True)
            with open("go") as pipe:
                pipe.read()
            while regroup.planned() is None:  # what the launcher has said is read by a thread
                time.sleep(0.001)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if isinstance(logs["loss"], float):  # JAX computes ahead, and Keras leaves what has failed as it is
            tell(epoch=self.epoch, batch=batch, step=self.epoch * STEPS + batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        tell(ended=epoch, rate=float(array_of(self.model.optimizer.learning_rate)))


def model() -> Any:
    made = keras.Sequential(
        [keras.layers.Input((6,)), keras.layers.Dense(5), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    optimizer = dt.DistributedOptimizer(keras.optimizers.Adam(0.01))
    made.compile(optimizer, "mse", metrics=["mae"])
    return made


def digest(variables: Any) -> str:
    arrays = [np.asarray(array_of(each)) for each in variables]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:12]


@elastic.run
def train(state: Any) -> Any:
    stopping = keras.callbacks.EarlyStopping("loss", patience=100)
    history = state.model.fit(
        Batches(),
        epochs=EPOCHS,
        verbose=0,
        callbacks=[
            dt.callbacks.BroadcastGlobalVariablesCallback(0),
            elastic.ElasticCallback(state),
            dt.callbacks.MetricAverageCallback(),
            dt.callbacks.LearningRateWarmupCallback(0.01 * dt.size(), warmup_epochs=1),
            stopping,
            Witness(),
        ],
    )
    return history.history, history.epoch, stopping.wait


dt.init()
keras.utils.set_random_seed(dt.rank())
network = model()
state = elastic.KerasState(network)
history, epochs, wait = train(state)
weights = dt.allgather_object(digest(network.trainable_weights))
slots = dt.allgather_object(digest(state_of(network.optimizer)))
tell(
    result=True,
    weights=weights,
    slots=slots,
    iterations=int(array_of(network.optimizer.iterations)),
    epochs=epochs,
    losses=len(history["loss"]),
    names=sorted(history),
)
