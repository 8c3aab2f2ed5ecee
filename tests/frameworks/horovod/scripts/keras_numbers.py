"""Learning rates, metrics and gradients of Keras in numbers: each case by two ranks, and by Horovod's formula."""

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


def fit(*callbacks):
    """Train for 3 epochs of 2 batches; return the rates of the batches, and the history."""
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(RATE)), "mse")
    rates, data = Rates(), (np.full((8, 2), 1.0 + RANK, "f"), np.ones((8, 1), "f"))
    history = model.fit(*data, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=[*callbacks, rates]).history
    return rates.seen, history


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
            seen, _ = fit(
                hvd.callbacks.LearningRateScheduleCallback(
                    RATE, multiplier, start_epoch=start, end_epoch=end, staircase=staircase, steps_per_epoch=STEPS
                )
            )
            case = multiplier, staircase, start, end
            assert np.allclose(seen, schedule(multiplier, staircase, start, end)), (case, seen)

for warmup in (1, 2):
    seen, history = fit(
        hvd.callbacks.MetricAverageCallback(), hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=warmup)
    )
    rises = [(epoch + (batch + 1) / STEPS) * (SIZE - 1) / warmup + 1 for epoch, batch in MOMENTS]
    assert np.allclose(seen, [RATE * min(rise / SIZE, 1) for rise in rises]), (warmup, seen)
    losses = np.asarray(hvd.allgather(np.array([history["loss"]])))
    assert np.array_equal(losses[0], losses[1])

# Gradients: the average or the sum over the ranks, divided before and after adding up, local ones by the ranks.
for op, expected in ((tf_hvd.Average, 3.0), (tf_hvd.Sum, 6.0)):
    for factor in (1.0, 2.0) if op == tf_hvd.Average else (1.0,):
        for is_scaled in (True, False):
            shared, own = tf.Variable([1.0]), tf.Variable([2.0])
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((2.0 + 2 * RANK) * (shared + own))
            tape = tf_hvd.DistributedGradientTape(
                tape, op=op, gradient_predivide_factor=factor, scale_local_gradients=is_scaled
            )
            tape.register_local_source(own)
            found = [gradient.numpy().tolist() for gradient in tape.gradient(loss, [shared, own])]
            assert found == [[expected], [(2.0 + 2 * RANK) / (SIZE if is_scaled else 1)]], (op, factor, found)
print("all as computed")
