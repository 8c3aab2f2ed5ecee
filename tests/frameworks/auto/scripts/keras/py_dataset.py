"""Train from a PyDataset that makes batches itself and shuffles at the end of each epoch."""

import math

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits


class Digits(keras.utils.PyDataset):
    def __init__(self, x, y, batch_size, shuffle=True, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.batch_size, self.shuffle = x, y, batch_size, shuffle
        self.order = np.arange(len(x))
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        chosen = self.order[idx * self.batch_size : (idx + 1) * self.batch_size]
        return self.x[chosen], self.y[chosen]

    def on_epoch_end(self):
        if self.shuffle:
            self.rng.shuffle(self.order)


keras.utils.set_random_seed(0)
digits = load_digits()
x, y = (digits.data / 16).astype("float32"), digits.target
train_data = Digits(x[:1400], y[:1400], 64, workers=1)
test_data = Digits(x[1400:], y[1400:], 64, shuffle=False)
model = keras.Sequential([keras.Input((64,)), layers.Dense(48, activation="tanh"), layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(train_data, validation_data=test_data, epochs=8, verbose=2)
loss, accuracy = model.evaluate(test_data, verbose=0)
print(f"test loss {loss:.4f}, test accuracy {accuracy:.4f}")
