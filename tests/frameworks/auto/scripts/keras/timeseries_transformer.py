"""Classify series with attention, as Keras's example does; EarlyStopping restores the best weights."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
classes = rng.integers(0, 3, 900)
times = np.arange(40) / 40
x = np.sin((classes[:, None] + 2) * 6 * times + rng.uniform(0, 6, (900, 1))) + 0.4 * rng.normal(size=(900, 40))
x = x.astype("float32")[..., None]
x_train, y_train, x_test, y_test = x[:700], classes[:700], x[700:], classes[700:]


def transformer_encoder(inputs, head_size, num_heads, ff_dim):
    x = layers.MultiHeadAttention(key_dim=head_size, num_heads=num_heads)(inputs, inputs)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    res = x + inputs
    x = layers.Conv1D(filters=ff_dim, kernel_size=1, activation="relu")(res)
    x = layers.Conv1D(filters=inputs.shape[-1], kernel_size=1)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return x + res


inputs = keras.Input(shape=x_train.shape[1:])
x = layers.Conv1D(8, 5, strides=2, activation="relu")(inputs)
for _ in range(2):
    x = transformer_encoder(x, head_size=8, num_heads=2, ff_dim=8)
x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
x = layers.Dense(32, activation="relu")(x)
model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(learning_rate=1e-3),
    metrics=["sparse_categorical_accuracy"],
)
callbacks = [keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)]
model.fit(x_train, y_train, validation_split=0.2, epochs=8, batch_size=64, callbacks=callbacks, verbose=2)
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test loss {loss:.4f}, accuracy {accuracy:.4f}")
