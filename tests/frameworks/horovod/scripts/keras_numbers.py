"""Learning rates of Keras in numbers: each case by the ranks, and by Horovod's formula."""

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


def rates_with(callback):
    """Train for 3 epochs of 2 batches; return the rates of the batches."""
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(RATE)), "mse")
    rates, data = Rates(), (np.full((8, 2), 1.0 + RANK, "f"), np.ones((8, 1), "f"))
    model.fit(*data, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=[callback, rates])
    return rates.seen


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
            seen = rates_with(
                hvd.callbacks.LearningRateScheduleCallback(
                    RATE, multiplier, start_epoch=start, end_epoch=end, staircase=staircase, steps_per_epoch=STEPS
                )
            )
            case = multiplier, staircase, start, end
            assert np.allclose(seen, schedule(multiplier, staircase, start, end)), (case, seen)

for warmup in (1, 2):
    seen = rates_with(hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=warmup))
    rises = [(epoch + (batch + 1) / STEPS) * (SIZE - 1) / warmup + 1 for epoch, batch in MOMENTS]
    assert np.allclose(seen, [RATE * min(rise / SIZE, 1) for rise in rises]), (warmup, seen)

print("all as computed")
