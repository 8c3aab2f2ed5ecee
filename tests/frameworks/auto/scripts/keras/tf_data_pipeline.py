"""Train from a tf.data pipeline that parses, augments, shuffles, batches and repeats; steps_per_epoch ends an epoch."""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

tf.random.set_seed(0)
keras.utils.set_random_seed(0)
BATCH_SIZE = 40
digits = load_digits()
images, labels = (digits.images / 16).astype("float32")[..., None], digits.target.astype("int64")


def augment(image, label):
    noise = tf.random.stateless_normal(tf.shape(image), seed=(1, 2), stddev=0.1)
    return image + noise, label


train_ds = (
    tf.data.Dataset.from_tensor_slices((images[:1400], labels[:1400]))
    .shuffle(1400, seed=0)
    .map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    .batch(BATCH_SIZE, drop_remainder=True)
    .repeat()
    .prefetch(tf.data.AUTOTUNE)
)
test_ds = tf.data.Dataset.from_tensor_slices((images[1400:], labels[1400:])).batch(100)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(12, 3, use_bias=False),
        layers.BatchNormalization(),
        layers.Activation("relu"),
        layers.Flatten(),
        layers.Dense(10),
    ]
)
schedule = keras.optimizers.schedules.CosineDecay(0.02, 8 * 35)
model.compile(
    optimizer=keras.optimizers.SGD(schedule, momentum=0.9, clipnorm=1.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(train_ds, steps_per_epoch=35, epochs=8, verbose=2)
loss, accuracy = model.evaluate(test_ds)
print(f"test loss {loss:.4f}, test accuracy {accuracy:.4f}")
