"""DiLoCo in `fit`: hosts train by themselves, and come together now and then."""

import numpy as np
from checking import RANK, SIZE, keras, same_on_all_ranks as same
from expecting import raises

import distrun.keras as hvd

INNER, STEPS = 0.05, 6


def network(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(9, activation="tanh"), keras.layers.Dense(1, use_bias=False)]
    )


def samples(rank):
    inputs = np.random.default_rng(rank).normal(size=(8 * STEPS, 6)).astype(np.float32)
    return inputs, np.sin(inputs.sum(1, keepdims=True))


def fit(optimizer, epochs=1, *callbacks):
    model = network(1 + RANK)
    model.compile(optimizer, "mse")
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    history = model.fit(
        *samples(RANK), batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=[start, *callbacks]
    )
    return model, history.history["loss"]


def published(hosts, every):
    """The weights after plain DiLoCo on all hosts, computed here."""
    models = []
    for _ in hosts:
        models.append(network(1))
        models[-1].compile(keras.optimizers.SGD(INNER), "mse")
    anchor = models[0].get_weights()
    velocity = [0 * array for array in anchor]
    for step in range(STEPS):
        part = slice(8 * step, 8 * step + 8)
        for ranks, model in zip(hosts, models, strict=True):
            data = [samples(rank) for rank in ranks]
            batch = [np.concatenate([arrays[kind][part] for arrays in data]) for kind in (0, 1)]
            model.train_on_batch(*batch)
        if (step + 1) % every == 0:
            shares = [len(ranks) / SIZE for ranks in hosts]
            for place, old in enumerate(anchor):
                mean = sum(s * model.get_weights()[place] for s, model in zip(shares, models, strict=True))
                velocity[place] = 0.9 * velocity[place] + (old - mean)
                anchor[place] = old - 0.7 * ((old - mean) + 0.9 * velocity[place])
            for model in models:
                model.set_weights(anchor)
    return anchor


optimizer = hvd.DiLoCo(keras.optimizers.SGD(INNER), every=3, wire=None, overlap=False, fragments=1)
hosts = list(dict.fromkeys(hvd.allgather_object(tuple(optimizer.distrun_settings.process_set.ranks))))
model, _ = fit(optimizer)
assert same(model.get_weights())
for own, expected in zip(model.get_weights(), published(hosts, 3), strict=True):
    assert np.allclose(own, expected, rtol=1e-3, atol=1e-5), np.abs(own - expected).max()

model, losses = fit(
    hvd.DiLoCo(keras.optimizers.Adam(1e-2), every=4, fragments=2), 8, hvd.callbacks.MetricAverageCallback()
)
assert same(model.get_weights())
assert losses[-1] < 0.7 * losses[0], losses
assert len(set(hvd.allgather_object(losses[-1]))) == 1

model, _ = fit(hvd.LocalSGD(keras.optimizers.SGD(INNER), every=2))
assert same(model.get_weights())

with raises(ValueError, "fragments=9 is more than the 3 parameters"):
    fit(hvd.DiLoCo(keras.optimizers.SGD(INNER), fragments=9))
with raises(ValueError, "every=0 must be"):
    hvd.DiLoCo(keras.optimizers.SGD(INNER), every=0)
with raises(ValueError, "DistributedOptimizer already"):
    hvd.DiLoCo(hvd.DiLoCo(keras.optimizers.SGD(INNER)))
hvd.barrier()
print("came together")
