"""Digits of a made-up handwriting, learned by fit the way Horovod's users write it."""

import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

generator = np.random.default_rng(3)
shapes = generator.random((10, 8, 8, 1))
labels = generator.integers(0, 10, 512)
images = (shapes[labels] + 0.1 * generator.standard_normal((512, 8, 8, 1))).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(256, seed=hvd.rank()).batch(16)

keras_model = tf.keras.Sequential(
    [tf.keras.layers.Input((8, 8, 1)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")]
)
scaled_lr = 0.005 * hvd.size()
opt = tf.optimizers.Adam(scaled_lr)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
keras_model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])

folder = sys.argv[1]
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(folder + "/checkpoint-{epoch}.keras"))
verbose = 1 if hvd.rank() == 0 else 0
history = keras_model.fit(dataset, steps_per_epoch=64 // hvd.size(), callbacks=callbacks, epochs=6, verbose=verbose)

assert history.history["accuracy"][-1] > 0.9, history.history
logs = hvd.allgather(np.array([history.history["loss"]]))
assert np.array_equal(logs.numpy()[0], logs.numpy()[1]), "the metrics are averages over the ranks"
kernels = hvd.allgather(keras_model.get_weights()[0][None])
assert np.array_equal(kernels[0], kernels[1])

# Going on from a checkpoint, with an optimizer that is a DistributedOptimizer again
total = hvd.allreduce(1.0, op=hvd.Sum)  # rank 0 has written it
assert isinstance(total, tf.Tensor), type(total)
assert (total.dtype, float(total)) == (tf.float32, hvd.size())
for result in (hvd.broadcast(tf.constant([1, 2]), 0), hvd.reducescatter(tf.Variable([1.0, 3.0]))):
    assert isinstance(result, tf.Tensor), type(result)
again = hvd.load_model(folder + "/checkpoint-6.keras")
before = again.evaluate(images, labels, verbose=0)[0]
again.fit(
    dataset, steps_per_epoch=8, epochs=1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
)
kernels = hvd.allgather(again.get_weights()[0][None])
assert np.array_equal(kernels[0], kernels[1])
assert again.evaluate(images, labels, verbose=0)[0] < before + 0.1
