"""Learning rates, metrics and gradients of Keras in numbers: each case by the ranks, and by Horovod's formula."""

import horovod.tensorflow as tf_hvd
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STEPS, EPOCHS, RATE = 2, 3, 0.4
MOMENTS = [(epoch, batch) for epoch in range(EPOCHS) for batch in range(STEPS)]


class Rates(tf.keras.callbacks.Callback):
    """Notes the learning rate of each batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(np.asarray(self.model.optimizer.learning_rate)))


def fit(*callbacks, rate=RATE, momentum=0.0, **options):
    """Train for 3 epochs of 2 batches; return the rates of the batches, the history, and the weights."""
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), layer])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(rate, momentum=momentum), **options), "mse")
    rates, data = Rates(), (np.full((8, 2), 1.0 + RANK, "f"), np.ones((8, 1), "f"))
    history = model.fit(*data, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=[*callbacks, rates]).history
    return rates.seen, history, np.asarray(layer.kernel).ravel()


def gradient(weights, op=tf_hvd.Average):
    """The gradient of the mean squared error of each rank's rows, which are [1 + rank, 1 + rank], and its reduction."""
    each = [2 * ((1.0 + rank) * weights.sum() - 1) * (1.0 + rank) * np.ones(2) for rank in range(SIZE)]
    return sum(each) / (SIZE if op == tf_hvd.Average else 1)


def schedule(multiplier, staircase, start=0, end=None):
    """The rates by Horovod's formula, where nothing else has set them before `start` or after `end`."""
    rates, rate = [], RATE
    for epoch, batch in MOMENTS:
        if start <= epoch and (end is None or epoch < end):
            at = epoch if staircase else epoch + batch / STEPS
            rate = RATE * (multiplier(at) if callable(multiplier) else multiplier ** (at - start))
        rates.append(rate)
    return rates


for multiplier in (0.5, 2, lambda epoch: 1 / (1 + epoch)):
    for staircase in (True, False):
        for start, end in ((0, None), (1, None), (0, 2), (1, 2)):
            seen, _, _ = fit(
                hvd.callbacks.LearningRateScheduleCallback(
                    RATE, multiplier, start_epoch=start, end_epoch=end, staircase=staircase, steps_per_epoch=STEPS
                )
            )
            case = multiplier, staircase, start, end
            assert np.allclose(seen, schedule(multiplier, staircase, start, end)), (case, seen)

alone = hvd.allgather(np.array([fit()[1]["loss"]])).numpy()
assert not np.array_equal(alone[0], alone[1])
assert np.allclose(fit(hvd.callbacks.MetricAverageCallback())[1]["loss"], alone.mean(0))

for warmup in (1, 2):
    seen, _, _ = fit(hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=warmup))
    rises = [(epoch + (batch + 1) / STEPS) * (SIZE - 1) / warmup + 1 for epoch, batch in MOMENTS]
    assert np.allclose(seen, [RATE * min(rise / SIZE, 1) for rise in rises]), (warmup, seen)

# Momentum is corrected in the step where the rate changes: it is multiplied by what the rate is multiplied by.
for multiplier in (0.5, 3.0):
    _, _, found = fit(
        hvd.callbacks.LearningRateScheduleCallback(0.01, multiplier, steps_per_epoch=STEPS), rate=0.01, momentum=0.9
    )
    weights, velocity, before = np.ones(2), np.zeros(2), 0.01
    for epoch, _ in MOMENTS:
        rate = 0.01 * multiplier**epoch
        velocity = 0.9 * rate / before * velocity - rate * gradient(weights)
        weights, before = weights + velocity, rate
    assert np.allclose(found, weights), (multiplier, found, weights)

print("all as computed")
