"""Three ranks: the last two train together as a process set, by Keras and by a tape, beside the first one."""

import checking
import numpy as np
import tensorflow as tf
from checking import RANK, ROWS, data, difference, error_of, keras, loss, network

import distrun.keras as hvd
import distrun.tensorflow as hvd_tf

pair = hvd.add_process_set([1, 2])
assert checking.SIZE == 3


def part(array):
    """Half of each batch for the two; the first rank has all of it."""
    if not pair.included():
        return array
    halves = np.stack(np.split(array.reshape(-1, ROWS, *array.shape[1:]), 2, axis=1))
    return halves[pair.rank()].reshape(-1, *array.shape[1:])


x, y = data()
for passes in (1, 3):
    model = network(1 + RANK)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(1e-2),
        process_set=pair,
        backward_passes_per_step=passes,
        average_aggregated_gradients=True,
    )
    model.compile(optimizer, loss(), metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(1), hvd.callbacks.MetricAverageCallback()]
    logs = model.fit(
        part(x),
        part(y),
        batch_size=ROWS // (2 if pair.included() else 1),
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    ).history
    reference = network(2 if pair.included() else 1)
    reference.compile(keras.optimizers.Adam(1e-2), loss(), metrics=["accuracy"])
    expected = reference.fit(x, y, batch_size=passes * ROWS, epochs=2, shuffle=False, verbose=0).history
    assert difference(model.get_weights(), reference.get_weights()) < 1e-5, RANK
    if passes == 1:
        assert np.allclose(logs["loss"], expected["loss"], atol=1e-5)

variable, own = tf.Variable([1.0]), tf.Variable([1.0])
for way in (lambda function: function, tf.function):

    @way
    def gradients():
        with tf.GradientTape() as tape:
            value = (RANK + 1.0) * (tf.reduce_sum(variable) + tf.reduce_sum(own))
        tape = hvd_tf.DistributedGradientTape(tape, process_set=pair)
        tape.register_local_source(own)
        return tape.gradient(value, [variable, own])

    shared, local = (float(gradient[0]) for gradient in gradients())
    assert (shared, local) == ((2.5, (RANK + 1) / 2) if pair.included() else (1.0, 1.0))

late = hvd.ProcessSet([0, 1])
refused = error_of(lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), process_set=late))
assert "give it to distrun.init(process_sets=[...]) or to distrun.add_process_set" in refused
hvd.barrier()  # nobody leaves while others train
print("as one process does", flush=True)
