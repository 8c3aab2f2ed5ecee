"""A `fit` on data of `distrun.data.shard`, in which ranks die; the weights count how often each sample was taken.

DIE names places, `generation:rank:epoch:batch`. The argument says who keeps the place in the data: `fit`, with data
made inside the function, or `state`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import numpy as np

import distrun.data
import distrun.keras as dt
from distrun.keras import elastic
from distrun.keras.choice import CHOSEN
from distrun.keras.values import array_of
from distrun.runtime.world import world

keras: Any = CHOSEN.PACKAGE
EPOCHS, SAMPLES, ROWS = 3, 96, 4
IN_STATE = sys.argv[1] == "state"


class Death(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if f"{world.generation()}:{dt.rank()}:{self.epoch}:{batch}" in os.environ["DIE"].split():
            os.kill(os.getpid(), signal.SIGKILL)


def total(_: Any, predicted: Any) -> Any:
    return keras.ops.sum(predicted)


def sharded() -> Any:
    samples = np.eye(SAMPLES, dtype="float32"), np.zeros((SAMPLES, 1))
    return distrun.data.shard(samples, batch_size=ROWS, shuffle=True)


@elastic.run
def train(state: Any) -> Any:
    batches = state.batches if IN_STATE else sharded()
    return state.model.fit(batches, epochs=EPOCHS, verbose=0, callbacks=[elastic.ElasticCallback(state), Death()]).epoch


dt.init()
model = keras.Sequential(
    [keras.layers.Input((SAMPLES,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
)
# The gradient of a sample's weight is 1 where the sample is taken.
model.compile(dt.DistributedOptimizer(keras.optimizers.SGD(1.0), op=dt.Sum), total)
epochs = train(elastic.KerasState(model, **({"batches": sharded()} if IN_STATE else {})))
counts = -array_of(model.weights[0]).reshape(-1)
print(json.dumps({"result": counts.tolist(), "epochs": epochs, "size": dt.size()}), flush=True)
