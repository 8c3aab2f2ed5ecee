"""Digits of a made-up handwriting, learned with Keras 2 the way Horovod's users wrote it in 2021."""

import os
import sys

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)

generator = np.random.default_rng(3)
shapes = generator.random((10, 8, 8, 1))
labels = generator.integers(0, 10, 512)
images = (shapes[labels] + 0.1 * generator.standard_normal((512, 8, 8, 1))).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(256, seed=hvd.rank()).batch(16)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(4, [3, 3], activation="relu", input_shape=(8, 8, 1)),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
assert "tf_keras" in type(model).__module__ or "tf_keras" in tf.keras.layers.Dense.__module__

scaled_lr = 0.005 * hvd.size()
opt = tf.keras.optimizers.legacy.Adam(scaled_lr)
opt = hvd.DistributedOptimizer(opt)
model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=opt,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=1),
    hvd.callbacks.LearningRateScheduleCallback(initial_lr=scaled_lr, multiplier=0.5, start_epoch=4),
]
folder = sys.argv[1]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(folder + "/checkpoint-{epoch}.h5"))
verbose = 1 if hvd.rank() == 0 else 0
history = model.fit(dataset, steps_per_epoch=64 // hvd.size(), callbacks=callbacks, epochs=6, verbose=verbose)

assert history.history["accuracy"][-1] > 0.9, history.history
logs = hvd.allgather(np.array([history.history["loss"]]))
assert np.array_equal(logs[0], logs[1]), "the metrics are averages over the ranks"
kernels = hvd.allgather(model.get_weights()[0][None])
assert np.array_equal(kernels[0], kernels[1])
assert len(opt.variables()) > 0

hvd.allreduce(np.zeros(1))  # rank 0 has written it
again = hvd.load_model(folder + "/checkpoint-6.h5")
before = again.evaluate(images, labels, verbose=0)[0]
again.fit(
    dataset, steps_per_epoch=8, epochs=1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
)
kernels = hvd.allgather(again.get_weights()[0][None])
assert np.array_equal(kernels[0], kernels[1])
assert again.evaluate(images, labels, verbose=0)[0] < before + 0.1
