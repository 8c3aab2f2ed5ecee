"""Keras 2 in a graph of TensorFlow 1, as scripts of 2018 use it: at the end each rank compares with one process."""

import numpy as np
import tensorflow as tf

import distrun.keras as hvd

tf.compat.v1.disable_v2_behavior()
keras = tf.compat.v1.keras
ROWS = 16

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def network(seed):
    random = np.random.default_rng(seed)
    model = keras.Sequential(
        [keras.layers.Dense(8, activation="tanh", input_shape=(6,)), keras.layers.Dense(3, activation="softmax")]
    )
    model.set_weights([random.normal(size=weight.shape) for weight in model.get_weights()])
    return model


random = np.random.default_rng(0)
x, y = random.normal(size=(6 * ROWS, 6)).astype("float32"), random.integers(0, 3, 6 * ROWS)
part = np.concatenate([np.array_split(np.arange(start, start + ROWS), SIZE)[RANK] for start in range(0, len(x), ROWS)])

for passes in (1, 3):
    model = network(RANK)
    options = {"backward_passes_per_step": passes, "average_aggregated_gradients": True}
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), **options)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    rows = ROWS // SIZE
    logs = model.fit(x[part], y[part], batch_size=rows, epochs=2, shuffle=False, verbose=0, callbacks=callbacks).history
    assert len(set(hvd.allgather_object(logs["loss"][-1]))) == 1
    alone = network(0)
    alone.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    alone.fit(x, y, batch_size=passes * ROWS, epochs=2, shuffle=False, verbose=0)
    for together, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        assert np.abs(together - expected).max() < 1e-5
    print(f"{passes} passes: as one process does", flush=True)

weights = model.get_weights()
if RANK:
    model.set_weights([weight + 1 for weight in weights])
hvd.broadcast_global_variables(0)
assert all(np.array_equal(one, other) for one, other in zip(model.get_weights(), weights, strict=True))
assert hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum).tolist() == [SIZE, 2 * SIZE]
