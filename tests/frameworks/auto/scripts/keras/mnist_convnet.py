"""Train a simple ConvNet on NumPy arrays with validation_split; the shape of Keras's first example."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
num_classes = 10
input_shape = (8, 8, 1)

digits = load_digits()
x_train, x_test = digits.images[:1297], digits.images[1297:]
x_train = np.expand_dims(x_train.astype("float32") / 16, -1)
x_test = np.expand_dims(x_test.astype("float32") / 16, -1)
print("x_train shape:", x_train.shape)
y_train = keras.utils.to_categorical(digits.target[:1297], num_classes)
y_test = keras.utils.to_categorical(digits.target[1297:], num_classes)

model = keras.Sequential(
    [
        keras.Input(shape=input_shape),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dropout(0.1),
        layers.Dense(num_classes, activation="softmax"),
    ]
)
model.summary()
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=32, epochs=12, validation_split=0.1)
score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])
model.save("convnet.keras")
