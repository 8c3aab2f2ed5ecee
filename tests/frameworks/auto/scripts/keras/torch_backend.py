"""Train a Keras model on the PyTorch backend, with gradients that the optimizer accumulates."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
digits = load_digits()
x, y = (digits.data / 16).astype("float32"), keras.utils.to_categorical(digits.target)
model = keras.Sequential([keras.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
model.compile(
    optimizer=keras.optimizers.Adam(3e-3, gradient_accumulation_steps=2),
    loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.05),
    metrics=["accuracy"],
)
model.fit(x[:1400], y[:1400], batch_size=28, epochs=6, validation_split=0.2, shuffle=True)
loss, accuracy = model.evaluate(x[1400:], y[1400:])
print(f"{keras.backend.backend()}: test loss {loss:.4f}, test accuracy {accuracy:.4f}")
model.save("torch.keras")
