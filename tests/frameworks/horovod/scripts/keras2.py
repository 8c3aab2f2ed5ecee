"""Digits of a made-up handwriting, learned with Keras 2 the way Horovod's users wrote it in 2021."""

import os
import sys

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from digits import check_going_on, check_training, shuffled

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)

dataset = shuffled(hvd.rank())
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

check_training(hvd, model, history.history)
assert len(opt.variables()) > 0
check_going_on(hvd, folder + "/checkpoint-6.h5")
