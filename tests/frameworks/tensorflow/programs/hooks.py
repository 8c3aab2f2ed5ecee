"""A convolutional network for digits in a graph of TensorFlow 1, trained by a MonitoredTrainingSession with hooks.

A second run begins where the checkpoint of the first one ends: only rank 0 has it, the others get it by the broadcast.
The digits are made up: each class has a pattern of its own, under noise.
"""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from checking import same_on_all_ranks

import distrun.tensorflow as hvd

CLASSES, PIXELS, ROWS = 4, 8, 16


def batches(seed):
    """A generator of batches of this rank's own."""
    patterns = np.random.default_rng(0).standard_normal((CLASSES, PIXELS, PIXELS, 1))
    random = np.random.default_rng(seed)
    while True:
        labels = random.integers(CLASSES, size=ROWS)
        noise = random.standard_normal((ROWS, PIXELS, PIXELS, 1))
        yield (patterns[labels] + 0.5 * noise).astype(np.float32), labels.astype(np.int64)


def network(images):
    with tf.variable_scope("net"):
        kernel = tf.get_variable("kernel", (3, 3, 1, 6))
        hidden = tf.nn.relu(tf.nn.conv2d(images, kernel, strides=2, padding="SAME"))
        flat = tf.reshape(hidden, (-1, 6 * (PIXELS // 2) ** 2))
        return flat @ tf.get_variable("weights", (flat.shape[1], CLASSES)) + tf.get_variable("bias", (CLASSES,))


class Watch(tf.train.SessionRunHook):
    """Fetches averages over the ranks along with each step, and the weights at the end."""

    def __init__(self, fetches):
        self.fetches = fetches
        self.seen = []

    def before_run(self, context):
        return tf.train.SessionRunArgs(self.fetches)

    def after_run(self, context, values):
        self.seen.append(values.results)

    def after_create_session(self, session, coordinator):
        self.first = session.run(tf.trainable_variables())

    def end(self, session):
        self.last = session.run(tf.trainable_variables())
        self.step = int(session.run(tf.train.get_global_step()))


def train(folder, last_step, seed):
    """Train to a step, counted from the beginning of all runs; what the hook has seen."""
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        images = tf.placeholder(tf.float32, [None, PIXELS, PIXELS, 1])
        labels = tf.placeholder(tf.int64, [None])
        logits = network(images)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        hits = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
        optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.01 * hvd.size()))
        step = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
        averages = {
            "loss": hvd.allreduce(loss),
            "hits": hvd.allreduce(hits),
            "most hits": hvd.allreduce(hits, op=hvd.Max),
        }
        watch = Watch(averages)
        hooks = [
            hvd.BroadcastGlobalVariablesHook(0),
            watch,
            tf.train.StopAtStepHook(last_step=last_step),
            tf.train.LoggingTensorHook({"local loss": loss, **averages}, every_n_iter=10),
            tf.train.NanTensorHook(loss),
        ]
        given = batches(seed)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder if hvd.rank() == 0 else None,
            hooks=hooks,
            config=tf.ConfigProto(inter_op_parallelism_threads=1),
        ) as session:
            while not session.should_stop():
                session.run(step, dict(zip((images, labels), next(given), strict=True)))
    return watch


def main(_):
    hvd.init()
    folder = os.environ["CHECKPOINT_DIR"]
    first = train(folder, last_step=30, seed=hvd.rank())
    again = train(folder, last_step=40, seed=10 + hvd.rank())
    for run, steps in ((first, 30), (again, 10)):
        assert len(run.seen) == steps
        assert same_on_all_ranks([*run.first, *run.last, *(value for seen in run.seen for value in seen.values())])
    assert (first.step, again.step) == (30, 40)
    assert all(np.array_equal(one, other) for one, other in zip(first.last, again.first, strict=True))
    assert first.seen[-1]["loss"] < 0.5 * first.seen[0]["loss"]
    assert again.seen[-1]["hits"] > 0.8


if __name__ == "__main__":
    tf.disable_v2_behavior()
    sys.exit(tf.app.run())
