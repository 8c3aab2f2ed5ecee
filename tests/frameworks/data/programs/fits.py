"""`fit` of Keras on two ranks, for each kind of data that it takes: this rank's batches, in their order."""

import keras
import numpy as np
import tensorflow as tf
import torch
from checking import check, run_checks
from expecting import raises
from torch.utils.data import TensorDataset

import distrun
import distrun.data
from distrun.data import Division, Plan

distrun.init()
torch.set_num_threads(1)
N, BATCH = 25, 4
X, Y = np.ones((N, 1), np.float32), np.arange(N, dtype=np.float32)[:, None]
MINE = Division(distrun.rank(), distrun.size(), BATCH, shuffle=True, seed=3)


class Trace(keras.metrics.Metric):
    """The sum of the targets, in which step k counts k times: other batches or another order give another value."""

    def __init__(self):
        super().__init__(name="trace")
        self.step = self.add_variable((), "zeros", name="step")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.step.assign_add(1.0)
        self.total.assign_add(self.step * keras.ops.sum(y_true))

    def result(self):
        return self.total + 0.0


MODEL = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
MODEL.compile(keras.optimizers.SGD(0.0), "mse", metrics=[Trace()])


def trace(indices):
    """Return the value that `Trace` has after batches of these samples."""
    return sum((step // BATCH + 1) * int(index) for step, index in enumerate(indices))


def fitted(data, **how):
    """Return the trace of each epoch of `fit`."""
    x, y = data if isinstance(data, tuple) else (data, None)
    history = MODEL.fit(x, y, epochs=2, verbose=0, **how)
    return [round(value) for value in history.history["trace"]]


def assert_epochs_follow(found):
    """Each epoch has its own order; Keras, which looks at the first batches, may have used up some epochs before."""
    possible = [[trace(Plan(MINE, N).indices(epoch)) for epoch in (first, first + 1)] for first in range(3)]
    assert found in possible, (found, possible)
    places = distrun.allgather_object(possible.index(found))
    assert len(set(places)) == 1, places


@check
def arrays():
    batches = distrun.data.shard((X, Y), BATCH, shuffle=True, seed=3)
    assert isinstance(batches, keras.utils.PyDataset)
    assert_epochs_follow(fitted(batches, shuffle=False))
    mine = distrun.data.shard((X, Y))
    assert len(mine[0]) == 13
    assert fitted(mine, batch_size=BATCH, shuffle=False)[0] == trace(np.arange(distrun.rank(), 26, 2) % N)


@check
def py_dataset():
    class Items(keras.utils.PyDataset):
        ended = 0

        def __len__(self):
            return N

        def __getitem__(self, index):
            return X[index : index + 1], Y[index : index + 1]

        def on_epoch_end(self):
            self.ended += 1

    source = Items()
    mine = distrun.data.shard(source, shuffle=True, seed=3)
    assert (len(mine), mine.padded) == (13, 1)
    found = fitted(mine, shuffle=False)
    plan = Plan(Division(distrun.rank(), distrun.size(), shuffle=True, seed=3), N)
    assert found == [sum((step + 1) * int(i) for step, i in enumerate(plan.indices(epoch))) for epoch in (0, 1)]
    assert source.ended >= 2


@check
def sequence():
    batches = distrun.data.shard([(X[i], Y[i]) for i in range(N)], BATCH, shuffle=True, seed=3)
    assert_epochs_follow(fitted(batches, shuffle=False))


@check
def generator():
    samples = ((X[i % N], Y[i % N]) for i in range(10 * N))
    batches = distrun.data.shard(samples, BATCH)
    mine = [i % N for i in range(distrun.rank(), 10 * N, distrun.size())]
    steps = 5
    found = fitted(iter(batches), steps_per_epoch=steps)
    assert found == [trace(mine[: BATCH * steps]), trace(mine[BATCH * steps : 2 * BATCH * steps])], found


@check
def tf_dataset():
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    mine = distrun.data.shard(data, BATCH)
    expected = trace(Plan(Division(distrun.rank(), distrun.size(), BATCH), N).indices(0))
    assert fitted(distrun.data.watch(mine)) == [expected, expected]
    shuffled = distrun.data.shard(data, BATCH, shuffle=True, seed=3)
    found = fitted(shuffled)
    assert found[0] != found[1]
    unknown = distrun.data.shard(data.filter(lambda x, y: True), BATCH, drop_remainder=True)
    assert fitted(unknown) == [trace(range(distrun.rank(), 24, 2))] * 2


@check
def torch_loader():
    loader = distrun.data.shard(TensorDataset(torch.tensor(X), torch.tensor(Y)), BATCH, shuffle=True, seed=3)
    assert_epochs_follow(fitted(loader))


@check
def fit_keeps_the_order_of_a_shard_and_all_of_it():
    import distrun.keras

    batches = distrun.data.shard((X, Y), BATCH, shuffle=True, seed=3)
    assert_epochs_follow(fitted(batches))
    with raises(distrun.UsageError, "steps_per_epoch=2 of a shard that has 4 batches in an epoch"):
        fitted(batches, steps_per_epoch=2)


run_checks()
