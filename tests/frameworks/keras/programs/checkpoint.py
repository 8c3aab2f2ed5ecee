"""Checkpoints of Keras in one process: `checkpoint.py FOLDER`, with either Keras and on any backend."""

import os
import sys
from pathlib import Path

import numpy as np

if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
    import tf_keras as keras
else:
    import keras

from distrun.checkpoint import CheckpointManager
from distrun.errors import UsageError

FOLDER = Path(sys.argv[1])
RANDOM = np.random.default_rng(0)
IMAGES, LABELS = RANDOM.normal(size=(24, 5)).astype("float32"), RANDOM.normal(size=(24, 2)).astype("float32")


def network():
    """Return a model with normalisation and dropout, whose seed is part of its state."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2, seed=3)]
    model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def fit(model, begin, end, **options):
    model.fit(IMAGES, LABELS, 8, initial_epoch=begin, epochs=end, shuffle=False, verbose=0, **options)


def weights(model):
    return [np.array(each) for each in model.get_weights()]


def variables(optimizer):
    found = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [np.array(each.numpy()) for each in found]


def same(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


# A compiled model brings its optimizer, within `fit` too.
with CheckpointManager(FOLDER / "fit", max_to_keep=None) as checkpoints:
    model = network()
    seen = {}

    def save(epoch, logs=None):
        checkpoints.save(epoch + 1, model=model)
        seen[epoch + 1] = weights(model), variables(model.optimizer)

    fit(model, 0, 4, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=save)])
assert len({float(found[0][0].sum()) for found in seen.values()}) == 4
again = network()
start = CheckpointManager(FOLDER / "fit").restore(model=again)
assert start.step == 4
assert start.model is again
assert same(weights(again), seen[4][0])
assert same(variables(again.optimizer), seen[4][1])

# From an earlier one, training ends with the same bits (in Keras 2 the seeds of dropout are no variables).
for step in (3, 4):
    folder = next((FOLDER / "fit").glob(f"step-{step}-*"))
    folder.rename(FOLDER / folder.name)
assert CheckpointManager(FOLDER / "fit").restore(model=again).step == 2
assert same(weights(again), seen[2][0])
fit(again, 2, 4)
if keras.__version__.startswith("3"):
    assert all(np.allclose(one, other, atol=1e-6) for one, other in zip(weights(again), seen[4][0], strict=True))

# Models and optimizers by themselves, and single variables.
with CheckpointManager(FOLDER / "apart") as checkpoints:
    checkpoints.save(1, layer=model.layers[0], optimizer=model.optimizer, lr=model.layers[1].gamma)
    wanted = weights(model), variables(model.optimizer)
    fit(model, 0, 1)
    checkpoints.restore(layer=model.layers[0], optimizer=model.optimizer, lr=model.layers[1].gamma)
assert same(weights(model)[:2], wanted[0][:2])
assert np.array_equal(model.layers[1].gamma.numpy(), wanted[0][2])
assert same(variables(model.optimizer), wanted[1])
fit(model, 0, 1)  # on JAX, what was restored is what is trained

# What does not fit is refused.
other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
for like, text in (
    (other, "the checkpoint has of model.weights"),
    (3, "the checkpoint has for model a model of Keras"),
):
    told = ""
    try:
        CheckpointManager(FOLDER / "fit").restore(model=like)
    except UsageError as error:
        told = str(error)
    assert text in told, told
print("all is well")
