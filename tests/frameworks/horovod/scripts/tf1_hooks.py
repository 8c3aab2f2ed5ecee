"""Training in a session of TensorFlow 1 with hooks, the way Horovod's users wrote it."""

import os
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

tf.compat.v1.disable_eager_execution()
hvd.init()

config = tf.compat.v1.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = str(hvd.local_rank())

generator = np.random.default_rng(hvd.rank())
truth = np.random.default_rng(7).standard_normal((6, 1)).astype("float32")

features = tf.compat.v1.placeholder(tf.float32, [None, 6])
targets = tf.compat.v1.placeholder(tf.float32, [None, 1])
weights = tf.compat.v1.get_variable("weights", initializer=tf.random.normal([6, 1], seed=hvd.rank()))
loss = tf.reduce_mean(tf.square(features @ weights - targets))
opt = tf.compat.v1.train.AdamOptimizer(0.05 * hvd.size())
opt = hvd.DistributedOptimizer(opt, op=hvd.Average, compression=hvd.Compression.fp16)
global_step = tf.compat.v1.train.get_or_create_global_step()
train_op = opt.minimize(loss, global_step=global_step)
average_loss = hvd.allreduce(loss, name="average_loss")
with tf.control_dependencies([train_op]):  # else they may be read before the step on one rank, and after it on another
    trained_weights = tf.identity(weights)

hooks = [
    hvd.BroadcastGlobalVariablesHook(0),
    tf.compat.v1.train.StopAtStepHook(last_step=300 // hvd.size()),
    tf.compat.v1.train.LoggingTensorHook(tensors={"step": global_step, "loss": loss}, every_n_iter=50),
]
checkpoint_dir = os.path.join(sys.argv[1], "checkpoints") if hvd.rank() == 0 else None
with tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks, config=config) as session:
    while not session.should_stop():
        inputs = generator.standard_normal((16, 6)).astype("float32")
        fed = {features: inputs, targets: inputs @ truth}
        _, reduced, values = session.run([train_op, average_loss, trained_weights], fed)

assert reduced < 0.1, reduced
assert hvd.size() == 2
everywhere = hvd.allgather_object(values)
assert np.array_equal(everywhere[0], everywhere[1])
print("step", 300 // hvd.size(), "reached")
