"""The Python for Keras of pages about training runs on two ranks, as a script that has the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
SCRIPT = """
import os, sys
import keras
import numpy as np
import distrun
import distrun.keras as dk
from distrun.data import shard

os.chdir(sys.argv[1])
dk.init()
keras.utils.set_random_seed(dk.rank())
test_images = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
test_labels = (test_images.sum(1) > 0).astype("int32")
batches = shard((test_images, test_labels), 4, shuffle=True)


def compiled():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    model.compile(
        dk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


model = compiled()
{evaluating}
exact = model.evaluate(test_images, test_labels, verbose=0)
assert np.allclose([loss, accuracy], exact, atol=1e-5), (loss, accuracy, exact)
assert os.path.exists("model.keras") and os.path.exists("best.keras") if dk.rank() == 0 else True
{scheduling}


class Rates(keras.callbacks.Callback):
    found = []

    def on_epoch_end(self, epoch, logs):
        self.found.append(float(np.asarray(self.model.optimizer.learning_rate)))


compiled().fit(batches, epochs=61, callbacks=[*callbacks, Rates()], verbose=0)
assert Rates.found[0] < 0.2, Rates.found
assert np.allclose([Rates.found[epoch] for epoch in (5, 29, 30, 60)], [0.2, 0.2, 0.02, 0.002]), Rates.found
"""


def test_what_the_pages_say_of_keras(launch, tmp_path):
    pytest.importorskip("torch")
    evaluating = next(block for block in snippets("saving.md") if "dk." in block)
    scheduling = next(block for block in snippets("learning-rate.md") if "dk." in block)
    (tmp_path / "page.py").write_text(SCRIPT.format(evaluating=evaluating, scheduling=scheduling))
    done = launch("torch", tmp_path / "page.py", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def snippets(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
