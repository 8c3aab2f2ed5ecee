"""Features of Keras with a DistributedOptimizer: each on all ranks, and on rank 0 alone with the combined batches."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import keras
import numpy as np
from checking import (
    BACKEND,
    RANK,
    ROWS,
    SIZE,
    callbacks,
    data,
    difference,
    error_of,
    feature,
    fit,
    loss,
    network,
    same_on_all_ranks,
    train,
)
from common import embedding, mixed_precision, words

import distrun.keras as hvd

optimizers = keras.optimizers
FOLDER = Path(os.environ["TEST_FOLDER"])  # of all ranks


@feature("fit")
def _():
    return train(lambda: optimizers.Adam(1e-2))


@feature("last batch smaller")
def _():
    wrap = {"gradient_predivide_factor": 4.0, "compression": hvd.Compression.fp16}  # one host: nothing is compressed
    return train(lambda: optimizers.SGD(0.1, momentum=0.9), given=data(4, last=ROWS // 2), wrap=wrap)


class Doubling(keras.Sequential):
    """A model with a training step of its own: it minimises twice the loss."""

    metrics = ()

    def train_step(self, *args):
        if BACKEND == "jax":
            import jax

            (weights, others, optimizer, metrics), (x, y) = args

            def objective(weights):
                predicted, changed = self.stateless_call(weights, others, x, training=True)
                return 2 * self.compute_loss(x, y, predicted), changed

            (value, others), gradients = jax.value_and_grad(objective, has_aux=True)(weights)
            weights, optimizer = self.optimizer.stateless_apply(optimizer, gradients, weights)
            return {"loss": value}, (weights, others, optimizer, metrics)
        x, y = args[0]
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                value = 2 * self.compute_loss(x, y, self(x, training=True))
            self.optimizer.apply(tape.gradient(value, self.trainable_variables), self.trainable_variables)
            return {"loss": value}
        self.zero_grad()
        value = 2 * self.compute_loss(x, y, self(x, training=True))
        value.backward()
        self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
        return {"loss": value}


@feature("custom train_step")
def _():
    def build(seed):
        keras.utils.set_random_seed(seed)
        return Doubling([keras.Input((6,)), keras.layers.Dense(3)])

    return train(lambda: optimizers.Adam(1e-2), build)


@feature("steps_per_execution", "tensorflow", "jax")
def _():
    return train(lambda: optimizers.Adam(1e-2), steps_per_execution=3)


@feature("run_eagerly")
def _():
    return train(lambda: optimizers.SGD(0.1), run_eagerly=True)


@feature("jit_compile=False")
def _():
    return train(lambda: optimizers.SGD(0.1), jit_compile=False)


# Optimizers -----------------------------------------------------------------------------------------------------------


@feature("gradient accumulation")
def _():
    return train(lambda: optimizers.Adam(1e-2, gradient_accumulation_steps=3, clipnorm=0.05))


@feature("backward_passes_per_step")
def _():
    if RANK:
        make = lambda: optimizers.SGD(0.1)  # noqa: E731
        return train(make, wrap={"backward_passes_per_step": 3})
    made = iter([optimizers.SGD(0.1), optimizers.SGD(0.3, gradient_accumulation_steps=3)])  # sums, as Horovod does
    return train(lambda: next(made), wrap={"backward_passes_per_step": 3})


for _name, _make in {
    "clipnorm": lambda: optimizers.SGD(0.5, clipnorm=0.05),
    "global_clipnorm": lambda: optimizers.AdamW(1e-2, weight_decay=0.01, global_clipnorm=0.1),
    "moving averages of weights (EMA)": lambda: optimizers.SGD(
        0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5
    ),
    "learning-rate schedule": lambda: optimizers.SGD(optimizers.schedules.CosineDecay(0.2, 12)),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)),
    "Lion": lambda: optimizers.Lion(1e-3),
    "Muon": lambda: optimizers.Muon(1e-3),
    "MultiOptimizer": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(optimizers.SGD(0.1), {".*bias": optimizers.Adam(1e-2)})
    ),
}.items():
    if hasattr(optimizers, _name) or not _name[0].isupper():
        feature(_name)(lambda make=_make: train(make))


@feature("op=Sum")
def _():
    made = iter([optimizers.SGD(0.1 / SIZE), optimizers.SGD(0.1)])
    return train(lambda: next(made), wrap={"op": hvd.Sum})


# Models ---------------------------------------------------------------------------------------------------------------


@feature("sparse_as_dense", "tensorflow")
def _():
    return train(lambda: optimizers.SGD(0.1), embedding, given=words(), wrap={"sparse_as_dense": True})


@feature("BatchNormalization and Dropout", "tensorflow", "torch")
def _():
    def build(seed):
        keras.utils.set_random_seed(seed)
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
        return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])

    def trainable(model):
        return [np.asarray(variable) for variable in model.trainable_variables]

    return train(lambda: optimizers.SGD(0.1), build, compared=trainable)


@feature("frozen layers and another compile")
def _():
    def run(model, x, y, rows):
        for trainable in (True, False):
            model.layers[0].trainable = trainable
            optimizer = optimizers.Adam(1e-2)
            model.compile(hvd.DistributedOptimizer(optimizer) if rows < ROWS else optimizer, loss())
            model.fit(x, y, batch_size=rows, verbose=0, shuffle=False)

    return train(lambda: optimizers.Adam(1e-2), run=run)


@feature("model without input shape")
def _():
    def build(seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(3)])

    model = build(1 + RANK)
    model.compile(hvd.DistributedOptimizer(optimizers.Adam(1e-2)), loss())
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, epochs=2, callbacks=[broadcast])
    return {"same": same_on_all_ranks(model.get_weights() + [np.asarray(v) for v in model.optimizer.variables])}


class Unused(keras.Model):
    """One of its layers is never called, and so never built."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = keras.layers.Dense(3), keras.layers.Dense(4)

    def call(self, x):
        return self.used(x)


@feature("model with a layer that is never used")
def _():
    keras.utils.set_random_seed(1 + RANK)
    model = Unused()
    model.compile(hvd.DistributedOptimizer(optimizers.Adam(1e-2)), loss())
    fit(model, callbacks=callbacks())
    return {"same": same_on_all_ranks([np.asarray(v) for v in model.trainable_variables + model.optimizer.variables])}


@feature("pickled optimizers are plain")
def _():
    optimizer = pickle.loads(pickle.dumps(hvd.DistributedOptimizer(optimizers.Adam(1e-2))))
    return [type(optimizer) is type(optimizers.Adam()), round(float(optimizer.learning_rate), 6)]


# Files ----------------------------------------------------------------------------------------------------------------


@keras.saving.register_keras_serializable("tests")
class Slowing(keras.optimizers.SGD):
    """A user's optimizer."""

    def __init__(self, learning_rate=0.01, slowing=2.0, **options):
        super().__init__(learning_rate, **options)
        self.slowing = slowing

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate / self.slowing)

    def get_config(self):
        return super().get_config() | {"slowing": self.slowing}


def trained(optimizer, **options):
    model = network()
    model.compile(hvd.DistributedOptimizer(optimizer), loss(), **options)
    fit(model)
    return model


@feature("saved files name the plain optimizer")
def _():
    names = {}
    for optimizer in (
        optimizers.Adam(1e-2, clipnorm=1.0),
        Slowing(0.1),
        optimizers.LossScaleOptimizer(optimizers.SGD()),
    ):
        model = trained(optimizer)
        path = FOLDER / f"plain.{RANK}.keras"
        model.save(path)
        with zipfile.ZipFile(path) as file:
            saved = json.loads(file.read("config.json"))["compile_config"]["optimizer"]
        loaded = keras.models.load_model(path).optimizer
        names[saved["class_name"]] = [
            saved["module"] if saved["registered_name"] is None else saved["registered_name"],
            type(loaded).__mro__[1].__name__ == "Distributed",
            difference([np.asarray(v) for v in loaded.variables], [np.asarray(v) for v in model.optimizer.variables]),
        ]
    return names


@feature("load_model resumes exactly")
def _():
    outcome = {}
    for optimizer in (optimizers.Adam(1e-2), Slowing(0.1, momentum=0.9)):
        model = trained(optimizer)
        path = FOLDER / f"resume.{RANK}.keras"
        model.save(path)
        loaded = hvd.load_model(path, custom_optimizers=[Slowing])
        fit(model)
        fit(loaded)
        outcome[type(optimizer).__name__] = [
            difference(model.get_weights(), loaded.get_weights()),
            same_on_all_ranks(loaded.get_weights()),
        ]
    return outcome


@feature("load_model under mixed precision", "tensorflow", "torch")
def _():
    with mixed_precision():
        model = trained(optimizers.SGD(0.1))
        path = FOLDER / f"mixed.{RANK}.keras"
        model.save(path)
        loaded = hvd.load_model(path)
        fit(model)
        fit(loaded)
    return {
        "difference": difference(model.get_weights(), loaded.get_weights()),
        "same": same_on_all_ranks(loaded.get_weights()),
    }


@feature("clones are distributed")
def _():
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1))
    model = network()
    model.compile(type(optimizer).from_config(optimizer.get_config()), loss())
    fit(model)
    return {"same": same_on_all_ranks(model.get_weights())}


# Callbacks ------------------------------------------------------------------------------------------------------------


@feature("MetricAverageCallback, other metrics on one rank")
def _():
    model = network()
    model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1)), loss())
    validation = data() if RANK == 0 else None
    return error_of(lambda: fit(model, validation_data=validation, callbacks=callbacks()))


class Recorder(keras.callbacks.Callback):
    """Notes the learning rate in each step."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(round(float(np.asarray(self.model.optimizer.learning_rate)), 6))


@feature("LearningRateWarmupCallback")
def _():
    model = network()
    model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.8)), loss())
    recorder = Recorder()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2)
    logs = fit(model, 4, epochs=3, callbacks=[warmup, recorder])
    return {"rates": recorder.rates, "logged": logs["lr"], "same": same_on_all_ranks(model.get_weights())}


@feature("collectives on values")
def _():
    tensor = keras.ops.convert_to_tensor([1.0 + RANK, 2.0])
    return {
        "allreduce": hvd.allreduce(tensor).tolist(),
        "sum": float(hvd.allreduce(RANK + 1.0, op=hvd.Sum)),
        "allgather": hvd.allgather(keras.ops.convert_to_tensor([[RANK]])).ravel().tolist(),
        "broadcast": hvd.broadcast(keras.Variable([float(RANK)]), root_rank=1).tolist(),
        "reducescatter": hvd.reducescatter(np.arange(2.0), op=hvd.Sum).tolist(),
    }


@feature("refusals")
def _():
    class Foreign:
        """An optimizer of another library."""

    wrapped = hvd.DistributedOptimizer(optimizers.SGD())
    built = optimizers.SGD()
    built.build([keras.Variable(1.0)])
    scheduled = optimizers.SGD(optimizers.schedules.CosineDecay(0.1, 10))
    model = network()
    model.compile(hvd.DistributedOptimizer(scheduled), loss())
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    wrap = hvd.DistributedOptimizer
    return {
        name: error_of(function)
        for name, function in {
            "wrapped twice": lambda: wrap(wrapped),
            "foreign": lambda: wrap(Foreign()),
            "class": lambda: wrap(optimizers.SGD),
            "op": lambda: wrap(optimizers.SGD(), op=hvd.Max),
            "compression": lambda: wrap(optimizers.SGD(), compression="fp16"),
            "predivide": lambda: wrap(optimizers.SGD(), op=hvd.Sum, gradient_predivide_factor=2.0),
            "passes": lambda: wrap(optimizers.SGD(), backward_passes_per_step=0),
            "built": lambda: wrap(built, backward_passes_per_step=2),
            "unbuilt": lambda: hvd.broadcast_variables(keras.Sequential([keras.layers.Dense(1)]).weights),
            "global variables": lambda: hvd.broadcast_global_variables(0),
            "average and op": lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum),
            "schedule": lambda: model.fit(*data(1), verbose=0, callbacks=[schedule]),
            "OnRankZero": lambda: hvd.callbacks.OnRankZero(keras.callbacks.EarlyStopping()),
        }.items()
    }
