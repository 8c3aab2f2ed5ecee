"""Train with a loop of one's own around GradientTape, as in Keras's guide on writing a training loop from scratch."""

import time

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
inputs = keras.Input(shape=(64,), name="digits")
x1 = keras.layers.Dense(32, activation="relu")(inputs)
outputs = keras.layers.Dense(10, name="predictions")(x1)
model = keras.Model(inputs=inputs, outputs=outputs)
optimizer = keras.optimizers.SGD(learning_rate=0.1)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_acc_metric = keras.metrics.SparseCategoricalAccuracy()
val_loss_metric = keras.metrics.Mean()

digits = load_digits()
x, y = (digits.data / 16).astype("float32"), digits.target
train_dataset = tf.data.Dataset.from_tensor_slices((x[:1400], y[:1400])).shuffle(1024, seed=0).batch(48)
val_dataset = tf.data.Dataset.from_tensor_slices((x[1400:], y[1400:])).batch(48)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss_value = loss_fn(y, logits)
    grads = tape.gradient(loss_value, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights, strict=True))
    train_acc_metric.update_state(y, logits)
    return loss_value


@tf.function
def test_step(x, y):
    val_loss_metric.update_state(loss_fn(y, model(x, training=False)), sample_weight=tf.shape(x)[0])


for epoch in range(1, 6):
    print(f"Start of epoch {epoch}")
    start_time = time.time()
    for step, (x_batch_train, y_batch_train) in enumerate(train_dataset):
        loss_value = train_step(x_batch_train, y_batch_train)
        if step % 10 == 0:
            print(f"Training loss (for 1 batch) at step {step}: {float(loss_value):.4f}")
    print(f"Training acc over epoch: {float(train_acc_metric.result()):.4f}")
    train_acc_metric.reset_state()
    for x_batch_val, y_batch_val in val_dataset:
        test_step(x_batch_val, y_batch_val)
    print(f"Validation loss: {float(val_loss_metric.result()):.4f}, time taken: {time.time() - start_time:.2f}s")
    val_loss_metric.reset_state()
