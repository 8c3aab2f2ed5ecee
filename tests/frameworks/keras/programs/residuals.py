"""A Keras optimizer makes up for what compression takes, and a checkpoint holds that: `residuals.py FOLDER`."""

import sys
from types import SimpleNamespace

import keras
import numpy as np

import distrun.keras as hvd
from distrun.checkpoint import CheckpointManager

hvd.init()
SHAPES = (80, 100), (60, 4, 40), (100,)
RANDOM = np.random.default_rng(hvd.rank())
GRADIENTS = [RANDOM.standard_normal(shape, np.float32) for shape in SHAPES]
EXACT = [hvd.allreduce(each) for each in GRADIENTS]


class Descent:
    """Weights, and the steps that they have made."""

    def __init__(self, compression):
        self.weights = [
            keras.Variable(np.zeros(shape, "float32"), name=f"w{place}") for place, shape in enumerate(SHAPES)
        ]
        self.optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=compression)
        self.optimizer.build(self.weights)
        self.made = 0

    def step(self):
        self.optimizer.apply([keras.ops.convert_to_tensor(each) for each in GRADIENTS], self.weights)
        self.made += 1

    def values(self):
        return [np.array(keras.ops.convert_to_numpy(each.value)) for each in self.weights]

    def check(self):
        feedback = self.optimizer.distrun_feedback
        with feedback.complete_state():
            (owed,) = feedback.state_dict().values()
        assert set(owed) == {0, 1}  # the third is too small
        for place, loss in owed.items():
            missing = self.values()[place] + self.made * EXACT[place]
            limit = 0.02 * np.abs(loss["lost"]).max() + 1e-5 * self.made
            assert np.abs(missing - loss["lost"]).max() <= limit, (place, self.made)
        assert max(np.abs(loss["lost"]).max() for loss in owed.values()) > 0.01


INT4, LOW_RANK = hvd.Compression.int4, hvd.Compression.powersgd(2)
ON_GPU = SimpleNamespace(CPU="cpu", kind=lambda tensor: "cuda")  # where gradients seem to be, for once
for number, form in enumerate(
    (INT4, LOW_RANK, INT4, LOW_RANK) if keras.backend.backend() == "torch" else (INT4, LOW_RANK)
):
    if number == 2:
        sys.modules["distrun.keras.torch_gradients"].cuda = ON_GPU
    descent = Descent(form)
    descent.optimizer.distrun_feedback.load_state_dict({})
    for _ in range(3):
        descent.step()
        descent.check()
    with CheckpointManager(f"{sys.argv[1]}/{number}") as checkpoints:
        checkpoints.save(3, optimizer=descent.optimizer, weights=descent.values())
    descent.step()
    found = CheckpointManager(f"{sys.argv[1]}/{number}").restore(optimizer=descent.optimizer, weights=None)
    descent.made = found.step
    for weight, saved in zip(descent.weights, found.weights, strict=True):
        weight.assign(saved)
    descent.check()
    descent.step()
    descent.check()
