"""Sweeps of real training scripts: the example, and Keras by its callback."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "torch_sweep.py"
KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
from distrun.keras.callbacks import ReportCallback

model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.0), "mse")
data = np.full((8, 2), 1.0 + int(os.environ["DISTRUN_TRIAL"]))
seen = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: print("epoch", epoch, flush=True))
callbacks = [ReportCallback("loss"), seen]
model.fit(data, 100 * data[:, :1], epochs=3, verbose=0, callbacks=callbacks)
"""


def test_the_example_trains_and_is_pruned(sweep):
    run = sweep(
        *("--grid", "--prune", "--spares", "0", "-H", "localhost:1"), command=[str(EXAMPLE), "--epochs=3", "lr=0.1|0.0"]
    )
    assert run.wait(180) == 0
    assert run.results.states == ["complete", "pruned"]
    assert run.results.best["params"] == {"lr": 0.1}
    assert len(run.results.trials[1]["reports"]) == 2
    assert run.results.best["value"] < 0.9


def test_keras_reports_by_a_callback_and_ends_where_it_is_pruned(sweep):
    run = sweep(*("--seeds", "2", "--prune", "--prune-after", "1", "--spares", "0", "-H", "localhost:1"), script=KERAS)
    assert run.wait(180) == 0, run.stderr.data
    assert run.results.states == ["complete", "pruned"]
    assert [step for step, _ in run.results.trials[0]["reports"]] == [1, 2, 3]
    epochs = [line for line in run.results.log(1).splitlines() if line.startswith("epoch")]
    assert epochs == ["epoch 0"]
