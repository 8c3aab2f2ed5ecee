"""A convolutional autoencoder: first on clean digits, then it learns to take noise away; as Keras's example."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)


def noise(array):
    noisy = array + 0.4 * np.random.normal(loc=0.0, scale=1.0, size=array.shape)
    return np.clip(noisy, 0.0, 1.0).astype("float32")


images = (load_digits().images.astype("float32") / 16)[..., None]
train_data, test_data = images[:1400], images[1400:]
noisy_train_data, noisy_test_data = noise(train_data), noise(test_data)

inputs = layers.Input(shape=(8, 8, 1))
x = layers.Conv2D(12, (3, 3), activation="relu", padding="same")(inputs)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(12, (3, 3), activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(12, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = keras.Model(inputs, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
autoencoder.fit(
    x=train_data, y=train_data, epochs=3, batch_size=64, shuffle=True, validation_data=(test_data, test_data), verbose=2
)
predictions = autoencoder.predict(test_data, verbose=0)
print("mean of predictions", round(float(predictions.mean()), 2))
autoencoder.fit(
    x=noisy_train_data,
    y=train_data,
    epochs=4,
    batch_size=64,
    shuffle=True,
    validation_data=(noisy_test_data, test_data),
    verbose=2,
)
print(f"test loss {autoencoder.evaluate(noisy_test_data, test_data, verbose=0):.4f}")
