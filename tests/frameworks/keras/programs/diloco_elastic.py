"""DiLoCo in a `fit` on hosts that come and go; tells of each batch in a line of JSON.

HOLD names places, `generation:rank:batches`, at which a rank that has begun so many batches in a generation waits for
its end: nobody can then be done before.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from typing import Any

import numpy as np

import distrun.keras as dt
from distrun.keras import elastic
from distrun.keras.choice import CHOSEN
from distrun.runtime.world import world

keras: Any = CHOSEN.PACKAGE
EPOCHS, STEPS = 3, 20


def tell(**facts: Any) -> None:
    print(json.dumps({"generation": world.generation(), "size": dt.size(), "rank": dt.rank(), **facts}), flush=True)


class Witness(keras.callbacks.Callback):
    """Tells of steps, and waits where it is told to."""

    _supports_tf_logs = True
    begun = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        tell(step=batch)
        self.begun += 1
        while f"{world.generation()}:{dt.rank()}:{self.begun}" in os.environ["HOLD"].split():
            signal.pause()
        time.sleep(0.01)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        weights = b"".join(np.asarray(array).tobytes() for array in self.model.get_weights())
        tell(epoch=epoch, weights=hashlib.sha256(weights).hexdigest())


dt.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(9), keras.layers.Dense(1)])
model.compile(dt.DiLoCo(keras.optimizers.Adam(0.01), every=6, fragments=2), "mse")
inputs = np.random.default_rng(dt.rank()).normal(size=(4 * STEPS, 6)).astype("float32")


@elastic.run
def train(state: Any) -> None:
    model.fit(
        *(inputs, inputs.sum(1, keepdims=True)),
        batch_size=4,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[elastic.ElasticCallback(state), Witness()],
    )


train(elastic.KerasState(model, epoch=0, batch=0))
