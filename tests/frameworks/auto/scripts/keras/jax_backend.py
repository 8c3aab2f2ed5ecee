"""Train a Keras model on the JAX backend, chosen as users do: by an environment variable set at the top."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
digits = load_digits()
x, y = (digits.data / 16).astype("float32"), digits.target
inputs = keras.Input((64,))
hidden = layers.Dense(48, activation="gelu")(inputs)
hidden = layers.LayerNormalization()(hidden)
model = keras.Model(inputs, layers.Dense(10)(hidden))
model.compile(
    optimizer=keras.optimizers.AdamW(1e-3, weight_decay=0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
)
model.fit(x[:1400], y[:1400], batch_size=50, epochs=6, validation_data=(x[1400:], y[1400:]), verbose=2)
loss, accuracy = model.evaluate(x[1400:], y[1400:], verbose=0)
predictions = model.predict(x[1400:], verbose=0).argmax(1)
print(f"{(predictions == y[1400:]).sum()} of {len(predictions)} are predicted right")
print(f"{keras.backend.backend()}: test loss {loss:.4f}, test accuracy {accuracy:.4f}")
model.save_weights("jax.weights.h5")
