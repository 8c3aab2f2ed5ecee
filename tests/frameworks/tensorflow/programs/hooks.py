"""Hooks of TensorFlow 1 that fetch averages, and a second run that begins where the checkpoint of the first one ends.

Only rank 0 has the checkpoint, the others get it by the broadcast.
"""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from checking import same_on_all_ranks
from classic import build, data

import distrun.tensorflow as hvd


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


def train(folder, last_step, seed, root):
    """Train to a step, counted from the beginning of all runs; what the hook has seen."""
    with tf.Graph().as_default():
        rows, targets, step, loss = build(hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.05 * hvd.size())), seed)
        averages = {"loss": hvd.allreduce(loss), "largest loss": hvd.allreduce(loss, op=hvd.Max)}
        watch = Watch(averages)
        hooks = [
            hvd.BroadcastGlobalVariablesHook(root),
            watch,
            tf.train.StopAtStepHook(last_step=last_step),
            tf.train.LoggingTensorHook({"local loss": loss, **averages}, every_n_iter=10),
            tf.train.NanTensorHook(loss),
        ]
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder if hvd.rank() == 0 else None,
            hooks=hooks,
            config=tf.ConfigProto(inter_op_parallelism_threads=1),
        ) as session:
            while not session.should_stop():
                batch = data(len(watch.seen), slice(hvd.rank(), None, hvd.size()))
                session.run(step, dict(zip((rows, targets), batch, strict=True)))
    return watch


def main(_):
    hvd.init()
    folder = os.environ["CHECKPOINT_DIR"]
    first = train(folder, last_step=30, seed=hvd.rank(), root=hvd.size() - 1)
    again = train(folder, last_step=40, seed=10 + hvd.rank(), root=0)
    for run, steps in ((first, 30), (again, 10)):
        assert len(run.seen) == steps
        assert same_on_all_ranks([*run.first, *run.last, *(value for seen in run.seen for value in seen.values())])
    assert (first.step, again.step) == (30, 40)
    assert all(np.array_equal(one, other) for one, other in zip(first.last, again.first, strict=True))
    assert again.seen[-1]["loss"] < 0.5 * first.seen[0]["loss"]


if __name__ == "__main__":
    tf.disable_v2_behavior()
    sys.exit(tf.app.run())
