"""Horovod's introductory script of 2018, with only the import changed: graphs and a MonitoredTrainingSession.

At the end the ranks compare their weights, and with those of one process that saw the combined batches.
"""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from checking import same_on_all_ranks

import distrun.tensorflow as hvd

STEPS, ROWS = 6, 8


def data(step, part=slice(None)):
    """A combined batch of all ranks, or a part of it."""
    random = np.random.default_rng(step)
    rows = random.standard_normal((ROWS, 5)).astype(np.float32)
    return rows[part], (rows.sum(1, keepdims=True) > 0).astype(np.float32)[part]


def build(optimizer, seed):
    tf.set_random_seed(seed)
    rows, targets = tf.placeholder(tf.float32, [None, 5]), tf.placeholder(tf.float32, [None, 1])
    with tf.variable_scope("net"):
        hidden = tf.nn.tanh(rows @ tf.get_variable("w1", (5, 7)) + tf.get_variable("b1", (7,)))
        logits = hidden @ tf.get_variable("w2", (7, 1))
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits))
    global_step = tf.train.get_or_create_global_step()
    return rows, targets, optimizer.minimize(loss, global_step=global_step), loss


class KeepWeights(tf.train.SessionRunHook):
    """Not of 2018: looks at the weights at the end."""

    def end(self, session):
        self.weights = session.run(tf.trainable_variables())


def train(checkpoint_dir):
    # Initialize Horovod
    hvd.init()

    # Pin GPU to be used to process local rank (one GPU per process)
    config = tf.ConfigProto()
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Build model... Add Horovod Distributed Optimizer
    opt = tf.train.AdagradOptimizer(0.01 * hvd.size())
    opt = hvd.DistributedOptimizer(opt)
    rows, targets, train_op, _ = build(opt, seed=hvd.rank())

    # Add hook to broadcast variables from rank 0 to all other processes during initialization.
    keep = KeepWeights()
    hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=STEPS), keep]

    # Save checkpoints only on worker 0 to prevent other workers from corrupting them.
    checkpoint_dir = checkpoint_dir if hvd.rank() == 0 else None

    # The MonitoredTrainingSession takes care of session initialization, restoring from a checkpoint, saving to a
    # checkpoint, and closing when done or an error occurs.
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as mon_sess:
        step = 0
        while not mon_sess.should_stop():
            # Perform synchronous training.
            batch = data(step, slice(hvd.rank(), None, hvd.size()))
            mon_sess.run(train_op, feed_dict=dict(zip((rows, targets), batch, strict=True)))
            step += 1
    return step, keep.weights


def alone():
    with tf.Graph().as_default(), tf.Session() as session:
        rows, targets, train_op, _ = build(tf.train.AdagradOptimizer(0.01 * hvd.size()), seed=0)
        session.run(tf.global_variables_initializer())
        for step in range(STEPS):
            session.run(train_op, dict(zip((rows, targets), data(step), strict=True)))
        return session.run(tf.trainable_variables())


def checkpointed(folder):
    reader = tf.train.load_checkpoint(folder)
    return [reader.get_tensor(f"net/{name}") for name in ("w1", "b1", "w2")]


def main(_):
    folder = os.environ["CHECKPOINT_DIR"]
    steps, together = train(folder)
    assert steps == STEPS
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(together, alone(), strict=True))
    assert same_on_all_ranks(together)
    assert all(np.array_equal(a, b) for a, b in zip(together, checkpointed(folder), strict=True))


if __name__ == "__main__":
    tf.disable_v2_behavior()
    sys.exit(tf.app.run())
