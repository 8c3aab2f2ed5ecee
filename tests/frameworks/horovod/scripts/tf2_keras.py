"""Digits of a made-up handwriting, learned by fit the way Horovod's users write it."""

import sys

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from digits import check_going_on, check_training, shuffled

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

dataset = shuffled(hvd.rank())
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

check_training(hvd, keras_model, history.history)
check_going_on(hvd, folder + "/checkpoint-6.keras")
total = hvd.allreduce(1.0, op=hvd.Sum)
assert isinstance(total, tf.Tensor), type(total)
assert (total.dtype, float(total)) == (tf.float32, hvd.size())
for result in (hvd.broadcast(tf.constant([1, 2]), 0), hvd.reducescatter(tf.Variable([1.0, 3.0]))):
    assert isinstance(result, tf.Tensor), type(result)
