"""Layers that stay local, and compressors of the user's, in both Kerases and on all backends."""

import numpy as np
from checking import RANK, ROWS, SIZE, callbacks, data, feature, keras, loss, mine, network, same_on_all_ranks

import distrun.keras as hvd


def two_layers():
    """A model whose second layer differs between the ranks, and is built by the first step on TensorFlow."""
    keras.utils.set_random_seed(1 + RANK)
    return keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])


def step_of(model, **options):
    """The change that one step of SGD at the rate 1 makes, and the gradients of one process on this rank's rows."""
    x, y = data(1)
    x, y = mine(x), mine(y)
    model.build((None, 6))
    hvd.broadcast_variables(model.layers[0].weights)
    before = model.get_weights()
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0, momentum=0.5), local_layers=model.layers[-1], **options
    )
    model.compile(optimizer, loss())
    given = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x, y, batch_size=len(x), verbose=0, callbacks=given)
    return [old - new for old, new in zip(before, model.get_weights(), strict=True)]


def alone(model, before):
    """The change that the plain optimizer makes on this rank."""
    x, y = data(1)
    model.set_weights(before)
    model.compile(keras.optimizers.SGD(1.0), loss())
    model.fit(mine(x), mine(y), batch_size=ROWS // SIZE, verbose=0)
    return [old - new for old, new in zip(before, model.get_weights(), strict=True)]


@feature("local layers")
def _():
    outcome = {}
    for scales in (True, False):
        model = two_layers()
        model.build((None, 6))
        hvd.broadcast_variables(model.layers[0].weights)
        before = model.get_weights()
        together = step_of(model, scale_local_gradients=scales)
        own = alone(model, before)
        averaged = hvd.allreduce(own[0])
        factor = SIZE if scales else 1
        outcome[str(scales)] = [
            same_on_all_ranks(together[:2]),
            float(np.abs(together[0] - averaged).max()),
            float(np.abs(together[2] * factor - own[2]).max()),
            same_on_all_ranks(together[2:]),
        ]
    return outcome


@feature("local layers, built later")
def _():
    x, y = data()
    model = two_layers()
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.Adam(1e-2), local_layers=model.layers[1:])
    model.compile(optimizer, loss())
    model.fit(mine(x), mine(y), batch_size=ROWS // SIZE, epochs=2, verbose=0, callbacks=callbacks())
    first, last = model.layers
    return [same_on_all_ranks(first.get_weights()), same_on_all_ranks(last.get_weights())]


class Negated:
    """A compressor of the user's; it notes its calls."""

    calls = 0

    @classmethod
    def compress(cls, tensor):
        cls.calls += 1
        return -tensor, "context"

    @staticmethod
    def decompress(tensor, ctx):
        assert ctx == "context"
        return -tensor


@feature("a compressor of one's own")
def _():
    x, y = data()
    model = network(1 + RANK)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=Negated), loss())
    model.fit(mine(x), mine(y), batch_size=ROWS // SIZE, verbose=0, shuffle=False, callbacks=callbacks())
    calls = Negated.calls
    value = hvd.allreduce(RANK + 1.0, compression=Negated)
    return {
        "same": same_on_all_ranks(model.get_weights()),
        "called": calls > 0 and calls % len(model.trainable_variables) == 0,
        "value": float(value),
    }
