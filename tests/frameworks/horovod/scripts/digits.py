"""Digits of a made-up handwriting, and what holds on all ranks when they are learned."""

import numpy as np
import tensorflow as tf

generator = np.random.default_rng(3)
shapes = generator.random((10, 8, 8, 1))
labels = generator.integers(0, 10, 512)
images = (shapes[labels] + 0.1 * generator.standard_normal((512, 8, 8, 1))).astype("float32")


def shuffled(seed):
    """Return a dataset without an end, in an order by `seed`."""
    return tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(256, seed=seed).batch(16)


def check_training(hvd, model, history):
    """Check that the digits are learned, with one loss and one kernel on both ranks."""
    assert history["accuracy"][-1] > 0.9, history
    for value in (history["loss"], model.get_weights()[0]):
        first, second = np.asarray(hvd.allgather(np.asarray(value)[None]))
        assert np.array_equal(first, second)


def check_going_on(hvd, path):
    """Go on from a checkpoint of rank 0, with an optimizer that is a DistributedOptimizer again."""
    hvd.allreduce(np.zeros(1))  # rank 0 has written it
    again = hvd.load_model(path)
    before = again.evaluate(images, labels, verbose=0)[0]
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    again.fit(shuffled(hvd.rank()), steps_per_epoch=8, epochs=1, verbose=0, callbacks=callbacks)
    first, second = np.asarray(hvd.allgather(again.get_weights()[0][None]))
    assert np.array_equal(first, second)
    assert again.evaluate(images, labels, verbose=0)[0] < before + 0.1
