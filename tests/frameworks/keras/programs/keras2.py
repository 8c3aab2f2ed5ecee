"""Features of Keras 2 (tf_keras) under TF_USE_LEGACY_KERAS=1, with its newer optimizers and its legacy ones."""

import os
from pathlib import Path

import checking
import numpy as np
import tensorflow as tf
from checking import (
    RANK,
    ROWS,
    SIZE,
    callbacks,
    data,
    difference,
    error_of,
    feature,
    fit,
    keras,
    loss,
    mine,
    network,
    same_on_all_ranks,
    train,
)
from common import KINDS

import distrun.tensorflow as hvd_tf
import distrun.tensorflow.keras as hvd

FOLDER = Path(os.environ["TEST_FOLDER"])  # of all ranks
assert keras.optimizers.Adam is tf.keras.optimizers.Adam

for _kind, _optimizers in KINDS.items():
    for _name, _make in {
        "Adam": lambda kind: kind.Adam(1e-2),
        "momentum and clipnorm": lambda kind: kind.SGD(0.1, momentum=0.9, clipnorm=0.05),
        "learning-rate schedule": lambda kind: kind.SGD(keras.optimizers.schedules.CosineDecay(0.2, 12)),
        "LossScaleOptimizer": lambda kind: keras.mixed_precision.LossScaleOptimizer(kind.SGD(0.1)),
    }.items():
        feature(f"{_name}, {_kind}")(lambda make=_make, kind=_optimizers: train(lambda: make(kind)))


@feature("what scripts for Horovod do")
def _():
    model = network()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(1e-3 * hvd.size()))
    model.compile(optimizer, loss(), metrics=["accuracy"], experimental_run_tf_function=False)
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((mine(x), mine(y))).repeat().batch(ROWS // SIZE)
    given = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=1e-3 * hvd.size(), warmup_epochs=1, verbose=0),
    ]
    logs = model.fit(dataset, steps_per_epoch=4, epochs=2, verbose=0, callbacks=given).history
    hvd_tf.broadcast_variables(optimizer.variables(), root_rank=0)
    return {"same": same_on_all_ranks(model.get_weights()), "lr": [round(rate, 6) for rate in logs["lr"]]}


@feature("backward_passes_per_step")
def _():
    outcome = {}
    for kind, optimizers in KINDS.items():
        for is_average in (True, False):
            model = network(1 + RANK)
            schedule = keras.optimizers.schedules.CosineDecay(0.3 if is_average else 0.1, 4)
            options = {"backward_passes_per_step": 3, "average_aggregated_gradients": is_average}
            optimizer = hvd.DistributedOptimizer(optimizers.SGD(schedule, momentum=0.9), **options)
            model.compile(optimizer, loss())
            with checking.count_reductions() as count:
                fit(model, epochs=2, callbacks=callbacks())
            reference = network(1)
            schedule = keras.optimizers.schedules.CosineDecay(0.3, 4)
            reference.compile(optimizers.SGD(schedule, momentum=0.9), loss())
            reference.fit(*data(), batch_size=3 * ROWS, epochs=2, shuffle=False, verbose=0)
            outcome[f"{kind}, {is_average}"] = [
                same_on_all_ranks(model.get_weights()),
                difference(model.get_weights(), reference.get_weights()),
                count.value,
                int(optimizer.iterations),
            ]
    return outcome


# Files ----------------------------------------------------------------------------------------------------------------


@feature("saved files")
def _():
    outcome = {}
    for kind, optimizers in KINDS.items():
        for suffix in (".h5", ".keras", ""):
            model = network(1 + RANK)
            model.compile(hvd.DistributedOptimizer(optimizers.Adam(1e-2)), loss())
            fit(model, callbacks=callbacks())
            path = str(FOLDER / f"{kind}.{RANK}{suffix}")
            model.save(path)
            plain = keras.models.load_model(path).optimizer
            loaded = hvd.load_model(path, legacy_opts=kind == "legacy")
            for each in (model, loaded):
                fit(each)
            outcome[f"{kind}{suffix}"] = [
                type(plain) is optimizers.Adam,
                difference(model.get_weights(), loaded.get_weights()),
                same_on_all_ranks(loaded.get_weights()),
                type(loaded.optimizer).__module__ == optimizers.Adam.__module__,
            ]
    return outcome


# Values and layers ----------------------------------------------------------------------------------------------------


@feature("collectives on values")
def _():
    return {
        "allreduce": hvd.allreduce(tf.constant([1.0 + RANK, 2.0])).numpy().tolist(),
        "sum": float(hvd.allreduce(RANK + 1.0, op=hvd.Sum)),
        "allgather": hvd.allgather([[RANK]]).numpy().ravel().tolist(),
        "broadcast": hvd.broadcast(tf.Variable([float(RANK)]), root_rank=1).numpy().tolist(),
        "reducescatter": hvd.reducescatter(np.arange(2.0), op=hvd.Sum).numpy().tolist(),
    }


@feature("SyncBatchNormalization")
def _():
    rows = np.random.default_rng(1).normal(size=(8, 2, 2, 3)).astype("float32")
    together, alone = hvd_tf.SyncBatchNormalization(), keras.layers.BatchNormalization(fused=False)
    part = slice(0, 5) if RANK == 0 else slice(5, 8)
    outcome = difference([together(rows[part], training=True)], [alone(rows, training=True)[part]])
    return [outcome, difference(together.get_weights(), alone.get_weights())]


@feature("refusals")
def _():
    wrapped = hvd.DistributedOptimizer(keras.optimizers.SGD())
    model = network()
    model.compile(wrapped, loss())

    def foreign_callback():
        import keras as keras3

        model.fit(*data(1), verbose=0, callbacks=[keras3.callbacks.Callback()])

    return {
        name: error_of(function)
        for name, function in {
            "wrapped twice": lambda: hvd_tf.DistributedOptimizer(wrapped),
            "op": lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd_tf.Max),
            "a callback of Keras 3": foreign_callback,
            "global variables": lambda: hvd.broadcast_global_variables(0),
        }.items()
    }


@feature("the optimizer decides which Keras is meant")
def _():
    import keras as keras3

    optimizer = hvd_tf.DistributedOptimizer(keras3.optimizers.SGD(1.0))
    weights = [keras3.Variable([1.0, 2.0])]
    optimizer.build(weights)
    optimizer.apply([tf.constant([RANK + 1.0, 0.0])], weights)
    return [type(optimizer).__module__.partition(".")[0], np.asarray(weights[0]).tolist()]


import faults  # noqa: E402, F401 - what fails comes last

checking.run_features()
